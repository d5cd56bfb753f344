"""A device that does not know the time: live records are kept, and get the times at which they were born."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from geartrain import Flow, Source, Table
from geartrain.adapters.boot_clock import FLOOR_US, SystemBootClock, clock_is_synchronized
from geartrain.adapters.system import SystemClock
from geartrain.planning import Plan, make_plan
from geartrain.records.event_time import SECOND_US
from geartrain.source import Batch, Split
from geartrain.testing import SeededRandomness
from geartrain_edge.agent.agent import Agent
from geartrain_edge.agent.status import TIME_IS_UNKNOWN
from geartrain_edge.sources.untimed import HELD_BYTES_MAX, MARK_BOUND, MARK_EXACT, Untimed
from geartrain_edge.spool.spool import SqliteSpool
from tests.edge.agents import SETTINGS, run, until
from tests.edge.flows import Reading
from tests.edge.network import MemoryNet, NaiveIngest

TRUE_US = 1_700_000_000 * SECOND_US
"""The true time when the first boot began."""


@dataclass
class Machine(SystemClock):
    """A machine without a battery: the true time, that of its boot, and what its wall clock shows."""

    true_us: int = 0
    booted_us: int = 0
    name: bytes = b"first"
    is_told: bool = False

    def now_us(self) -> int:
        return TRUE_US + self.true_us if self.is_told else self.since_boot_us()

    def boot(self) -> bytes:
        return self.name

    def since_boot_us(self) -> int:
        return self.true_us - self.booted_us

    def wall_is_known(self) -> bool:
        return self.is_told

    def switch_on(self, name: bytes) -> None:
        self.name, self.booted_us, self.is_told = name, self.true_us, False


@dataclass
class _Door:
    """Speaks once for each entry of `says`, by the machine's wall clock."""

    machine: Machine
    says: list[object] = field(default_factory=list)
    name: str = "d1"
    out_of_orderness_us: int = 0
    live_clock: bool = True

    async def read(self, position: int, limit: int) -> Batch:
        values, self.says = self.says, []
        numbers = range(position, position + len(values))
        return Batch(values, [self.machine.now_us()] * len(values), numbers, numbers.stop)

    async def close(self) -> None:
        """Nothing to release."""


class Doors(Source[Reading]):
    pausable: ClassVar[bool] = False
    door: Any = None

    def open(self, device: str, step: str, out: type[Reading]) -> Sequence[Split]:
        return [self.door]


def plan_of(door: _Door) -> Plan:
    flow = Flow("fleet")
    flow.source("doors", Doors(door=door), out=Reading).sink("out", Table("doors"))
    return make_plan(flow.graph(), "edge")


def reading(n: int) -> Reading:
    return Reading("door", float(n))


def times(ingest: NaiveIngest) -> dict[float, tuple[int, bytes]]:
    """By reading, the event time less the true time when the first boot began, and the mark."""
    return {row[0].level: (row[1] - TRUE_US, row[4][8:]) for row in ingest.rows["doors"]}


async def lives_until(agent: Agent, condition: Any) -> None:
    task = asyncio.create_task(agent.run())
    await until(lambda: task.done() or condition())
    agent.stop()
    assert not await task


def test_readings_of_three_boots_get_their_times_once_the_third_is_told(tmp_path: Path) -> None:
    machine, ingest = Machine(), None
    door = _Door(machine)
    plan = plan_of(door)
    ingest = NaiveIngest(plan)

    def agent() -> Agent:
        store, chance = SqliteSpool(tmp_path / "spool.sqlite"), SeededRandomness(1)
        return Agent(SETTINGS, plan, store, MemoryNet(ingest), machine, chance, boots=machine)

    async def story() -> None:
        for boot, begun_s in ((b"first", 0), (b"second", 100)):
            machine.true_us = begun_s * SECOND_US
            machine.switch_on(boot)
            for at_s in (begun_s + 10, begun_s + 30):
                machine.true_us = at_s * SECOND_US
                door.says = [reading(at_s)]
                one = agent()
                await lives_until(one, lambda one=one: not door.says and one.status().records_read == 0)
        machine.true_us = 200 * SECOND_US
        machine.switch_on(b"third")
        machine.true_us, door.says = 205 * SECOND_US, [reading(205), "no reading"]
        one = agent()
        task = asyncio.create_task(one.run())
        await until(lambda: not door.says)
        await until(lambda: one.status().alarm.startswith(TIME_IS_UNKNOWN))
        assert not ingest.rows["doors"], "a record left before its time was known"
        machine.true_us = 300 * SECOND_US
        machine.is_told = True
        await until(lambda: len(ingest.rows["doors"]) == 5)
        machine.true_us, door.says = 310 * SECOND_US, [reading(310)]
        await until(lambda: len(ingest.rows["doors"]) == 6)
        one.stop()
        assert not await task
        counters = one.status().counters
        assert (counters["records_timed_later"], counters["records_timed_by_bound"]) == (1, 4)

    run(story(), 60)
    found = times(ingest)
    assert {at: found[at] for at in (205.0, 310.0)} == {
        205.0: (205 * SECOND_US, MARK_EXACT),
        310.0: (310 * SECOND_US, b""),
    }
    # The second boot was over at 200 s, and the first when the second began: no more is known.
    assert found[130.0] == (200 * SECOND_US, MARK_BOUND)
    assert found[110.0] == (180 * SECOND_US, MARK_BOUND)
    assert found[30.0] == (170 * SECOND_US, MARK_BOUND)
    assert found[10.0] == (150 * SECOND_US, MARK_BOUND)
    assert len(ingest.rows["_dead_letters"]) == 1


def test_a_clock_that_is_set_in_the_middle_of_a_read(tmp_path: Path) -> None:
    machine = Machine(true_us=5 * SECOND_US)
    untimed = Untimed({"doors": Reading}, machine, machine)
    split = ("doors", "d1")
    before = untimed.offset_us()
    assert before == 0
    stamped = [machine.now_us()]
    machine.true_us, machine.is_told = 8 * SECOND_US, True
    stamped.append(machine.now_us())
    untimed.hold(split, Batch([reading(5), reading(8)], stamped, [0, 1], 2), before)
    timed = untimed.next(split, 2)
    assert timed is not None
    assert timed.read.times == [TRUE_US + 5 * SECOND_US, TRUE_US + 8 * SECOND_US]
    assert timed.marks == {0: MARK_EXACT}
    assert untimed.next(split, 2) is None
    # What waited within the source carries the old time a little longer.
    machine.true_us = 9 * SECOND_US
    settling = untimed.offset_us()
    assert settling is not None
    untimed.hold(
        split, Batch([reading(6), reading(9)], [6 * SECOND_US, machine.now_us()], [2, 3], 4), settling
    )
    timed = untimed.next(split, 4)
    assert timed is not None
    assert timed.read.times == [TRUE_US + 6 * SECOND_US, TRUE_US + 9 * SECOND_US]
    assert timed.marks == {2: MARK_EXACT}
    machine.true_us = 100 * SECOND_US
    assert untimed.offset_us() is None


def test_what_is_kept_is_bounded_and_a_record_of_a_wrong_type_is_a_dead_letter() -> None:
    machine = Machine()
    untimed = Untimed({"doors": Reading}, machine, machine)
    split = ("doors", "d1")
    big = Reading("x" * (1 << 20), 0.0)
    for number in range(20):
        if not untimed.is_full:
            untimed.hold(split, Batch([big, object(), None], [0, 0, 0], [0, 1, 2], number), 0)
    assert HELD_BYTES_MAX <= untimed.bytes < HELD_BYTES_MAX + (2 << 20)
    again = Untimed({"doors": Reading}, machine, machine)
    again.restore({at: value for at, value in untimed.changes().items() if value is not None})
    assert (again.count, again.bytes) == (untimed.count, untimed.bytes)
    machine.is_told = True
    timed = again.next(split, 1)
    assert timed is not None
    assert (timed.read.values, [reject.number for reject in timed.read.rejects]) == ([big], [1, 2])
    while again.next(split, 1) is not None:
        pass
    assert (again.count, again.bytes) == (0, 0)
    assert set(again.changes().values()) == {None}, "nothing of it stays in the spool"


def test_what_the_system_says_of_its_clock() -> None:
    clock = SystemBootClock()
    assert clock.boot() == SystemBootClock().boot() != b""
    assert clock.since_boot_us() <= SystemBootClock().since_boot_us()
    assert clock.wall_is_known()
    wall = [FLOOR_US - 1]
    early = SystemBootClock(wall_us=lambda: wall[0])
    assert not early.wall_is_known()
    wall[0] += 1
    assert early.wall_is_known()
    wall[0] = 0
    assert early.wall_is_known(), "it was told the time in this process"
    told = [False]
    waiting = SystemBootClock(synchronized=True, wall_us=lambda: FLOOR_US, is_synchronized=lambda: told[0])
    assert not waiting.wall_is_known()
    told[0] = True
    assert waiting.wall_is_known()
    assert clock_is_synchronized() in (True, False)


@pytest.mark.parametrize("text", ["someday", "2025-13-01"])
def test_a_floor_that_is_no_date_is_said(tmp_path: Path, text: str) -> None:
    from geartrain.errors import ConfigError
    from geartrain_edge.agent.config import read_config

    file = tmp_path / "agent.toml"
    file.write_text(f'device = "d1"\nflow = "a:b"\nstate = "s"\n[clock]\nfloor = "{text}"\n')
    with pytest.raises(ConfigError, match=r"agent\.toml: clock\.floor: "):
        read_config(str(file))


def test_what_waits_of_a_source_that_has_gone_is_dropped_and_counted() -> None:
    machine = Machine()
    untimed = Untimed({"doors": Reading, "heat": Reading}, machine, machine)
    for name, rows in (("doors", 3), ("heat", 2)):
        read = Batch([reading(at) for at in range(rows)], list(range(rows)), list(range(rows)), rows)
        untimed.hold((name, "d1"), read, 0)
    kept = {at: value for at, value in untimed.changes().items() if value is not None}
    again = Untimed({"heat": Reading}, machine, machine)
    assert again.restore(kept) == 3
    assert (again.count, again.holds(("heat", "d1"))) == (1, True)
    changes = again.changes()
    assert list(changes.values()) == [None]
    left = {at: value for at, value in kept.items() if at not in changes}
    assert Untimed({"heat": Reading}, machine, machine).restore(left) == 0
