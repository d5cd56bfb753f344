"""A source of given records for tests, with sentinels that crash a run or end it early.

Stands in the place of a sensor or a file. Guarantees: the same items at the same positions in every run, so
that a resumed run can be compared with an undisturbed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar, Final, TypeVar

from geartrain.declarations.source import Batch, Reject, Source, Split
from geartrain.errors import GeartrainError

T = TypeVar("T")


class _Sentinel:
    def __init__(self, name: str, doc: str) -> None:
        self._name, self.__doc__ = name, doc

    def __repr__(self) -> str:
        return self._name


ABORT: Final = _Sentinel(
    "ABORT", "An item at which a run crashes, as after a kill -9: `RunAbortedError`, once for each such item."
)
EOF: Final = _Sentinel("EOF", "An item at which a run ends cleanly; the next run goes on behind it.")


class RunAbortedError(GeartrainError):
    """An ABORT item was reached; run again with the same `Saved` to resume."""


class TestingSource(Source[T]):
    """One split of given items.

    Args:
        items: each `(event time in microseconds, record)`, a `Reject`, ABORT or EOF.
        name: the split's name; the device's by default.
        out_of_orderness_us: how far a record may lie below the newest before it and not be late,
            microseconds.
    """

    __test__ = False
    bounded: ClassVar[bool] = True
    replayable: ClassVar[bool] = True
    in_order: ClassVar[bool] = True
    items: Sequence[Any] = field(default_factory=list)
    name: str = ""
    out_of_orderness_us: int = 0

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split.

        Args:
            device: the device's name.
            step: the id of the source's step.
            out: the type of the records.

        Returns:
            One split, which reads the same items in every run.
        """
        return [_TestingSplit(self.name or device, self.out_of_orderness_us, self.items, self._aborted)]

    def __post_init__(self) -> None:
        self._aborted: set[int] = set()


class _TestingSplit:
    def __init__(self, name: str, bound_us: int, items: Sequence[Any], aborted: set[int]) -> None:
        self.name, self.out_of_orderness_us = name, bound_us
        self._items, self._aborted = items, aborted
        self._opened_at: int | None = None

    async def read(self, position: int, limit: int) -> Batch:
        """Items from `position` on, up to a sentinel."""
        values: list[Any] = []
        times: list[int] = []
        numbers: list[int] = []
        rejects: list[Reject] = []
        if self._opened_at is None:
            self._opened_at = position
        at = position
        while at < len(self._items) and at - position < limit:
            item = self._items[at]
            if item is EOF and at != self._opened_at:
                break
            if item is ABORT and at not in self._aborted:
                if at > position:
                    break
                self._aborted.add(at)
                raise RunAbortedError(f"the item at {at} of split {self.name} is ABORT")
            if isinstance(item, Reject):
                rejects.append(item)
            elif item is not EOF and item is not ABORT:
                times.append(item[0])
                values.append(item[1])
                numbers.append(at)
            at += 1
        return Batch(values, times, numbers, at, rejects, ended=at == len(self._items))

    async def close(self) -> None:
        """Nothing to release."""
