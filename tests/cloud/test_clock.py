"""Laws of the clock: monotone, the minimum over the live devices, the same when rebuilt from the log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.records.event_time import START_OF_TIME
from geartrain_cloud.ingest.clock import SourceClock
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import EntryKind
from tests.cloud.fleet import TestDevice, make_config, recovered, running

NAMES = ("device-1", "device-2", "device-3")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("observe"), st.sampled_from(NAMES), st.integers(-50, 50)),
        st.tuples(st.sampled_from(["exclude", "readmit"]), st.sampled_from(NAMES), st.just(0)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(STEPS)
def test_clock_is_the_monotone_minimum_over_the_live(steps: list[tuple[str, str, int]]) -> None:
    clock = SourceClock()
    model: dict[str, int] = {}
    away: dict[str, int] = {}
    highest = START_OF_TIME
    for step, device, watermark in steps:
        before = clock.value
        if step == "assign":
            if device not in model and device not in away:
                model[device] = START_OF_TIME
                clock.assign(device)
        elif step == "exclude":
            if device in model:
                away[device] = model.pop(device)
                assert clock.exclude(device) == (clock.value != before)
        elif step == "readmit":
            if device in away:
                model[device] = away.pop(device)
                assert clock.readmit(device) == (clock.value != before)
        elif device in model:
            model[device] = max(model[device], watermark)
            assert clock.observe(device, watermark) == (clock.value != before)
        highest = max(highest, min(model.values(), default=START_OF_TIME))
        assert clock.value == highest >= before
        assert clock.devices == sorted([*model, *away])
        assert clock.excluded == sorted(away)
        assert all(clock.is_excluded(d) for d in away)
        assert clock.missing() == sorted(d for d, w in model.items() if w == START_OF_TIME)
        lowest = min(model.values(), default=START_OF_TIME)
        assert clock.holding() == sorted(d for d, w in model.items() if w == lowest)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), st.integers(-50, 50), min_size=1), st.integers(-60, 60))
def test_rebuilt_clock_never_lies_below_the_log(watermarks: dict[str, int], logged: int) -> None:
    clock = SourceClock(logged)
    for device, watermark in watermarks.items():
        clock.assign(device, watermark)
    clock.settle()
    assert clock.value == max(logged, min(watermarks.values()))


MOVES = st.lists(
    st.tuples(
        st.sampled_from(NAMES[:2]), st.sampled_from(["rows", "advance", "restart"]), st.integers(0, 30)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=20, deadline=None)
@given(MOVES)
def test_log_alone_gives_the_clock_back(moves: list[tuple[str, str, int]]) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(check_replay(Path(folder), moves))


async def check_replay(folder: Path, moves: list[tuple[str, str, int]]) -> None:
    config = make_config(folder, NAMES[:2], group_commit_ms=1)
    devices = {name: TestDevice(name, f"ep-{name}"[:8].encode()) for name in NAMES[:2]}
    at = 0
    while at < len(moves):
        async with running(config) as world:
            for device in devices.values():
                if not device.seq:
                    world.net.deliver(device.topic, device.schemas())
                    await world.net.acked(device)
            while at < len(moves):
                name, move, amount = moves[at]
                at += 1
                if move == "restart":
                    break
                device = devices[name]
                device.time += 0 if move == "rows" else amount
                payload = device.quotes(1.0, step=amount) if move == "rows" else device.advance(device.time)
                world.net.deliver(device.topic, payload)
                await world.net.acked(device)
            running_clocks = {
                place: p.clocks["quotes"].value
                for place, p in world.ingest._started().known.partitions.items()
            }
        known = await recovered(config)
        assert {place: p.clocks["quotes"].value for place, p in known.partitions.items()} == running_clocks
        for (flow, index), partition in known.partitions.items():
            entries = LogReader(folder).entries(flow, str(index), 0, partition.number)
            clocks = [entry.clock(["quotes"]) for entry in entries]
            assert clocks == sorted(clocks)
            assert (
                clocks[-1]
                == partition.clocks["quotes"].value
                == min(d.time if d.seq > 1 else START_OF_TIME for d in devices.values())
            )
            assert {e.device for e in entries if e.kind is EntryKind.ASSIGNED} == set(NAMES[:2])
