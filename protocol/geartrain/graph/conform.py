"""The check behind every step that makes new records: a value that does not fit its type is a dead letter.

Stands at the end of source, map, flat_map and process, so that the refusal happens at the same step under
every cut (I1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from geartrain.errors import USER_ERRORS
from geartrain.graph.operator import Services
from geartrain.records.batch import Batch, DeadLetter
from geartrain.records.codes import Code, code_of
from geartrain.schema import RowCodec

T = TypeVar("T")


def raw_form(value: Any) -> bytes:
    """A record as JSON for a dead letter; its `repr` where it has no JSON form."""
    try:
        return msgspec.json.encode(value)
    except Exception:  # whatever a user's own class raises when it is looked at
        return _repr(value)[:65_536].encode(errors="backslashreplace")


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return f"a {type(value).__name__} that has no repr"


def describe(error: BaseException) -> str:
    """An exception as one line of at most 300 characters."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # of a user's own class
        text = ""
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def dead_letter(services: Services, batch: Batch, row: int, code: str, reason: str) -> DeadLetter:
    """The dead letter of an input at `row` that the step refused."""
    raw = raw_form(batch.values[row])
    return DeadLetter(services.step, batch.origin(row), batch.times[row], code, reason, raw)


def raised_letter(services: Services, batch: Batch, row: int, error: BaseException) -> DeadLetter:
    """The dead letter of an input at `row` for which a call raised."""
    return dead_letter(services, batch, row, code_of(error), describe(error))


def one_by_one(function: Callable[[Any], T], batch: Batch, services: Services) -> tuple[Batch, list[T]]:
    """The records for which `function` does not raise, and what it gives for each; the others are dead
    letters.
    """
    found: list[T] = []
    kept: list[int] = []
    for row, value in enumerate(batch.values):
        try:
            found.append(function(value))
        except USER_ERRORS as error:
            services.reject(raised_letter(services, batch, row, error))
        else:
            kept.append(row)
    return batch if len(kept) == len(batch) else batch.take(kept), found


_codec = lru_cache(maxsize=1_024)(RowCodec)  # a fragment is opened for each micro-batch


def checker(services: Services) -> Callable[[Batch], Batch]:
    """A function that replaces values by their normal form and turns those that do not fit into dead
    letters.
    """
    codec = _codec(services.out)

    def check(batch: Batch) -> Batch:
        values, wrong = codec.conform(batch.values)
        batch.values = values if isinstance(values, list) else list(values)
        if not wrong:
            return batch
        for row, reason in wrong:
            services.reject(dead_letter(services, batch, row, Code.WRONG_TYPE, reason))
        refused = {row for row, _ in wrong}
        return batch.take([row for row in range(len(batch)) if row not in refused])

    return check
