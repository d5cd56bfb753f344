"""From a record at the end of a flow back to the records of the log that it was made of.

In a short-lived process, over the app's own plan. An origin leads through steps without state by itself.
Where a step keeps state, its input is made again from the log, and the records of the key that can have had a
part are taken. Guarantees: no record that had a part is missing, as long as the log holds it and no note says
otherwise. Of a state that a user's code keeps, all records of the key up to the result are taken: which of
them the code has looked at, nobody knows.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from geartrain.graph.graph import Step
from geartrain.operators.process import Process
from geartrain.operators.union import UNION
from geartrain.planning.mixed import claimable
from geartrain.planning.properties import derive_properties
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME, format_time
from geartrain.records.keys import decode_key
from geartrain_cloud.explaining.errors import ExplainError
from geartrain_cloud.explaining.logged import LoggedFlow, LoggedRows
from geartrain_cloud.explaining.places import (
    Place,
    merged_from,
    pair_of,
    parents,
    place_of,
    timer_key,
    window_of,
)
from geartrain_cloud.ports import Entry
from geartrain_cloud.spark.claims import key_of

RECORDS_MAX = 100_000
"""Records of one stream that are held as those that had a part."""
_SAME = frozenset({"map", "filter", "key_by", "log", "iterate", "branch", "order", "deal"})
_CHILD = frozenset({"flat_map", "stateless", "copies"})
_PAIR = frozenset({"interval_join", "window_join"})
_WINDOW = frozenset(
    {"window_aggregate", "window_reduce", "window_fold", "partial_aggregate", "merge_partials"}
)
_RUNNING = frozenset({"aggregate", "reduce", "fold"})


Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Made:
    """How a step made what is explained. records: of its inputs, those that had a part."""

    step: str
    operator: str
    says: str
    records: int


@dataclass
class Trace:
    """What was found. made: by step, the last step first; places: by step with state, those of its results
    that had a part; found: rows of the log, in its order; counts: by channel, how many had a part; whole:
    whether `found` has all of them; notes: what it does not know.
    """

    made: list[Made] = field(default_factory=list)
    places: dict[str, set[Place]] = field(default_factory=dict)
    found: list[LoggedRows] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    whole: bool = True
    notes: list[str] = field(default_factory=list)


class Tracer:
    """Finds what one record was made of."""

    def __init__(self, logged: LoggedFlow) -> None:
        self._logged, self._graph = logged, logged.plan.graph
        self._wanted: dict[str, set[Place]] = {}
        self._sought: dict[str, set[Place]] = {}
        self._trace = Trace()
        self._waited: list[tuple[Step, int]] = []

    def trace(self, stream: str, place: Place) -> Trace:
        """What the record at `place` of a stream was made of; raises `ExplainError` and `LedgerError`."""
        self._wanted = {stream: {place}}
        self._follow(stream)
        if self._want_given():
            self._follow(stream)
        self._note_moved()
        self._note_former()
        return self._trace

    def _follow(self, stream: str) -> None:
        """Go from what is wanted up to the log."""
        steps = self._logged.above(stream)
        for step in reversed(self._graph.steps):
            wanted = self._wanted.pop(step.id, None) if step.id in steps else None
            if wanted:
                if step.operator.stateful:
                    self._trace.places.setdefault(step.id, set()).update(wanted)
                self._above(step, wanted)
        for entry, places in self._wanted.items():
            self._sought.setdefault(self._logged.channel_of(entry), set()).update(places)
        self._wanted = {}
        self._find()

    def _want_given(self) -> bool:
        """Want what the data centre had fed to steps before devices took their state and made what was found;
        whether that is anything.
        """
        plan, taken = self._logged.plan, self._logged.taken
        known, claimed = derive_properties(plan.graph), claimable(plan.graph) if taken else {}
        last: dict[str, dict[bytes, Place]] = {}
        for one in self._trace.found:
            channel = plan.channel(one.entry.channel)
            above = plan.graph.ancestors(channel.stream)
            for step in (step for step in claimed if step in taken and step in above):
                had = {found.device for found in taken[step] if _is_before(found.entry, one.entry)}
                domain = known[channel.entry].domain if channel.entry in known else None
                if not had.intersection(one.devices) or not _keeps_all(plan.graph[step]):
                    continue
                if domain != claimed[step]:
                    self._note(
                        f"{_devices(had)} had taken what step {step} keeps from the data centre: which "
                        "records had a part in that is not known"
                    )
                    continue
                keys = one.column(channel.schema, domain)
                of_step = last.setdefault(step, {})
                for value, device, place in zip(keys, one.devices, _places(one), strict=True):
                    if device in had and (key := key_of(value)) is not None:
                        of_step[key] = max(of_step.get(key, place), place)
        for step, of_keys in last.items():

            def had_part(key: bytes, place: Place, _: Any, of_keys: dict[bytes, Place] = of_keys) -> bool:
                return key in of_keys and place <= of_keys[key]

            count = self._collect(plan.graph[step].inputs[0].step, had_part)
            self._say(
                plan.graph[step], f"of the state that a device has taken of it: {_keys(of_keys)}", count
            )
        return bool(last)

    def _note_moved(self) -> None:
        """Say what devices have fed to steps themselves, which the log does not have."""
        found = sum(self._trace.counts.values())
        for step, count in self._waited:
            if found < count and (left := self._logged.left(step.id)):
                self._note(
                    f"{_devices({one.device for one in left})} has left records that waited in step "
                    f"{step.id} to the data centre: what waited is in that state, and not in the log"
                )
        taken, plan = self._logged.taken, self._logged.plan
        for one in self._trace.found:
            above = plan.graph.ancestors(plan.channel(one.entry.channel).stream)
            for name, several in taken.items():
                had = {moved.device for moved in several if _is_before(moved.entry, one.entry)}
                if name in above and (mine := had.intersection(one.devices)):
                    self._note(
                        f"{_devices(mine)} had taken step {name} with its state: what it read itself from "
                        "there on is not in the log"
                    )

    def _note_former(self) -> None:
        """Say how many rows a former revision has read whose type the present one cannot take."""
        for channel, entries in sorted(self._logged.unread.items()):
            self._note(
                f"{sum(entries.values()):,} records of {channel} in the log are of a former type, and none "
                "of the present one can be made of them: which of them a former revision made this row of "
                "is not known"
            )

    def _note_left(self, step: Step, keys: Collection[bytes]) -> None:
        if left := self._logged.left(step.id, keys):
            self._note(
                f"{_devices({one.device for one in left})} has left what step {step.id} kept of "
                f"{_keys(keys)}: what it had read itself before is in that state, and not in the log"
            )

    def _want(self, stream: str, places: Iterable[Place]) -> None:
        self._wanted.setdefault(stream, set()).update(places)

    def _say(self, step: Step, says: str, records: int) -> None:
        self._trace.made.append(Made(step.id, step.operator.kind, says, records))

    def _note(self, text: str) -> None:
        if text not in self._trace.notes:
            self._trace.notes.append(text)

    def _above(self, step: Step, wanted: set[Place]) -> None:
        """Want those records of the inputs of a step of which `wanted` of its output were made."""
        kind, inputs = step.operator.kind, [one.step for one in step.inputs]
        if not step.operator.replayable:
            self._note(
                f"step {step.id} depends on more than its records (its clock, chance, or the order in which "
                "they came): run again, it may give something else"
            )
        if kind == UNION:  # a record came by one of the ways, and no other has its place
            for way in inputs:
                self._want(way, wanted)
        elif kind in _SAME or kind in _CHILD:
            self._single(step, wanted)
        elif kind == "merge":
            for port, place in (found for _, found in _readable(wanted, merged_from)):
                self._want(inputs[port], [place])
            self._say(step, "each of one record, of one of its inputs", len(wanted))
        elif kind in _PAIR:
            self._pairs(step, wanted)
        elif kind == "broadcast":
            self._broadcast(step, wanted)
        elif kind in _WINDOW:
            self._windows(step, wanted)
        elif kind in _RUNNING or isinstance(step.operator, Process):
            self._running(step, wanted)
        else:
            raise ExplainError(f"step {step.id}: nobody knows how a {kind} leads back to its records")

    def _single(self, step: Step, wanted: set[Place]) -> None:
        is_same = step.operator.kind in _SAME
        if step.operator.kind == "order":
            self._waited.append((step, len(wanted)))
        above = wanted if is_same else {parent for place in wanted for parent in parents(place)}
        self._want(step.inputs[0].step, above)
        self._say(step, "each of one record", len(wanted))

    def _pairs(self, step: Step, wanted: set[Place]) -> None:
        left, right = (one.step for one in step.inputs)
        lone = 0
        for _, (first, second) in _readable(wanted, lambda place: pair_of(place[3])):
            self._want(left, [first])
            if second is None:
                lone += 1
            else:
                self._want(right, [second])
        self._waited.append((step, 2 * len(wanted) - lone))
        without = f"; {lone:,} of {left} met no record of {right}" if lone else ""
        self._say(step, f"each of one record of {left} and one of {right}{without}", 2 * len(wanted) - lone)

    def _broadcast(self, step: Step, wanted: set[Place]) -> None:
        main, small = (one.step for one in step.inputs)
        last_us = max(place[0] for place in wanted)
        self._want(main, wanted)
        count = self._collect(small, lambda _, place, __: place[0] <= last_us)
        self._say(step, f"of records of {main}, and of all of {small} up to their times", len(wanted) + count)

    def _windows(self, step: Step, wanted: set[Place]) -> None:
        spans: dict[bytes, list[tuple[int, int]]] = {}
        for key, start, last in self._results(step, wanted):
            spans.setdefault(key, []).append((start, last))
        if not spans:  # devices have made them
            return
        if step.operator.kind == "merge_partials":

            def had_part(key: bytes, place: Place, value: Any) -> bool:
                start = msgspec.structs.astuple(value)[1]
                return any(start == first and place[0] == last for first, last in spans.get(key, ()))

            says = "each of the partial aggregates that devices made of a window"
        else:

            def had_part(key: bytes, place: Place, value: Any) -> bool:
                return any(first <= place[0] <= last for first, last in spans.get(key, ()))

            says = "each of the records of a key in a window"
        count = self._collect(step.inputs[0].step, had_part)
        self._say(step, f"{says}: {_spans(spans)}", count)
        self._note_left(step, spans)

    def _results(self, step: Step, wanted: set[Place]) -> Iterator[tuple[bytes, int, int]]:
        """Key, start and event time of the windows whose results are wanted. Only a partial aggregate gives
        none of them in its places: it is run again.
        """
        if step.operator.kind != "partial_aggregate":
            for place, (key, start) in _readable(wanted, lambda place: window_of(place[3])):
                yield key, start, place[0]
            return
        for batch in self._logged.stream(step.id):
            for row, key in enumerate(batch.keys or ()):
                if place_of(batch, row) in wanted:
                    yield key, msgspec.structs.astuple(batch.values[row])[1], batch.times[row]

    def _running(self, step: Step, wanted: set[Place]) -> None:
        """Results of a state: of all that its key had met, up to the record or the timer that gave them."""
        stream = step.inputs[0].step
        last: dict[bytes, Place] = {}
        fired = {place for place in wanted if place[1] == step.id and place[2] == 0}
        for (time, *_), key in _readable(fired, lambda place: timer_key(place[3])):
            last[key] = max(last.get(key, _least(time)), (time + 1, "", 0, b""))
        triggers = {parent for place in wanted - fired for parent in parents(place)}
        if triggers:
            for batch in self._logged.stream(stream):
                for row, key in enumerate(batch.keys or ()):
                    place = place_of(batch, row)
                    if place in triggers:
                        last[key] = max(last.get(key, place), place)
        operator = step.operator
        if isinstance(operator, Process) and operator.task.state is None and not operator.timed:
            self._want(stream, triggers)
            self._say(step, "each of one record: the task keeps nothing", len(wanted))
            return
        arrival = isinstance(operator, Process) and operator.order == "arrival"

        def had_part(key: bytes, place: Place, value: Any) -> bool:
            return key in last and (arrival or place <= last[key])

        count = self._collect(stream, had_part)
        by = f" and {len(fired):,} timers" if fired else ""
        says = "of the state of a key: all its records" + ("" if arrival else " up to the result")
        self._say(step, f"{says}{by}: {_keys(last)}", count)
        self._note_left(step, last)

    def _collect(self, stream: str, had_part: Callable[[bytes, Place, Any], bool]) -> int:
        """Want those records of a stream that had a part, at most the canonically last `RECORDS_MAX`; how
        many there are.
        """
        count, held = 0, list[Place]()
        for batch in self._logged.stream(stream):
            keys = batch.keys or [b""] * len(batch)
            for row, (key, value) in enumerate(zip(keys, batch.values, strict=True)):
                place = place_of(batch, row)
                if had_part(key, place, value):
                    count += 1
                    held.append(place)
            if len(held) > 2 * RECORDS_MAX:
                held = heapq.nlargest(RECORDS_MAX, held)
        if count > RECORDS_MAX:
            held = heapq.nlargest(RECORDS_MAX, held)
            self._trace.whole = False
            self._note(
                f"{count:,} records of {stream} had a part; only the last {RECORDS_MAX:,} were followed"
            )
        self._want(stream, held)
        return count

    def _find(self) -> None:
        """Look the wanted rows of channels up in the log."""
        wanted, trace, left = self._sought, self._trace, RECORDS_MAX
        trace.found, trace.counts = [], {}
        for chunk in self._logged.chunks(wanted):
            for logged in chunk.rows:
                places = wanted[logged.entry.channel]
                rows = [row for row, place in enumerate(_places(logged)) if place in places]
                if rows:
                    channel = logged.entry.channel
                    trace.counts[channel] = trace.counts.get(channel, 0) + len(rows)
                    trace.whole = trace.whole and len(rows) <= left
                    trace.found.append(logged.chosen(rows[:left]))
                    left -= min(left, len(rows))
        for channel, entry in self._logged.removed.items():
            clock = entry.clock(entry.clocks)
            since = "" if clock == START_OF_TIME else f", when the clock stood at {_moment(clock)}"
            self._note(
                f"retention has removed records of {channel} up to entry {entry.number:,} of partition "
                f"{entry.partition}{since}: what they had a part in is not known any more"
            )


def _readable(places: Iterable[Place], read: Callable[[Place], Read]) -> Iterator[tuple[Place, Read]]:
    """Places of a step's results, and what `read` makes of them.

    Where the path of a child may have been extended in two ways, one of its parents is no place that the step
    gives. Raises `ExplainError` where none is.
    """
    error, count = None, 0
    for place in places:
        try:
            found = read(place)
        except ExplainError as refusal:
            error = refusal
        else:
            count += 1
            yield place, found
    if error is not None and not count:
        raise error


def _is_before(entry: Entry, other: Entry) -> bool:
    return entry.partition == other.partition and entry.number < other.number


def _keeps_all(step: Step) -> bool:
    """Whether any record of a key may have a part in what a step puts out for it."""
    return step.operator.kind in _RUNNING or isinstance(step.operator, Process)


def _devices(names: Collection[str]) -> str:
    shown, more = sorted(names)[:3], len(names) - 3
    return f"device {', '.join(shown)}" + (f" and {more:,} more" if more > 0 else "")


def _least(time: int) -> Place:
    return (time, "", 0, b"")


def _places(logged: LoggedRows) -> Iterator[Place]:
    rows = logged.rows
    paths = rows.paths if rows.paths is not None else [b""] * len(rows)
    return zip(rows.times, rows.names, rows.numbers, paths, strict=True)


def _keys(keys: Iterable[bytes]) -> str:
    shown = [ascii(decode_key(key))[:100] for key in sorted(keys)]
    more = f" and {len(shown) - 3:,} more" if len(shown) > 3 else ""
    return f"key {', '.join(shown[:3])}{more}" if shown else "no key was found"


def _spans(spans: dict[bytes, list[tuple[int, int]]]) -> str:
    every = [(first, last) for several in spans.values() for first, last in several]
    first, last = min(one for one, _ in every), max(one for _, one in every)
    return f"{_keys(spans)}, from {_moment(first)} to {_moment(last)}"


def _moment(time: int) -> str:
    if time == START_OF_TIME:
        return "the beginning of time"
    return "the end of time" if time >= END_OF_TIME - 1 else format_time(time)
