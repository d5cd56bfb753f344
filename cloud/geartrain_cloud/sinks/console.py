"""Records on the standard output of the Spark host, for a person who watches.

A store beside the flow's own tables. Guarantees at least once: a micro-batch that is run again after a crash
is printed again. Text from devices is printed as JSON, with everything escaped that is not plain ASCII.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from geartrain.declarations.cloud_sink import ConsoleSink
from geartrain.declarations.sink import Sink
from geartrain.records.codes import Refusal
from geartrain.records.event_time import format_time
from geartrain.schema import ColumnBatch, Schema
from geartrain.schema.plain import plain_rows
from geartrain_cloud.sinks.layout import Layout
from geartrain_cloud.sinks.store import Rows


class Console:
    """The console sinks of one flow."""

    def __init__(self) -> None:
        self._sinks: dict[str, tuple[ConsoleSink, Schema]] = {}

    def check(self, layout: Layout) -> None:
        """Raise `TableError` for options that cannot be."""
        layout.check()

    def declare(self, sink_id: str, sink: Sink, schema: Schema) -> None:
        """Say what comes."""
        if isinstance(sink, ConsoleSink):
            self._sinks[sink_id] = (sink, schema)

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Nothing is kept here."""

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, Refusal]:
        """Every record can be printed."""
        return {}

    def write(self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        """Print the first records of each sink and how many more there are."""
        for sink_id, batches in rows.items():
            sink, schema = self._sinks[sink_id]
            count = 0
            for batch in batches:
                for time_us, row in zip(batch.times, plain_rows(schema, batch), strict=True):
                    count += 1
                    if count <= sink.rows_max:
                        sys.stdout.write(f"{sink.name} {format_time(time_us)} {json.dumps(row)}\n")
            if count > sink.rows_max:
                more = count - sink.rows_max
                sys.stdout.write(f"{sink.name} and {more} more in micro-batch {batch_id}\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing is open."""
