"""A value with its place in canonical order: what first, last and top_n keep; and the first two."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from geartrain.aggregates.mergeable import Accept, BuiltIn
from geartrain.aggregates.values import normal_form
from geartrain.records.batch import Origin

V = TypeVar("V")


class Placed(msgspec.Struct, Generic[V], array_like=True):
    """A value of a record of event time `time` (microseconds) and origin (name, number, path)."""

    value: V
    time: int
    name: str
    number: int
    path: bytes

    def place(self) -> tuple[int, str, int, bytes]:
        """What canonical order sorts by."""
        return self.time, self.name, self.number, self.path


def placed(value: Any, time: int, origin: Origin) -> Placed[Any]:
    """A value at its place."""
    return Placed(value, time, origin.name, origin.number, origin.path)


@lru_cache(maxsize=256)
def placed_type(kind: Any) -> Any:
    """The type of a placed value of the type `kind`, None where it is not known."""
    return Placed[Any if kind is None else kind]  # type: ignore[misc]


class Outermost(BuiltIn[Any, Any, Any]):
    """Base of first and last: the value of one record, None before the first."""

    placed: ClassVar[bool] = True

    def result_of(self, kind: Any) -> Any:
        """The type of the values."""
        return kind

    def accumulator_of(self, kind: Any) -> Any:
        """A placed value, or None."""
        return placed_type(kind) | None

    def accept(self, kind: Any) -> Accept | None:
        """Anything of a known type, and plain values of an unknown one."""
        return normal_form if kind is None else None

    def create(self) -> Any:
        """Nothing yet."""
        return None

    def add(self, acc: Any, value: Any, time: int, origin: Origin) -> Any:
        """With one value more."""
        return self.merge(acc, placed(value, time, origin))

    def add_all(self, acc: Any, values: Any, times: Any, origins: Any) -> Any:
        """With all values."""
        for value, time, origin in zip(values, times, origins, strict=True):
            acc = self.add(acc, value, time, origin)
        return acc

    def result(self, acc: Any) -> Any:
        """The value."""
        return acc.value


class First(Outermost):
    """The first."""

    name: ClassVar[str] = "agg.first"

    def merge(self, left: Any, right: Any) -> Any:
        """The earlier of both."""
        return left if right is None or (left is not None and left.place() <= right.place()) else right


class Last(Outermost):
    """The last."""

    name: ClassVar[str] = "agg.last"

    def merge(self, left: Any, right: Any) -> Any:
        """The later of both."""
        return left if right is None or (left is not None and left.place() >= right.place()) else right
