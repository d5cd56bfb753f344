"""Rows of the log as rows of the type that the flow has now: those of a former type are upgraded.

Where the log is read, before any step sees a row: in a query, and where somebody explains a row. A table of
the log says the type of its rows itself. Guarantees: the log keeps what devices have sent. A row that cannot
be upgraded becomes a dead letter and stops nothing; the others stay in their order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from geartrain.errors import USER_ERRORS, LedgerError
from geartrain.graph.conform import describe, raw_form
from geartrain.records.batch import DeadLetter, Origin
from geartrain.records.codes import Code, Refusal
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.schema.upgrading import GivenUp, Upgrading
from geartrain_cloud.log.arrow import arrow_schema, from_table, to_table
from geartrain_cloud.log.pack import take
from geartrain_cloud.log.part import SYSTEM_NAMES
from geartrain_cloud.log.segment import schema_of
from geartrain_cloud.spark.rows import Reject


class Present:
    """Reads one channel, whose records are of a type now."""

    def __init__(self, channel: str, kind: Any, given_up: Collection[str] = ()) -> None:
        """given_up: the layouts of former types whose rows are dead letters."""
        self._channel, self._reads = channel, Upgrading(kind, given_up)
        self.codec = self._reads.codec
        self._layout = arrow_schema(self.codec.schema)

    def table(self, table: pa.Table, stream: str, reject: Reject) -> tuple[pa.Table, Sequence[int]]:
        """Rows of the log in the present type, and which of them these are; what cannot be upgraded is
        rejected as of `stream`. Raises `LedgerError` for rows of another flow.
        """
        codec = self._codec_of(table)
        if codec is self.codec:
            return table, range(table.num_rows)
        rows, kept = upgraded(self._reads, codec, from_table(codec.schema, table), stream, reject)
        said: list[list[Any]] = [table.column(name).to_pylist() for name in SYSTEM_NAMES[4:]]
        devices, seqs, late, overtaken = ([column[row] for row in kept] for column in said)
        return to_table(self.codec.schema, rows, devices, seqs, late, overtaken), kept

    def check(self, table: pa.Table) -> None:
        """Raise `LedgerError` for rows that are not of the flow as it is now."""
        if self._codec_of(table) is not self.codec:
            raise self._stranger(table)

    def _codec_of(self, table: pa.Table) -> RowCodec | GivenUp:
        """What reads the rows of a table; raises `LedgerError`."""
        schema = schema_of(table)
        codec = self.codec if schema is None else self._reads.codec_of(schema)
        if codec is None:
            raise self._stranger(table)
        layout = self._layout if codec is self.codec else arrow_schema(codec.schema)
        if table.schema.names != layout.names or table.schema.types != layout.types:
            raise self._stranger(table)
        return codec

    def _stranger(self, table: pa.Table) -> LedgerError:
        return LedgerError(
            f"channel {self._channel!r}: the log holds {_columns(table.schema)}, but this flow reads "
            f"{_columns(self._layout)}: run the flow that the devices run, or begin with a new log"
        )


def upgraded(
    reads: Upgrading, codec: RowCodec | GivenUp, rows: ColumnBatch, stream: str, reject: Reject
) -> tuple[ColumnBatch, list[int]]:
    """Rows of a former type, which `codec` reads, in the present one, and which of them these are; what
    cannot be upgraded is rejected as of `stream`.
    """
    if isinstance(codec, GivenUp):
        for row in range(len(rows)):
            reject(_letter(codec, rows, row, stream, Refusal(Code.GIVEN_UP, codec.why)))
        return replace(take(rows, []), fields=reads.codec.to_columns([])), []
    values, kept = [], []
    for row in range(len(rows)):
        try:
            (value,) = codec.from_columns([[column[row]] for column in rows.fields])
            values.append(reads.upgraded(value))
            kept.append(row)
        except USER_ERRORS as error:
            why = f"the record cannot be upgraded to {reads.codec.schema.name}: {describe(error)}"[:300]
            reject(_letter(codec, rows, row, stream, Refusal(Code.NOT_UPGRADED, why)))
    return replace(take(rows, kept), fields=reads.codec.to_columns(values)), kept


def _letter(
    codec: RowCodec | GivenUp, rows: ColumnBatch, row: int, stream: str, refusal: Refusal
) -> DeadLetter:
    names = [field.name for field in codec.schema.fields]
    raw = dict(zip(names, (column[row] for column in rows.fields), strict=True))
    origin = Origin(rows.names[row], rows.numbers[row], rows.paths[row] if rows.paths else b"")
    return DeadLetter(stream, origin, rows.times[row], *refusal, raw_form(raw))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
