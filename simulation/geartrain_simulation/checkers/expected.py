"""Whether the log holds the rows that each device should have sent: all, once, in order, none late.

One of the checkers of the end. Guarantees: a row that is missing, doubled, foreign or out of its order is a
breach, but for those that the log itself says were dropped or quarantined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar

from geartrain.graph.graph import DEAD_LETTERS, LATE
from geartrain_simulation.checkers.accepted import Accepted
from geartrain_simulation.checkers.balance import Logged, dropped_by, quarantined_by
from geartrain_simulation.stores.segments import LoggedRow, Row
from geartrain_simulation.stores.stores import LedgerBook

T = TypeVar("T")
Due = Mapping[tuple[str, str], Mapping[str, Sequence[Row]]]
"""By (device, flow) and channel, the rows in order."""
Where = tuple[str, str, str]
"""(device, flow, channel)."""


class Expected:
    """The rows that are due, by device, flow and channel."""

    def __init__(
        self,
        breach: Callable[[str, str], NoReturn],
        ledger: LedgerBook,
        accepted: Mapping[tuple[str, str], Accepted],
        excused: set[str],
    ) -> None:
        """`excused`: devices whose rows may count as overtaken."""
        self.breach, self._ledger, self._accepted, self._excused = breach, ledger, accepted, excused

    def check(self, expected: Due, logged: Sequence[Logged]) -> None:
        """Compare what the log holds with `expected`."""
        found: dict[Where, list[LoggedRow]] = {}
        for one in logged:
            where = one.entry.device, one.entry.flow, one.entry.channel
            found.setdefault(where, []).extend(one.rows)
            if any(row.device != one.entry.device for row in one.rows):
                self.breach("entry", f"entry {one.entry.number} of {one.entry.channel} holds another's rows")
        wanted = {(*place, channel): rows for place, by in expected.items() for channel, rows in by.items()}
        for place in sorted(wanted.keys() | {place for place in found if place[:2] in expected}):
            device, flow, channel = place
            came = found.get(place, [])
            if self._accepted[device, flow].may_repeat:
                self._arrived(place, wanted.get(place, ()), came)
                continue
            self._compare_place(place, wanted.get(place, ()), came)
            if device not in self._excused and any(row.overtaken for row in came):
                self.breach("in time", f"{device} {channel} has rows that count as overtaken")
            if any(row.late != (channel == LATE) for row in came):
                self.breach(
                    "in time", f"{device} {channel} has rows that count as late, or late ones that do not"
                )

    def _arrived(self, place: Where, wanted: Sequence[Row], found: Sequence[LoggedRow]) -> None:
        """Of a device that lost its spool or had an old one, each row is there, or declared as dropped."""
        lost = _without(wanted, [one.row for one in found])
        if lost and not dropped_by(self._ledger.all_entries(), *place):
            self.breach("at least once", f"{' '.join(place)}: {len(lost)} rows lost, first {lost[:1]}")

    def _compare_place(self, place: Where, wanted: Sequence[Row], found: Sequence[LoggedRow]) -> None:
        where, channel = " ".join(place), place[2]
        due, came = _by_step(channel, wanted), _by_step(channel, [one.row for one in found])
        missing = dropped_by(self._ledger.all_entries(), *place)
        missing += quarantined_by(self._ledger, *place)
        lost = 0
        for step in sorted(due.keys() | came.keys()):
            lost += self._compare(
                f"{where} {step}", due.get(step, []), came.get(step, []), may_miss=missing > 0
            )
        if lost != missing:
            self.breach("exactly once", f"{where}: {lost} rows lost, {missing} declared as dropped")

    def _compare(self, where: str, wanted: list[Row], found: list[Row], *, may_miss: bool) -> int:
        """How many rows are missing; a breach where any is doubled, foreign or out of order."""
        if found == wanted:
            return 0
        lost = _without(wanted, found)
        more = _without(found, wanted)
        if more or (lost and not may_miss):
            self.breach(
                "exactly once",
                f"{where}: {len(lost)} of {len(wanted)} rows lost, {len(more)} doubled or foreign; "
                f"first lost {lost[:1]}, first other {more[:1]}",
            )
        if found != _without(wanted, lost):
            self.breach("in order", f"{where}: {len(found)} rows are there, but not in their order")
        return len(lost)


def _without(rows: Sequence[T], others: Sequence[T], key: Callable[[T], object] = repr) -> list[T]:
    """The rows that are not among the others, each as often as it is missing there."""
    counts: dict[object, int] = {}
    for other in others:
        counts[key(other)] = counts.get(key(other), 0) + 1
    missing = []
    for row in rows:
        if counts.get(key(row), 0) > 0:
            counts[key(row)] -= 1
        else:
            missing.append(row)
    return missing


def _by_step(channel: str, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of a channel in order: those of each split, for a merge gives them none between these; dead
    letters by the step that refused, because each step hands them over by the batch.
    """
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row.fields[0] if channel == DEAD_LETTERS else row.name, []).append(row)
    return parts
