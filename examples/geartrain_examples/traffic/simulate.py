"""A city that is simulated live: SUMO, in step with the clock, and what its cameras see.

Before the record's path, as a process of its own: `python -m geartrain_examples.traffic.simulate FOLDER`
appends passes and readings to files that the agents follow. Needs the extra `sumo`. A simulation that is
started again begins with empty streets and new vehicles, and goes on in the same files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from geartrain.errors import ConfigError, SourceError
from geartrain_examples.traffic.records import Pass, Reading

PASSES, READINGS, CHECKPOINTS = "passes.jsonl", "readings.jsonl", "checkpoints.csv"
BLOCK_M = 250
SIZE = 4
LIMIT_MPS = 13.89
STEP_US = 1_000_000
INTERVAL_S = 60
VEHICLES_MAX = 400
_FAST_SHARE = 0.05


def check_installed() -> None:
    """Raise `ConfigError` unless SUMO is there."""
    if missing := [name for name in ("sumo", "sumolib", "traci") if find_spec(name) is None]:
        raise ConfigError(
            f"--live simulates traffic with SUMO, and {missing[0]} is not installed: run "
            "pip install geartrain-examples[sumo]"
        )


def prepare(folder: Path) -> Path:
    """Make a city in `folder`: its net, its loops, and where its cameras stand, which is returned.

    Raises `ConfigError` without SUMO, and `SourceError` when it fails.
    """
    check_installed()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    net = folder / "city.net.xml"
    command = [_program("netgenerate"), "--grid", f"--grid.number={SIZE}", f"--grid.length={BLOCK_M}"]
    command += [f"--grid.attach-length={BLOCK_M}", "--default.lanenumber=2", f"--default.speed={LIMIT_MPS}"]
    done = subprocess.run(
        [*command, "--default-junction-type=traffic_light", "-o", str(net)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SourceError(f"SUMO's netgenerate has failed: {' '.join(done.stderr.split())[:300]}")
    net.chmod(0o600)
    loops, places = [], ["detector,x_m,y_m"]
    for edge in import_module("sumolib").net.readNet(str(net)).getEdges():
        (x0, y0), (x1, y1) = edge.getFromNode().getCoord()[:2], edge.getToNode().getCoord()[:2]
        for lane in range(edge.getLaneNumber()):
            name = f"{edge.getID()}_{lane}"
            loops.append(
                f'<inductionLoop id="{name}" lane="{name}" pos="{edge.getLength() / 2:.2f}" '
                f'period="{INTERVAL_S}" file="NUL"/>'
            )
            places.append(f"cam_{name},{(x0 + x1) / 2:.2f},{(y0 + y1) / 2:.2f}")
    _write(folder / "loops.add.xml", ["<additional>", *loops, "</additional>"])
    _write(folder / CHECKPOINTS, places)
    return folder / CHECKPOINTS


def streets_of(checkpoints: Path) -> list[str]:
    """The streets of a file of checkpoints that `prepare` has made."""
    names = (line.partition(",")[0] for line in checkpoints.read_text(encoding="utf-8").splitlines()[1:])
    return sorted({name.removeprefix("cam_").rpartition("_")[0] for name in names})


def _program(name: str) -> str:
    return str(Path(import_module("sumo").SUMO_HOME) / "bin" / name)


def _write(path: Path, lines: Iterable[str]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


class Simulation:
    """SUMO at work, one second a step."""

    def __init__(self, folder: Path, seed: int) -> None:
        """`seed`: of the vehicles, and part of their plates."""
        self._sumo: Any = import_module("traci")
        self._rng = Random(seed)  # noqa: S311 - a game, not a secret
        self._run, self._number = f"{seed:x}", 0
        options = ["--no-step-log", "--no-warnings", "--time-to-teleport", "300", "--seed", "7"]
        net, loops = str(folder / "city.net.xml"), str(folder / "loops.add.xml")
        self._sumo.start([_program("sumo"), "-n", net, "-a", loops, *options])
        self._detectors = list(self._sumo.inductionloop.getIDList())
        self._edges = [e for e in self._sumo.edge.getIDList() if not e.startswith(":")]
        self._seen: dict[str, set[str]] = {detector: set() for detector in self._detectors}

    def step(self) -> list[tuple[float, Pass]]:
        """One second more; the passes in it, each with how many seconds before its end it was."""
        self._set_out()
        self._sumo.simulationStep()
        now_s = self._sumo.simulation.getTime()
        found = []
        for detector in self._detectors:
            there = set()
            for vehicle, _, entered_s, _, _ in self._sumo.inductionloop.getVehicleData(detector):
                there.add(vehicle)
                if vehicle not in self._seen[detector]:
                    speed_mps = round(max(self._sumo.inductionloop.getLastStepMeanSpeed(detector), 0.0), 2)
                    edge, lane = detector.rsplit("_", 1)
                    seen = Pass(f"cam_{detector}", edge, int(lane), vehicle, speed_mps)
                    found.append((max(0.0, now_s - entered_s), seen))
            self._seen[detector] = there
        return sorted(found, key=lambda one: (-one[0], one[1].detector))

    def readings(self) -> list[Reading]:
        """Of the interval that has just ended."""
        loop = self._sumo.inductionloop
        return [
            Reading(
                f"loop_{name}",
                name.rsplit("_", 1)[0],
                loop.getLastIntervalVehicleNumber(name),
                round(loop.getLastIntervalMeanSpeed(name), 2),
                round(loop.getLastIntervalOccupancy(name), 2),
            )
            for name in self._detectors
        ]

    def _set_out(self) -> None:
        """A vehicle begins its trip, unless the city is full."""
        if self._sumo.vehicle.getIDCount() >= VEHICLES_MAX:
            return
        start, goal = self._rng.sample(self._edges, 2)
        way = self._sumo.simulation.findRoute(start, goal).edges
        if not way:
            return
        name = f"{self._run}-{self._number}"
        self._number += 1
        self._sumo.route.add(name, way)
        self._sumo.vehicle.add(name, name, departLane="best", departSpeed="max")
        if self._rng.random() < _FAST_SHARE:
            self._sumo.vehicle.setSpeedFactor(name, 1.6)

    def close(self) -> None:
        """End SUMO."""
        self._sumo.close()


def main(folder: Path, steps_max: int | None = None, pause_s: float = 1.0) -> None:
    """Simulate until the process is ended, or for so many steps; `pause_s`: what a second of it takes."""
    simulation = Simulation(folder, int(time.time()))
    began_s, done, minute_us, last_us = time.monotonic(), 0, _now_us(), 0
    try:
        with (folder / PASSES).open("ab") as passes, (folder / READINGS).open("ab") as readings:
            while steps_max is None or done < steps_max:
                done += 1
                time.sleep(max(0.0, began_s + done * pause_s - time.monotonic()))
                now_us = _now_us()
                for before_s, seen in simulation.step():
                    last_us = max(last_us, now_us - round(before_s * 1_000_000))
                    passes.write(_line(last_us, seen))
                passes.flush()
                if done % INTERVAL_S == 0:
                    for reading in simulation.readings():
                        readings.write(_line(minute_us, reading))
                    readings.flush()
                    minute_us = _now_us()
    finally:
        simulation.close()


def _now_us() -> int:
    return time.time_ns() // 1_000


def _line(time_us: int, record: Pass | Reading) -> bytes:
    return msgspec.json.encode((time_us, record)) + b"\n"


if __name__ == "__main__":
    os.umask(0o077)
    main(Path(sys.argv[1]))
