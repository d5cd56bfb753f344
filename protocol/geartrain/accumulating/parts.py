"""All aggregates of one step at work on records of one type: columns in, one accumulator each, results out.

Used by the aggregate operators. The accumulators of a key or window are a tuple, None for each that has met
no value yet. So its state is typed, and an empty aggregate is never asked for a result.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from geartrain.accumulating.contents import Columns
from geartrain.accumulating.selected import Column
from geartrain.aggregates.mergeable import Aggregate, AggregateSpec, BuiltIn
from geartrain.aggregates.top_n import TopN
from geartrain.errors import FlowError
from geartrain.records.batch import Batch, Origin

Settle = Callable[[Any], Any]
_ENCODE = msgspec.msgpack.Encoder().encode


class Parts:
    """The aggregates `specs` over records of the type `record`.

    kind: the type of the accumulators; trusted: all come with Geartrain, so that nothing but memory can fail.
    """

    def __init__(
        self, specs: Mapping[str, AggregateSpec], record: Any, settler: Callable[[Any], Settle | None]
    ) -> None:
        """settler: makes what brings accumulators of a user's own type into their declared form.

        Raises `FlowError` for a field that is not there or whose type an aggregate does not take.
        """
        parts = [_Part(name, spec, record, settler) for name, spec in specs.items()]
        self._parts = parts
        self._nothing = (None,) * len(parts)
        self.trusted = all(part.aggregate.built_in for part in parts)
        optional = tuple(typing.Optional[part.kind] for part in parts)  # noqa: UP045
        self.kind: Any = tuple[optional]  # type: ignore[valid-type]

    def read(self, values: Sequence[Any], refused: dict[int, str]) -> Columns:
        """The columns of the records; `refused` has the reason for each row that cannot be added."""
        return [part.read(values, refused) for part in self._parts]

    def add(self, held: Any, batch: Batch, columns: Columns, rows: Sequence[int]) -> Any:
        """`held`, None where nothing is held yet, with the given rows; raises what a user's `add` raises."""
        return tuple(
            part.add(acc, batch, column, rows)
            for part, acc, column in zip(self._parts, held or self._nothing, columns, strict=True)
        )

    def add_groups(
        self, held: Sequence[Any], batch: Batch, columns: Columns, groups: Sequence[list[int]]
    ) -> Sequence[Any]:
        """Each of `held` with the rows of its group, as `add` would give it, one aggregate after the other.
        With many keys most of a busy device's time goes here.
        """
        before = zip(*[one or self._nothing for one in held], strict=True)
        added = [
            part.add_groups(accs, batch, column, groups)
            for part, accs, column in zip(self._parts, before, columns, strict=True)
        ]
        return list(zip(*added, strict=True))

    def merge(self, left: Any, right: Any) -> Any:
        """Both in one."""
        return tuple(part.merge(*both) for part, *both in zip(self._parts, left, right, strict=True))

    def results(self, held: Any) -> list[Any]:
        """The result of each; raises what a user's `result` raises."""
        return [part.result(acc) for part, acc in zip(self._parts, held, strict=True)]

    def result_columns(self, held: Sequence[Any]) -> Columns:
        """The results of many keys: a list for each aggregate."""
        return [part.results(accs) for part, accs in zip(self._parts, zip(*held, strict=True), strict=True)]

    def columns(self) -> list[tuple[str, str]]:
        """(name, type) of each accumulator in the form of `pack`: `int` or `bytes`, with `?` for `| None`."""
        return [(part.name, part.column) for part in self._parts]

    @property
    def result_types(self) -> dict[str, Any]:
        """The type of each aggregate's results by its name, None where it is not known."""
        return {part.name: part.result_type for part in self._parts}

    def pack(self, held: Any) -> list[Any]:
        """Each accumulator in the form in which it travels, which is its smallest; `held` is then used up."""
        return [part.pack(acc) for part, acc in zip(self._parts, held, strict=True)]

    def unpack(self, packed: Sequence[Any]) -> Any:
        """The accumulators that `pack` wrote; raises `msgspec.MsgspecError` for other bytes."""
        return tuple(part.unpack(raw) for part, raw in zip(self._parts, packed, strict=True))


class _Part:
    def __init__(
        self, name: str, spec: AggregateSpec, record: Any, settler: Callable[[Any], Settle | None]
    ) -> None:
        self.name = name
        self.aggregate: Aggregate[Any, Any, Any] = spec.aggregate
        try:
            self._column = Column(spec.selector, record)
            self._given = None if spec.give is None else Column(spec.give, record)
            if self._given is not None:
                self._given.accept_plain()
            self._column.accept_by(self.aggregate.accept(_value_type(self._column.kind)))
        except FlowError as error:
            raise FlowError(f"aggregate {name!r}: {error}") from None
        kind = _value_type(self._column.kind)
        result = self.aggregate.result_of(kind)
        self.result_type = result | None if result is not None and self._column.optional else result
        if self._given is not None and isinstance(self.aggregate, TopN):
            self.kind = self.aggregate.list_of(kind, _value_type(self._given.kind))
        else:
            self.kind = self.aggregate.accumulator_of(kind)
        self._settle = None if self.aggregate.built_in else settler(self.kind)
        self._plain = self.aggregate.built_in and self.kind is int
        grouped = isinstance(self.aggregate, BuiltIn) and not self.aggregate.placed
        self._grouped: BuiltIn[Any, Any, Any] | None = self.aggregate if grouped else None  # type: ignore[assignment]
        self._decoder: msgspec.msgpack.Decoder[Any] | None = None

    def read(self, values: Sequence[Any], refused: dict[int, str]) -> list[Any]:
        column = self._column.read(values, refused)
        if self._given is None:
            return column
        given = self._given.read(values, refused)
        return [None if v is None else (v, g) for v, g in zip(column, given, strict=True)]

    def add(self, acc: Any, batch: Batch, column: list[Any], rows: Sequence[int]) -> Any:
        aggregate = self.aggregate
        values = [column[row] for row in rows]
        if aggregate.skips_none and None in values:
            rows = [row for row in rows if column[row] is not None]
            values = [column[row] for row in rows]
        if not values:
            return acc
        if acc is None:
            acc = aggregate.create()
        if not aggregate.placed:
            return aggregate.add_all(acc, values, (), ())
        times = [batch.times[row] for row in rows]
        origins = [batch.origin(row) for row in rows]
        if self._settle is None:
            return aggregate.add_all(acc, values, times, origins)
        return self._add_settled(acc, values, times, origins)

    def add_groups(
        self, accs: Sequence[Any], batch: Batch, column: list[Any], groups: Sequence[list[int]]
    ) -> Sequence[Any]:
        if self._grouped is None or (self.aggregate.skips_none and None in column):
            return [self.add(acc, batch, column, rows) for acc, rows in zip(accs, groups, strict=True)]
        made = [self._grouped.create() if acc is None else acc for acc in accs]
        return self._grouped.add_groups(made, column, groups)

    def _add_settled(self, acc: Any, values: list[Any], times: list[int], origins: list[Origin]) -> Any:
        """One by one, each time as it would come back from a saved state, however records are batched."""
        settle = self._settle
        for value, time, origin in zip(values, times, origins, strict=True):
            acc = self.aggregate.add(acc, value, time, origin)
            acc = acc if settle is None else settle(acc)
        return acc

    def merge(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        merged = self.aggregate.merge(left, right)
        return merged if self._settle is None else self._settle(merged)

    @property
    def column(self) -> str:
        return ("int" if self._plain else "bytes") + ("?" if self.aggregate.skips_none else "")

    def pack(self, acc: Any) -> Any:
        if self._plain or acc is None:
            return acc
        return _ENCODE(self.aggregate.compact(acc) if isinstance(self.aggregate, BuiltIn) else acc)

    def unpack(self, raw: Any) -> Any:
        if self._plain or raw is None:
            return raw
        if self._decoder is None:
            self._decoder = msgspec.msgpack.Decoder(self.kind)
        return self._decoder.decode(raw)

    def results(self, accs: Sequence[Any]) -> list[Any]:
        if self._grouped is None or None in accs:
            return [self.result(acc) for acc in accs]
        return self._grouped.results(accs)

    def result(self, acc: Any) -> Any:
        return self.aggregate.empty if acc is None else self.aggregate.result(acc)


def _value_type(kind: Any) -> Any:
    """A type without the digits of a Decimal."""
    return Decimal if typing.get_origin(kind) is typing.Annotated else kind
