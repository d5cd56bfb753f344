"""Sinks as declared in a flow: where the records of a stream come to rest.

Last on a record's path. The cloud writes them (`geartrain_cloud.sinks`); `gear run` writes the same tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from geartrain.errors import FlowError


@dataclass(frozen=True, slots=True)
class Table:
    """A table named `name` whose columns are the record's fields.

    With `key` (field names) it is an upsert table: a row is replaced only by a canonically later record of
    the same key. Without, every record is a row of its own.
    """

    name: str
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name.startswith("_") or not self.name.isascii():
            raise FlowError(
                f"table name {self.name!r}: use letters, digits and _, not starting with a digit or _"
            )
