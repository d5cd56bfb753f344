"""Sources of a user's own that break their contract: by `gear run`, by an agent, and by the reference.

What is wrong with one record is a dead letter at its birth; what is wrong with a read, or with the source, is
one `SourceError` that names the source and the split. Nothing else may come of it.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geartrain import Flow, Record, Source, Table
from geartrain.errors import SourceError
from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph
from geartrain.planning import make_plan
from geartrain.records.event_time import EARLIEST_TIME, END_OF_TIME, SECOND_US
from geartrain.runtime.opened import open_sources
from geartrain.source import Batch, Reject, Split
from geartrain.testing import run_flow
from geartrain_cloud.cli.inprocess import run_in_process
from tests.edge.agents import agent_of, run
from tests.edge.network import MemoryNet, NaiveIngest
from tests.reference.interpreter import interpret


class Level(Record):
    sensor: str
    level: float


class Other(Record):
    sensor: str


class Unspeakable:
    """A value that raises wherever it is looked at."""

    def __repr__(self) -> str:
        raise RuntimeError("nobody looks at me")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("nobody compares me")

    __hash__ = object.__hash__


class Hostile(Source[Any]):
    """One split that plays whatever it is given."""

    bounded: ClassVar[bool] = True
    replayable: ClassVar[bool] = True

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def open(self, device: str, step: str, out: Any) -> Any:
        return [HostileSplit(device, self.items)]


class HostileSplit:
    out_of_orderness_us = 0

    def __init__(self, name: str, items: Sequence[Any]) -> None:
        self.name, self._items = name, items

    async def read(self, position: int, limit: int) -> Batch:
        taken = list(enumerate(self._items))[position : position + limit]
        timed = [(n, *item) for n, item in taken if not isinstance(item, Reject)]
        end = position + len(taken)
        return Batch(
            [value for _, _, value in timed],
            [time for _, time, _ in timed],
            [number for number, _, _ in timed],
            end,
            [item for _, item in taken if isinstance(item, Reject)],
            ended=end == len(self._items),
        )

    async def close(self) -> None:
        pass


def graph_of(source: Any) -> Graph:
    flow = Flow("hostile")
    flow.source("levels", source, out=Level).sink("table", Table("levels"))
    return flow.graph()


def by_agent(source: Any) -> NaiveIngest:
    """What an agent in this process delivers of the source; raises what stops it."""
    plan = make_plan(graph_of(source), "edge")
    ingest = NaiveIngest(plan)
    with tempfile.TemporaryDirectory() as folder:
        run(agent_of(plan, Path(folder) / "spool.sqlite", MemoryNet(ingest)).run())
    return ingest


def by_gear_run(source: Any) -> dict[str, list[dict[str, Any]]]:
    """The tables of a whole run in one process; raises what stops it."""
    with tempfile.TemporaryDirectory() as folder:
        run_in_process(graph_of(source), Path(folder))
        with closing(sqlite3.connect(Path(folder) / "tables.sqlite")) as database:
            database.row_factory = sqlite3.Row
            names = ("levels", "dead_letters", "late")
            return {name: list(map(dict, database.execute(f"SELECT * FROM {name}"))) for name in names}


MOMENTS = (
    datetime(2020, 1, 1),  # noqa: DTZ001 - naive is what is tried
    datetime(2020, 1, 1, tzinfo=UTC),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=1))),
)
FAR_TIMES = (
    *(10**30, -(10**30), 2**63, -(2**63), -62_135_596_800_000_000),
    *(END_OF_TIME, END_OF_TIME - 1, EARLIEST_TIME, EARLIEST_TIME - 1),
)
GOOD_TIMES = st.integers(min_value=0, max_value=20).map(lambda n: n * SECOND_US)
TIMES: Any = st.one_of(
    GOOD_TIMES,
    GOOD_TIMES,
    st.sampled_from(
        (None, float("nan"), float("inf"), 1.5, 2.0, True, "2020-01-01", b"1", [], *MOMENTS, *FAR_TIMES)
    ),
    st.integers(),
    st.floats(),
)
VALUES = st.one_of(
    st.builds(Level, st.text(max_size=3), st.floats(allow_nan=False)),
    st.builds(Level, st.text(max_size=3), st.integers(-5, 5)),
    st.builds(Level, st.none() | st.integers(), st.none() | st.text(max_size=2)),
    st.sampled_from([None, 5, "x", Other("a"), {"sensor": "a", "level": 1.0}, object()]),
)


@st.composite
def plays(draw: Any) -> list[Any]:
    """Items of a split: (time, value) or a reject with the item's number."""
    count = draw(st.integers(0, 12))
    return [
        Reject(number, draw(st.sampled_from(["broken", "\udcff", "é"])), b"\xff", draw(TIMES))
        if draw(st.integers(0, 9)) == 0
        else (draw(TIMES), draw(VALUES))
        for number in range(count)
    ]


HYPOTHESIS = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


@HYPOTHESIS
@given(plays())
def test_what_is_wrong_with_a_record_is_a_dead_letter_and_nothing_else_is_lost(items: list[Any]) -> None:
    known = [
        item if not isinstance(item, Reject) else Reject(item.number, item.reason, item.raw, _valid(item))
        for item in items
    ]
    expected = interpret(graph_of(Hostile([])), {"levels": {"local": known}}, {"levels": 0})
    table = [
        (row.time, row.number, row.value.sensor, repr(row.value.level)) for row in expected.sinks["table"]
    ]
    dead = Counter((time, number) for _, time, _, number, _ in expected.dead.elements())
    late = Counter((time, number) for _, time, _, number, _ in expected.late.elements())
    assert len(table) + dead.total() + late.total() == len(items)

    tables = by_gear_run(Hostile(items))
    found = [
        (row["_event_time"], row["_origin_number"], row["sensor"], repr(row["level"]))
        for row in tables["levels"]
    ]
    assert sorted(found) == sorted(table)
    assert Counter((row["_event_time"], row["_origin_number"]) for row in tables["dead_letters"]) == dead
    assert Counter((row["_event_time"], row["_origin_number"]) for row in tables["late"]) == late

    ingest = by_agent(Hostile(items))
    sent = {
        channel: sorted((row[1], row[3]) for row in ingest.rows[channel])
        for channel in ("levels", DEAD_LETTERS, LATE)
    }
    assert sent["levels"] == sorted((time, number) for time, number, *_ in table)
    assert sent[DEAD_LETTERS] == sorted(dead.elements())
    assert sent[LATE] == sorted(late.elements())


def _valid(reject: Reject) -> int | None:
    time: Any = reject.event_time
    return time if type(time) is int and EARLIEST_TIME <= time < END_OF_TIME else None


def test_a_value_that_cannot_be_looked_at_is_a_dead_letter_too() -> None:
    unspeakable: Any = Unspeakable()
    results = run_flow(
        graph_of(Hostile([(5, unspeakable), (unspeakable, ONE), (5, Level("a", unspeakable))]))
    )
    assert results.tables["table"] == []
    reasons = sorted(letter.reason for letter in results.dead_letters)
    assert [reason[:60] for reason in reasons] == [
        "event time a Unspeakable that has no repr of split levels/lo",
        "expected a Level, got a Unspeakable that has no repr",
        "field level must be float, got a Unspeakable that has no rep",
    ]


ONE = Level("a", 1.0)
REASONS: list[tuple[Any, str]] = [
    (None, "event time None of split levels/local, record 0: it is a NoneType: give an int of micro"),
    (float("nan"), "event time nan of split levels/local, record 0: it is a float: give an int of micro"),
    (True, "event time True of split levels/local, record 0: it is a bool: give an int of micro"),
    (datetime(2020, 1, 1), "record 0: it has no zone, and it is a datetime: give an int"),  # noqa: DTZ001
    (
        datetime(2020, 1, 1, tzinfo=UTC),
        "record 0: it is a datetime: give an int of microseconds since 1970 UTC",
    ),
    (10**30, f"event time {10**30} of split levels/local, record 0: it is not in the years 100 to 2199"),
    (-62_135_596_800_000_000, "event time -62135596800000000 of split levels/local, record 0: it is not in"),
    (END_OF_TIME, "it is not in the years 100 to 2199: give an int of microseconds since 1970 UTC"),
]


@pytest.mark.parametrize(("time", "said"), REASONS, ids=[repr(time) for time, _ in REASONS])
def test_an_event_time_that_is_none_says_what_it_is_and_what_is_meant(time: Any, said: str) -> None:
    results = run_flow(graph_of(Hostile([(time, ONE)])))
    assert results.tables["table"] == []
    (letter,) = results.dead_letters
    assert (letter.step, letter.raw) == ("levels", b'{"sensor":"a","level":1.0}')
    assert said in letter.reason


class Breach(Source[Any]):
    """A source whose open and read are what a test says."""

    bounded: ClassVar[bool] = True

    def __init__(self, read: Callable[[int], Any], open_: Callable[[Any], Any] | None = None) -> None:
        self._read, self._open = read, open_
        self.name: Any = "s"
        self.bound: Any = 0

    def open(self, device: str, step: str, out: Any) -> Any:
        split = BreachSplit(self._read)
        split.name, split.out_of_orderness_us = self.name, self.bound
        return [split] if self._open is None else self._open(split)


class BreachSplit:
    name: Any = "s"
    out_of_orderness_us: Any = 0

    def __init__(self, read: Callable[[int], Any]) -> None:
        self._read = read

    async def read(self, position: int, limit: int) -> Any:
        return self._read(position)

    async def close(self) -> None:
        pass


def raises(error: BaseException) -> Callable[[Any], Any]:
    def call(_: Any) -> Any:
        raise error

    return call


def gives(*columns: Any, **more: Any) -> Callable[[int], Any]:
    return lambda position: Batch(*columns, **more)


def from_zero(position: int) -> Batch:
    """The numbers of each read begin at 0 again."""
    return Batch([ONE, ONE], [5, 5], [0, 1], position + 2)


READS: list[tuple[Callable[[int], Any], str]] = [
    (
        raises(ValueError("the wire is cut")),
        r"read\(0, \d+\) raised ValueError: the wire is cut \(.*, line \d+\)",
    ),
    (raises(SystemExit(3)), r"read\(0, \d+\) raised SystemExit: 3 \("),
    (lambda _: None, "read from position 0 returned None, but it must return a"),
    (lambda _: [ONE], "read from position 0 returned .*, but it must return a"),
    (gives(None, [], [], 1), "gave None as values: give a list"),
    (gives([ONE], [5], "0", 1), "gave '0' as numbers: give a list"),
    (gives([ONE, ONE], [5], [0], 1), "gave 2 values, 1 times and 1 numbers: give one each"),
    (gives([ONE], [5], [], 1), "gave 1 values, 1 times and 0 numbers: give one each"),
    (gives([ONE], [5], ["0"], 1), r"gave \['0'\] as numbers: give ints of 64 bits"),
    (gives([ONE], [5], [2**63], 1), r"gave \[9223372036854775808\] as numbers: give ints of 64 bits"),
    (gives([ONE], [5], [-1], 1), r"gave the numbers \[-1\]: they must ascend from 0 or more"),
    (gives([ONE, ONE], [5, 5], [1, 1], 2), r"gave the numbers \[1, 1\]: they must ascend"),
    (gives([ONE, ONE], [5, 5], [1, 0], 2), r"gave the numbers \[1, 0\]: they must ascend"),
    (
        from_zero,
        "read from position 2 gave the number 0 after 1: no two records of a split may have one number",
    ),
    (gives([ONE], [5], [0], None), "gave the position None: give an int, never less"),
    (gives([ONE], [5], [0], -1), "gave the position -1: give an int, never less"),
    (gives([ONE], [5], [0], 10**20), "gave the position 100000000000000000000: give an int"),
    (gives([ONE], [5], [0], 0), "gave rows and its position did not move"),
    (gives([], [], [], 1, ["bad"]), "gave 'bad' as a reject: give a Reject"),
    (gives([], [], [], 1, [Reject(None, "bad", b"")]), "gave a reject with the number None"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("read", "said"), READS, ids=[said[:40] for _, said in READS])
def test_a_read_against_the_contract_names_the_source_and_the_split(
    read: Callable[[int], Any], said: str
) -> None:
    for way in (by_gear_run, by_agent):
        with pytest.raises(SourceError, match=f"^source levels, split s: .*{said}"):
            way(Breach(read))


OPENS: list[tuple[Callable[[Any], Any], str]] = [
    (raises(KeyError("port")), r"source levels: open raised KeyError: 'port' \(.*line \d+\): mend Breach"),
    (raises(SystemExit()), "source levels: open raised SystemExit"),
    (lambda _: None, "source levels: open returned None, but it must return a list of splits: mend Breach"),
    (lambda _: "split", "source levels: open returned 'split', but it must return a list of splits"),
    (lambda split: split, "source levels: open returned .*, but it must return a list of splits"),
    (lambda _: [5], "source levels: open returned 5, which is no split: it lacks name"),
    (lambda split: [split, split], "two splits are named 's'"),
]


@pytest.mark.parametrize(("open_", "said"), OPENS, ids=[said[:40] for _, said in OPENS])
def test_an_open_against_the_contract_names_the_source(open_: Callable[[Any], Any], said: str) -> None:
    for way in (by_gear_run, by_agent):
        with pytest.raises(SourceError, match=said):
            way(Breach(gives([], [], [], 0, ended=True), open_))


@pytest.mark.parametrize(
    ("name", "bound", "said"),
    [
        (None, 0, "the name of a split is None, but it must be a text"),
        ("", 0, "the name of a split is ''"),
        ("\udcff", 0, "the name of a split is"),
        ("s", -1, "split s: out_of_orderness_us is -1, but it must be an int of microseconds, 0 or more"),
        ("s", 1.5, "split s: out_of_orderness_us is 1.5"),
        ("s", 10**20, "split s: out_of_orderness_us is 100000000000000000000"),
    ],
)
def test_a_split_without_a_name_or_a_bound_is_refused(name: Any, bound: Any, said: str) -> None:
    source = Breach(gives([], [], [], 0, ended=True))
    source.name, source.bound = name, bound
    with pytest.raises(SourceError, match=f"^source levels.*{re.escape(said)}"):
        by_gear_run(source)


JUNK = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from([object(), range(3), ONE]),
    st.lists(
        st.one_of(
            st.none(), st.integers(), st.just(ONE), st.builds(Reject, st.integers(), st.none(), st.none())
        )
    ),
)


@HYPOTHESIS
@given(st.lists(st.tuples(JUNK, JUNK, JUNK, JUNK, JUNK, JUNK), max_size=3))
def test_any_read_at_all_is_taken_or_is_a_source_error(columns: list[Any]) -> None:
    given_: list[Any] = [Batch(*six) for six in columns]

    def read(position: int) -> Any:
        return given_.pop(0) if given_ else Batch([], [], [], position, ended=True)

    said = "source levels, split s: "
    try:
        run_flow(graph_of(Breach(read)))
    except SourceError as error:
        said = str(error)
    assert said.startswith("source levels, split s: ")


def test_a_close_that_raises_is_logged_and_the_others_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    class Closing(BreachSplit):
        async def close(self) -> None:
            closed.append(self.name)
            raise OSError("it sticks")

    first, second = Closing(gives([], [], [], 0, ended=True)), Closing(gives([], [], [], 0, ended=True))
    second.name = "t"
    run_flow(graph_of(Breach(gives(), lambda _: [first, second])))
    assert closed == ["s", "t"]
    assert "source levels, split s: close raised OSError: it sticks (" in caplog.text


def test_a_read_that_is_no_coroutine_is_taken_as_it_is() -> None:
    class Plain(BreachSplit):
        def read(self, position: int, limit: int) -> Any:
            return Batch([ONE], [5], [0], 1, ended=True)

    results = run_flow(graph_of(Breach(gives(), lambda _: [Plain(gives())])))
    assert results.tables["table"] == [(5, ONE)]


def test_a_position_that_is_read_again_may_give_its_numbers_again() -> None:
    (opened,) = open_sources(graph_of(Hostile([(n, ONE) for n in range(4)])), "d1")
    split: Split = opened.split

    async def numbers() -> list[list[int]]:
        return [list((await split.read(position, 2)).numbers) for position in (0, 2, 0, 1, 3)]

    assert asyncio.run(numbers()) == [[0, 1], [2, 3], [0, 1], [1, 2], [3]]
