"""kill -9 of each process of a real platform, at each step of submit, kill and replay.

A step is seen from outside, in the files that a platform writes: the request has been sent, control has
taken it, the host is told, the tables are begun. The process is killed as soon as the step is seen.
Afterwards the tables are compared with plain Python, and each device has applied what it was told.

The small form kills three processes, which are drawn by the commit of seven: each process once, as the long
form has it. `make kills` runs each process at each step.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.platform.runs import runs_with_tables, served_run, tables_of_run
from geartrain_cloud.sinks.tables import rows
from tests.control.platform_client import Client
from tests.drawing import drawn
from tests.supervisor.test_up import is_alive, own_port, pids
from tests.waiting import Wait, note_log

pytestmark = [pytest.mark.slow, pytest.mark.spark]

POLL_S = 0.02
DEVICES = ("d1", "d2")
ROWS, ROWS_SLOW, SLOW = 400, 20_000, 10.0
"""Rows of a device; of an app that is killed long before its end, and how many of these a second."""
FLOW = """
from geartrain import Context, Flow, Record, State, Table, Task
from geartrain_devices.csv_replay import CsvReplay


class Reading(Record):
    sensor: str
    number: int
    celsius: float


class Fold(Record):
    sensor: str
    count: int
    total: float


class Kept(State):
    count: int = 0
    total: float = 0.0


class Folds(Task[Reading, Fold]):
    state = Kept

    def on_next(self, reading: Reading, ctx: Context[Fold, Kept]) -> None:
        ctx.state.count += 1
        ctx.state.total = ctx.state.total * 0.5 + reading.celsius
        ctx.emit(Fold(reading.sensor, ctx.state.count, ctx.state.total))


flow = Flow("heat")
readings = flow.source("readings", CsvReplay(time_column="time"), out=Reading, partitioned_by="sensor")
readings.sink("every", Table("every"))
readings.key_by("sensor").process("folds", Folds()).sink("results", Table("results"))
"""

Row = tuple[str, int, float]
Step = Callable[["Watch"], bool]


def write_readings(path: Path, device: str, count: int, seed: int) -> list[Row]:
    """A file of readings a second apart, and the rows in it."""
    chance = random.Random(f"{device}{seed}")
    found = [(f"{device}-{chance.randrange(4)}", n, round(chance.uniform(-9, 40), 3)) for n in range(count)]
    lines = ["time,sensor,number,celsius\n"]
    for sensor, number, celsius in found:
        at = f"2026-01-01T{number // 3_600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
        lines.append(f"{at},{sensor},{number},{celsius}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return found


def folded(found: Sequence[Row]) -> list[Row]:
    """What the flow makes of a device's rows."""
    counts, totals, made = dict[str, int](), dict[str, float](), []
    for sensor, _, celsius in found:
        counts[sensor] = counts.get(sensor, 0) + 1
        totals[sensor] = totals.get(sensor, 0.0) * 0.5 + celsius
        made.append((sensor, counts[sensor], totals[sensor]))
    return made


class Watch:
    """What is seen from outside of one instance, which may not be there yet."""

    def __init__(self, state: Path, instance: str, run: int = 1) -> None:
        self.places, self.instance, self.run = PlatformPlaces(state), instance, run
        self.tables, self.answered = self.places.tables(instance), threading.Event()

    def host(self) -> dict[str, Any]:
        return dict(read_report(self.places.spark_status).get("flows", {}).get(self.instance, {}))

    def wanted(self) -> dict[str, Any]:
        return dict(read_report(self.places.spark_wanted).get("flows", {}).get(self.instance, {}))

    def logged(self) -> bool:
        log = LogReader(self.places.log)
        return log.ready() and any(log.positions(self.instance).values())

    def agent(self) -> int | None:
        """The process that runs it on the first device."""
        pid = read_report(self.places.agent(DEVICES[0], self.instance) / "status.json").get("pid")
        return pid if isinstance(pid, int) and pid and is_alive(pid) else None


SUBMIT: Mapping[str, Step] = {
    "sent": lambda watch: True,
    "taken": lambda watch: watch.answered.is_set(),
    "host told": lambda watch: bool(watch.wanted()),
    "on a device": lambda watch: watch.agent() is not None,
    "logged": lambda watch: watch.logged(),
    "in tables": lambda watch: watch.host().get("rows", 0) > 0,
}
REPLAY: Mapping[str, Step] = {
    "sent": lambda watch: True,
    "taken": lambda watch: watch.answered.is_set(),
    "host told": lambda watch: watch.wanted().get("run") == watch.run,
    "begun": lambda watch: tables_of_run(watch.tables, watch.run).exists(),
    "served": lambda watch: served_run(watch.tables) == watch.run,
    "former gone": lambda watch: runs_with_tables(watch.tables) == {watch.run},
}
DRAIN: Mapping[str, Step] = {
    "sent": lambda watch: True,
    "taken": lambda watch: watch.answered.is_set(),
    "device told": lambda watch: (watch.places.agent(DEVICES[0], watch.instance) / "drain").exists(),
    "host told": lambda watch: watch.wanted().get("end") == "drain",
    "host to let go": lambda watch: not watch.wanted(),
}
PURGE: Mapping[str, Step] = {
    "sent": lambda watch: True,
    "taken": lambda watch: watch.answered.is_set(),
    "host to let go": lambda watch: not watch.wanted(),
    "tables gone": lambda watch: not watch.tables.exists(),
}
VERBS = {"submit": SUBMIT, "replay": REPLAY, "drain": DRAIN, "replay of ended": REPLAY, "purge": PURGE}
VICTIMS = ("control", "ingest", "spark", "broker", "device d1", "agent", "gear up")
WITHOUT_AGENT = {("submit", "sent"), ("submit", "taken"), ("submit", "host told"), ("replay of ended", "")}
"""Where the app has no agent yet, or none any more; an empty step stands for all of the verb."""

Deaths = Mapping[str, Sequence[tuple[str, str]]]
"""By verb, the (step, victim) in the order of the steps."""

SMALL: Deaths = {
    "submit": [("sent", "control"), ("logged", "ingest")],
    "replay": [("begun", "spark")],
    "drain": [("device told", "agent"), ("host told", "broker")],
    "replay of ended": [("begun", "gear up")],
    "purge": [("taken", "device d1")],
}


def every_death(verb: str) -> list[tuple[str, str]]:
    """Each victim at each step of a verb."""
    return [
        (step, victim)
        for step, victim in itertools.product(VERBS[verb], VICTIMS)
        if victim != "agent" or not WITHOUT_AGENT & {(verb, step), (verb, "")}
    ]


class Platform:
    """`gear up` on a folder, started again when it is killed; a client asks again under the same key."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        self.places, self.lives = PlatformPlaces(self.state), 0
        own_port(self.state)
        (folder / "heat.py").write_text(FLOW, encoding="utf-8")
        self.files = {
            count: {d: write_readings(folder / f"{d}-{count}.csv", d, count, 7) for d in DEVICES}
            for count in (ROWS, ROWS_SLOW)
        }
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "geartrain_client.cli", "up", "--state", str(self.state)]
        self.lives += 1
        said = note_log(self.folder / f"said-{self.lives}").open("w")
        self.process = subprocess.Popen(
            command, stderr=said, stdout=said, start_new_session=True, cwd=self.folder
        )

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        """Ask control, as often as it takes until it answers."""
        wait = Wait("control to answer")
        while True:
            try:
                door, token = read_report(self.places.door), self.places.token.read_text().strip()
                return Client(door["url"], token).ask(method, path, body, key)
            except (OSError, HTTPException, KeyError, json.JSONDecodeError) as error:
                wait.check(repr(error))
                time.sleep(0.1)

    def until(self, what: str, done: Callable[[], Any], poll_s: float = 0.25) -> Any:
        """Wait for something, and say how the platform is where it does not come."""
        wait = Wait(what)
        while not (found := done()):
            if wait.is_over:
                apps, status = self.ask("GET", "/apps"), read_report(self.places.spark_status)
                wait.check(apps, status, self.logs())
            time.sleep(poll_s)
        return found

    def logs(self) -> dict[str, list[str]]:
        return {
            path.name: path.read_text(errors="replace").splitlines()[-4:]
            for path in self.places.logs.iterdir()
        }

    def kill(self, victim: str, watch: Watch) -> None:
        """Kill a process with -9; one that has ended already needs no kill."""
        if victim == "gear up":
            self.process.kill()
            self.process.wait()
            self.start()
            return
        with suppress(ProcessLookupError):
            if victim == "agent":
                if (pid := watch.agent()) is not None:
                    os.kill(pid, signal.SIGKILL)
            else:
                os.kill(self.until(victim, lambda: pids(self.state).get(victim)), signal.SIGKILL)

    def do(
        self, verb: str, watch: Watch, deaths: Sequence[tuple[str, str]], path: str, body: Mapping[str, Any]
    ) -> None:
        """Ask for something, and kill as each step of it is seen."""
        with ThreadPoolExecutor(1) as thread:
            key = f"{verb} {watch.instance} {watch.run}"
            answer = thread.submit(self.ask, "POST", path, body, key)
            answer.add_done_callback(lambda _: watch.answered.set())

            def is_seen(step: str) -> bool:
                if answer.done():
                    assert answer.result()[0] in (201, 202), answer.result()
                return VERBS[verb][step](watch)

            for step, victim in deaths:
                self.until(f"{verb}: {step}", partial(is_seen, step), POLL_S)
                self.kill(victim, watch)
            assert answer.result()[0] in (201, 202), answer.result()

    def app(self, name: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"/apps/{name}")[1])

    def is_unknown(self, name: str) -> bool:
        return self.ask("GET", f"/apps/{name}")[0] == 404

    def submit(self, name: str, number: int, count: int, deaths: Sequence[tuple[str, str]] = ()) -> Watch:
        """Submit the flow over the files of so many rows."""
        watch = Watch(self.state, f"{name}.{number}")
        speed = {} if count == ROWS else {"readings.speed": SLOW}
        own = {d: {"readings.path": str(self.folder / f"{d}-{count}.csv")} for d in DEVICES}
        cut = "auto" if count == ROWS else "cloud"
        body = {"name": name, "flow": "heat:flow", "cut": cut, "set": speed, "device_set": own}
        self.do("submit", watch, deaths, "/apps", body)
        return watch

    def until_ended(self, watch: Watch, name: str) -> None:
        self.until(f"the end of {watch.instance}", lambda: self.app(name).get("state") == "ended")

    def until_told(self) -> None:
        """Until each device has applied what it is to run."""

        def told() -> bool:
            devices = self.ask("GET", "/devices")[1]["items"]
            return len(devices) == len(DEVICES) and all(d["serial"] == d["applied"] for d in devices)

        self.until("what was told is applied", told)

    def check(self, watch: Watch, count: int, run: int = 1) -> int:
        """The tables that are served hold what plain Python makes of each device's first rows, each once;
        how many these are.
        """
        assert served_run(watch.tables) == run
        path = tables_of_run(watch.tables, run)
        every = [tuple(row.values()) for row in rows(path, "every")]
        expected, made = list[Row](), list[Row]()
        for device, written in self.files[count].items():
            there = sum(1 for row in every if str(row[0]).startswith(device))
            expected += written[:there]
            made += folded(written[:there])
        assert sorted(every) == sorted(expected)
        assert sorted(tuple(row.values()) for row in rows(path, "results")) == sorted(made)
        assert rows(path, "dead_letters") == []
        return len(every)


def is_gone(folder: Path) -> bool:
    return not folder.exists()


def one_round(platform: Platform, number: int, deaths: Deaths) -> None:
    """Each verb once, with its deaths."""
    quick = platform.submit("quick", number, ROWS, deaths["submit"])
    platform.until_ended(quick, "quick")
    assert platform.check(quick, ROWS) == ROWS * len(DEVICES)

    slow = platform.submit("slow", 2 * number - 1, ROWS_SLOW)
    platform.until("rows of slow", lambda: slow.host().get("rows", 0) > 40)
    slow.run = 2
    slow.answered.clear()
    platform.do("replay", slow, deaths["replay"], "/apps/slow/replay", {})
    platform.until("run 2 of slow", lambda: slow.host().get("run") == 2)
    slow.answered.clear()
    platform.do("drain", slow, deaths["drain"], "/apps/slow/kill", {"mode": "drain"})
    platform.until_ended(slow, "slow")
    log = LogReader(platform.places.log)
    logged = sum(
        log.counts(slow.instance, key, 0, end)["readings"]
        for key, end in log.positions(slow.instance).items()
    )
    assert platform.check(slow, ROWS_SLOW, 2) == logged
    assert runs_with_tables(slow.tables) == {2}
    assert 0 < logged < ROWS_SLOW * len(DEVICES)
    platform.until_told()

    quick.run = 2
    quick.answered.clear()
    platform.do("replay of ended", quick, deaths["replay of ended"], "/apps/quick/replay", {})
    platform.until("run 2 of quick", lambda: served_run(quick.tables) == 2)
    platform.until_ended(quick, "quick")
    assert platform.check(quick, ROWS, 2) == ROWS * len(DEVICES)
    assert runs_with_tables(quick.tables) == {2}

    gone = platform.submit("slow", 2 * number, ROWS_SLOW)
    platform.until("rows of slow", lambda: gone.host().get("rows", 0) > 40)
    gone.answered.clear()
    platform.do("purge", gone, deaths["purge"], "/apps/slow/kill", {"mode": "now", "purge": True})
    platform.ask("POST", "/apps/quick/kill", {"purge": True}, f"the end of {number}")
    for name, watch in (("slow", gone), ("quick", quick)):
        platform.until(f"the purge of {name}", partial(platform.is_unknown, name))
        assert not platform.places.app(watch.instance).exists()
    platform.until_told()
    for device, watch in itertools.product(DEVICES, (gone, quick)):
        folder = platform.places.agent(device, watch.instance)
        # A device has taken what is wanted before it has done it: an app may be starting just then.
        platform.until(f"{device} without {watch.instance}", partial(is_gone, folder))
    assert read_report(platform.places.spark_wanted)["flows"] == {}
    platform.until("the host has nothing", lambda: read_report(platform.places.spark_status)["flows"] == {})


def proven(folder: Path, rounds: Sequence[Deaths], say: Callable[[str], None]) -> None:
    """Run these rounds on one platform."""
    platform = Platform(folder)
    try:
        for device in DEVICES:
            assert platform.ask("POST", "/devices", {"name": device, "local": True}, device)[0] == 201
        for number, deaths in enumerate(rounds, 1):
            start = time.monotonic()
            one_round(platform, number, deaths)
            say(f"{number:4} of {len(rounds)}, {time.monotonic() - start:4.0f} s: {dict(deaths)}")
    finally:
        platform.end()


def some(what: Deaths, count: int) -> Deaths:
    """So many of the deaths, drawn by the commit."""
    each = [(verb, death) for verb, deaths in what.items() for death in deaths]
    kept = drawn("deaths of a platform", each, count)
    return {verb: [death for where, death in kept if where == verb] for verb in what}


@pytest.mark.parametrize(
    "deaths",
    [pytest.param(some(SMALL, 3), id="drawn"), pytest.param(SMALL, id="each", marks=pytest.mark.long)],
)
def test_tables_are_exact_though_processes_are_killed_at_steps_of_each_verb(
    tmp_path: Path, deaths: Deaths
) -> None:
    assert {victim for found in SMALL.values() for _, victim in found} == set(VICTIMS)
    proven(tmp_path, [deaths], print)


def all_rounds(seed: int) -> list[Deaths]:
    """Rounds in which each process is killed at each step of each verb."""
    chance, found = random.Random(seed), dict[str, list[tuple[str, str]]]()
    for verb in VERBS:
        found[verb] = every_death(verb)
        chance.shuffle(found[verb])
    longest = max(map(len, found.values()))
    return [{verb: [several[n % len(several)]] for verb, several in found.items()} for n in range(longest)]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the platform ends with it
    chosen = all_rounds(1)[: int(sys.argv[1]) if len(sys.argv) > 1 else None]
    with tempfile.TemporaryDirectory() as place:
        proven(Path(place), chosen, print)
    print(f"{len(chosen)} rounds of {', '.join(VERBS)}, each with kills, and all tables exact")
