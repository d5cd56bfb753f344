"""A sink for tests: an append table that also keeps what reached it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from geartrain.declarations.sink import Table


@dataclass(frozen=True, slots=True)
class TestingSink(Table):
    """A table that also keeps what reached it, over all runs that it was given to.

    Args:
        name: what the table is called: letters, digits and _, beginning with a letter.
        key: not used.
        records: `(event time in microseconds, record)`, in the order of arrival; leave it out.

    Raises:
        FlowError: for a name that is not such.
    """

    __test__ = False
    records: list[tuple[int, Any]] = field(default_factory=list, compare=False)
