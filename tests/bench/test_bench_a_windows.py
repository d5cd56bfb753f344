"""A: JSON bytes, parsed, filtered, mapped, and the mean of each of 1,000 keys in tumbling windows of 10 s.

One record a second of each key. Neither streamz nor reactivex knows event time, so their last step is the
windowing of the hand-written loop. Readings are multiples of 1/4, so that a sum of floats is exact however it
is made, and all contenders must give the same means.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from geartrain import Flow, Record, Table, agg, tumbling
from geartrain.planning import Plan, make_plan
from geartrain.records.event_time import SECOND_US
from tests.bench import peers
from tests.bench.at_the_edge import Given
from tests.bench.contest import AGENT, RUNTIME, Contest
from tests.bench.harness import scaled

KEYS = 1_000
RECORDS = max(1, scaled(1_000_000) // (10 * KEYS)) * 10 * KEYS
WINDOW_US = 10 * SECOND_US
START_US = 1_700_000_000 * SECOND_US


class Reading(Record):
    """What a sensor sends."""

    sensor: str
    time: int
    celsius: float


class Mean(Record):
    """Of the readings of a sensor in one window."""

    sensor: str
    window_end: int
    celsius: float


_decode = msgspec.json.Decoder(Reading).decode


def warm(reading: Reading) -> bool:
    """The filter: about 19 of 20 pass."""
    return reading.celsius >= 1.0


def calibrated(reading: Reading) -> Reading:
    """The map."""
    return Reading(reading.sensor, reading.time, reading.celsius + 0.5)


def lines(count: int) -> list[bytes]:
    """One reading a line, sensor by sensor, second by second."""
    rng = random.Random(1)
    return [
        b'{"sensor":"sensor-%03d","time":%d,"celsius":%s}'
        % (n % KEYS, START_US + n // KEYS * SECOND_US, str(rng.randrange(80) / 4).encode())
        for n in range(count)
    ]


class Windows:
    """The hand-written windowing: one dictionary of lists, emptied when time has passed the window's end."""

    def __init__(self) -> None:
        self._end, self._values = 0, dict[str, list[float]]()

    def add(self, reading: Reading) -> Iterator[Mean]:
        """Take a reading; gives the means of the window before where it begins a new one."""
        if reading.time >= self._end:
            yield from self.close()
            self._end = reading.time // WINDOW_US * WINDOW_US + WINDOW_US
        values = self._values.get(reading.sensor)
        if values is None:
            self._values[reading.sensor] = [reading.celsius]
        else:
            values.append(reading.celsius)

    def close(self) -> list[Mean]:
        """The means of the window at hand."""
        values, self._values = self._values, {}
        return [Mean(sensor, self._end, math.fsum(found) / len(found)) for sensor, found in values.items()]


def by_hand(rows: Sequence[bytes]) -> list[Mean]:
    """The loop that one would write."""
    out: list[Mean] = []
    end, open_values = 0, dict[str, list[float]]()
    for row in rows:
        reading = _decode(row)
        if not warm(reading):
            continue
        reading = calibrated(reading)
        if reading.time >= end:
            out += [Mean(s, end, math.fsum(v) / len(v)) for s, v in open_values.items()]
            open_values = {}
            end = reading.time // WINDOW_US * WINDOW_US + WINDOW_US
        values = open_values.get(reading.sensor)
        if values is None:
            open_values[reading.sensor] = [reading.celsius]
        else:
            values.append(reading.celsius)
    return out + [Mean(s, end, math.fsum(v) / len(v)) for s, v in open_values.items()]


def parsed(rows: Sequence[bytes]) -> tuple[list[int], list[Any]]:
    """The times and readings of some lines, as a source gives them."""
    readings = list(map(_decode, rows))
    return [reading.time for reading in readings], readings


def plan_of(rows: Sequence[bytes]) -> Plan:
    """The same as a flow, all of it on the device."""
    return plan_over(rows, parsed)


def plan_over(rows: Sequence[Any], make: Callable[[Sequence[Any]], tuple[list[int], list[Any]]]) -> Plan:
    """The flow over rows that `make` turns into times and readings."""
    flow = Flow("means")
    readings = flow.source("readings", Given(rows=rows, make=make), out=Reading, partitioned_by="sensor")
    ready = readings.filter(warm).map(calibrated, keeps=["sensor"]).key_by("sensor")
    means = ready.window(tumbling(timedelta(seconds=10))).aggregate(
        "means", out=Mean, celsius=agg.mean("celsius")
    )
    means.sink("out", Table("means", key=("sensor", "window_end")))
    return make_plan(flow.graph(), "edge")


def _bytewax(rows: Sequence[bytes]) -> list[Mean]:
    from bytewax.operators import windowing

    # Its watermark moves with the system clock too, so that a stall makes records late: that one is stopped.
    stopped = datetime.now(UTC)
    clock: Any = windowing.EventClock(
        lambda reading: datetime.fromtimestamp(reading.time / SECOND_US, UTC),
        timedelta(0),
        now_getter=lambda: stopped,
        to_system_utc=lambda time: None,
    )
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    windower = windowing.TumblingWindower(length=timedelta(seconds=10), align_to=epoch)

    def appended(values: list[float], reading: Reading) -> list[float]:
        values.append(reading.celsius)
        return values

    def averaged(item: tuple[str, tuple[int, list[float]]]) -> Mean:
        sensor, (window, values) = item
        return Mean(sensor, (window + 1) * WINDOW_US, math.fsum(values) / len(values))

    def build(op: Any, stream: Any) -> Any:
        readings = op.filter("warm", op.map("parse", stream, _decode), warm)
        keyed = op.key_on("key", op.map("calibrate", readings, calibrated), lambda r: r.sensor)
        windows = windowing.fold_window("mean", keyed, clock, windower, list, appended, list.__add__)
        return op.map("average", windows.down, averaged)

    return peers.through_bytewax(rows, build)


def _streamz(rows: Sequence[bytes]) -> list[Mean]:
    windows = Windows()
    out = peers.through_streamz(
        rows, lambda s: s.map(_decode).filter(warm).map(calibrated).map(windows.add).flatten()
    )
    return out + windows.close()


def _reactivex(rows: Sequence[bytes]) -> list[Mean]:
    windows = Windows()
    steps = [peers.rx("map", _decode), peers.rx("filter", warm), peers.rx("map", calibrated)]
    out = peers.through_reactivex(rows, *steps, peers.rx("flat_map", lambda r: list(windows.add(r))))
    return out + windows.close()


def test_means_of_windows(tmp_path: Path) -> None:
    contest = Contest(
        "A: 10 s means of 1,000 keys",
        RECORDS,
        lines(RECORDS),
        by_hand,
        plan_of,
        "means",
        {"bytewax": _bytewax, "streamz": _streamz, "reactivex": _reactivex},
        frozenset({"reactivex"}),
    )
    goals = {RUNTIME: {"loop": 0.7, "bytewax": 4.0}, AGENT: {RUNTIME: 0.5}}
    means = contest.run(tmp_path, goals, lambda mean_: (mean_.window_end, mean_.sensor))
    assert len(means) == RECORDS // 10
