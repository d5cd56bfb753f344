"""The contents of reduce and fold: one state, and user code that takes a record into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from geartrain.accumulating.contents import kept_type
from geartrain.errors import SchemaError
from geartrain.graph.operator import Services
from geartrain.records.batch import Batch
from geartrain.schema import RowCodec, derive, logicals
from geartrain.schema.derive import is_record_type
from geartrain.schema.logical import NestedField
from geartrain.state.state_type import StateType


class FoldCalls(msgspec.Struct, frozen=True):
    """A fold's functions: `make` a state, `function(state, value)`, and `result(state)` or none."""

    make: Callable[[], Any]
    function: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] | None


class Folding:
    """What `Content` asks for, over a state that user code folds records into."""

    sequential = True
    trusted = False

    def __init__(self, services: Services, calls: FoldCalls, state: Any) -> None:
        """state: its type. Raises `SchemaError` when it cannot be one."""
        self._calls = calls
        self.kind = kept_type(state)
        self._fitted = StateType(services.step, self.kind).fitted

    def prepare(self, batch: Batch) -> tuple[Batch, Any]:
        """Nothing is read before its turn."""
        return batch, None

    def add(self, held: Any, batch: Batch, read: Any, rows: Sequence[int]) -> Any:
        """The state with the given rows folded in; raises what user code raises."""
        kept = self.kind(self._calls.make()) if held is None else held
        for row in rows:
            kept = self.kind(self._calls.function(kept.state, batch.values[row]))
            kept = self._fitted(kept)
        return kept

    def merge(self, left: Any, right: Any) -> Any:
        """Never asked: folds are in order, where sessions only grow."""
        raise TypeError("states of a fold cannot be merged")

    def result(self, held: Any, key: bytes, start: int, end: int, revision: int) -> Any:
        """`result(state)`, or the state."""
        return held.state if self._calls.result is None else self._calls.result(held.state)


class Reducing:
    """What `Content` asks for, over the first record and user code that takes each further one into it."""

    sequential = True
    trusted = True

    def __init__(self, services: Services, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self._codec = RowCodec(services.inputs[0])
        self._apart = apart(services.inputs[0])
        self.kind = kept_type(services.inputs[0])

    def prepare(self, batch: Batch) -> tuple[Batch, Any]:
        """Nothing is read before its turn."""
        return batch, None

    def add(self, held: Any, batch: Batch, read: Any, rows: Sequence[int]) -> Any:
        """The state with the given rows reduced in; raises what user code raises, and `SchemaError` for what
        is no such record.
        """
        kept = held
        for row in rows:
            value = batch.values[row]
            if kept is None:
                kept = self.kind(self._apart(value))
            else:
                kept = self.kind(self._fitting(self._function(kept.state, value)))
        return kept

    def merge(self, left: Any, right: Any) -> Any:
        """Never asked: reductions are in order, where sessions only grow."""
        raise TypeError("states of a reduce cannot be merged")

    def result(self, held: Any, key: bytes, start: int, end: int, revision: int) -> Any:
        """The state."""
        return held.state

    def _fitting(self, value: Any) -> Any:
        values, wrong = self._codec.conform([value])
        if wrong:
            raise SchemaError(wrong[0][1])
        return values[0]


def apart(kind: Any) -> Callable[[Any], Any]:
    """A function that copies a value of the type `kind`, so that user code that changes one in place changes
    no other. Types that cannot be changed are given as they are.
    """
    if not _changeable(kind):
        return lambda value: value
    decode, encode = msgspec.msgpack.Decoder(kind).decode, msgspec.msgpack.encode

    def copied(value: Any) -> Any:
        try:
            return decode(encode(value))
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            return value  # the check of the output refuses it, and says why

    return copied


def _changeable(kind: Any) -> bool:
    derive(kind)
    if any(isinstance(logical, NestedField) for logical in logicals(kind)):
        return True
    if not is_record_type(kind) or issubclass(kind, tuple):
        return False
    if issubclass(kind, msgspec.Struct):
        return not kind.__struct_config__.frozen
    return not kind.__dataclass_params__.frozen
