"""D: a rule of two fields, `temperature > 50`, on JSON payloads as a client hands them over, to a file.

Every contender begins with the payload's bytes and ends with a line of JSON in a file: the client itself and
the broker cost all of them the same. The agent keeps its input in its spool's transaction and the file in
step, and syncs both; the others leave the file to the system.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from geartrain import Flow, Record
from geartrain.adapters.system import SystemClock
from geartrain.planning import Plan, make_plan
from geartrain.sinks import JsonLinesFile
from geartrain.testing import SeededRandomness
from geartrain_devices.json_fields import JsonFields
from geartrain_devices.json_values import ValueOptions
from geartrain_edge.agent.agent import Agent
from geartrain_edge.sinks.line_files import FolderFiles
from geartrain_edge.spool.spool import SqliteSpool
from tests.bench import peers
from tests.bench.at_the_edge import SETTINGS, Answering, Given, run_runtime
from tests.bench.harness import Absent, Contender, Work, fsync_us, peer, rate, scaled

RECORDS = scaled(200_000, least=2_000)


class Reading(Record):
    """What a sensor publishes."""

    sensor: str
    temperature: float


_decode = msgspec.json.Decoder(Reading).decode
_encode = msgspec.json.encode


def hot(reading: Reading) -> bool:
    """The rule."""
    return reading.temperature > 50


def payloads() -> list[bytes]:
    """A tenth of them is hot."""
    rng = random.Random(4)
    return [
        b'{"sensor":"oven-%d","temperature":%.1f,"time":%d}' % (n % 20, rng.uniform(0, 55.5), n + 1)
        for n in range(RECORDS)
    ]


def line_of(reading: Reading) -> bytes:
    """The line of a reading."""
    return _encode(reading) + b"\n"


def by_hand(rows: Sequence[bytes], path: Path) -> None:
    """The loop that one would write in the client's callback."""
    with path.open("wb") as file:
        for row in rows:
            reading = _decode(row)
            if hot(reading):
                file.write(line_of(reading))


def _taken(rows: Sequence[bytes]) -> tuple[list[int], list[Any]]:
    found = _FIELDS.read_all(rows)
    if found is None:  # of no rows
        return [], []
    times, found_readings = found
    return [time or 0 for time in times], found_readings


_FIELDS = JsonFields("bench", Reading, "time", ValueOptions(time_unit="us"), {})
"""As sources read documents that come by the batch, with the checks of their fields and times."""


def plan_of(rows: Sequence[bytes]) -> Plan:
    """The same as a flow whose sink is a file on the device."""
    flow = Flow("rule")
    readings = flow.source("readings", Given(rows=rows, make=_taken), out=Reading)
    readings.filter(hot).at("edge").sink("out", JsonLinesFile("hot"))
    return make_plan(flow.graph(), "edge")


def _by_runtime(rows: Sequence[bytes], path: Path) -> None:
    with path.open("wb") as file:
        file.writelines(map(line_of, run_runtime(plan_of(rows))["out"]))


def _by_agent(rows: Sequence[bytes], path: Path) -> None:
    asyncio.run(_run_agent(plan_of(rows), path.parent / f"{path.name}-state"))
    (path.parent / f"{path.name}-state" / "hot.jsonl").rename(path)


async def _run_agent(plan: Plan, folder: Path) -> None:
    store, files = SqliteSpool(folder / "spool.sqlite"), FolderFiles(folder)
    agent = Agent(
        SETTINGS, plan, store, Answering(acks=True), SystemClock(), SeededRandomness(1), files=files
    )
    assert await agent.run()


def _by_bytewax(rows: Sequence[bytes], path: Path) -> None:
    def build(op: Any, stream: Any) -> Any:
        return op.map("line", op.filter("hot", op.map("parse", stream, _decode), hot), line_of)

    with path.open("wb") as file:
        file.writelines(peers.through_bytewax(rows, build))


def _by_streamz(rows: Sequence[bytes], path: Path) -> None:
    with path.open("wb") as file:
        file.writelines(peers.through_streamz(rows, lambda s: s.map(_decode).filter(hot).map(line_of)))


def _by_reactivex(rows: Sequence[bytes], path: Path) -> None:
    steps = [peers.rx("map", _decode), peers.rx("filter", hot), peers.rx("map", line_of)]
    with path.open("wb") as file:
        file.writelines(peers.through_reactivex(rows, *steps))


def test_rule_from_payloads_to_a_file(tmp_path: Path) -> None:
    rows = payloads()
    paths: dict[str, Path] = {}

    def timed(name: str, run: Callable[[Sequence[bytes], Path], None]) -> Contender:
        def contender() -> float:
            paths[name] = tmp_path / f"{name.partition(' ')[0]}-{len(list(tmp_path.iterdir()))}"
            return rate(RECORDS, lambda: run(rows, paths[name]))

        return contender

    contenders: dict[str, Contender | Absent] = {
        "loop": timed("loop", by_hand),
        "runtime": timed("runtime", _by_runtime),
        "agent to its file": timed("agent to its file", _by_agent),
        "bytewax": peer("bytewax", lambda: timed("bytewax", _by_bytewax)),
        "streamz": peer("streamz", lambda: timed("streamz", _by_streamz)),
        "reactivex": peer("reactivex", lambda: timed("reactivex", _by_reactivex)),
        "eKuiper": Absent("there is no binary of it in a package registry"),
    }
    work = Work("D: temperature > 50", "krec/cpu-s", contenders, ("loop", "bytewax"), versions=("bytewax",))
    work.notes.append(f"an fsync on this disk: {fsync_us(tmp_path):.0f} us")
    work.run()
    expected = [_decode(row) for row in rows if hot(_decode(row))]
    assert expected
    for name, path in paths.items():
        found = [_decode(line) for line in path.read_bytes().splitlines()]
        assert found == expected, f"{name} has other lines than the loop"
