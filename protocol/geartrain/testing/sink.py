"""A sink for tests: an append table that also keeps what reached it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from geartrain.declarations.sink import Table


@dataclass(frozen=True, slots=True)
class TestingSink(Table):
    """Collects `(event time in microseconds, record)` in the order of arrival, over all runs it was given
    to.
    """

    __test__ = False
    records: list[tuple[int, Any]] = field(default_factory=list, compare=False)
