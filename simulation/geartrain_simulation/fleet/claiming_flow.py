"""The flow whose totals devices take from the cloud and leave to it, and what it gives where none does.

Under `ClaimingFleet`. Guarantees: all is a function of the seed. The totals wait for event time, and a window
above the cut reads them, so that what comes out too late or below the clock shows in the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar

from geartrain import Context, Flow, Record, State, Table, Task, agg, tumbling
from geartrain.graph.graph import Graph
from geartrain.planning import Plan
from geartrain.records.batch import Batch
from geartrain.records.event_time import END_OF_TIME, SECOND_US
from geartrain.runtime.fragment import Fragment
from geartrain.schema import ColumnBatch, RowCodec
from geartrain_simulation.fleet.readings import Reading, Readings, Sums, Total
from geartrain_simulation.fleet.revision_flow import records_of
from geartrain_simulation.stores.segments import Row

READINGS, TOTALS, SUMS, HOURS = "readings", "totals", "sums", "hours"
TABLES = (SUMS, f"{HOURS}_table")
_HOUR_US = 3_600 * SECOND_US


def _next_hour(time: int) -> int:
    return time // _HOUR_US * _HOUR_US + _HOUR_US


class Hours(Record):
    """What the totals of a sensor were like within some hours."""

    sensor: str
    count: int
    most: int


class Counting(Task[Reading, Total]):
    """Adds up, and says at the end of each hour in which there was something what there is by then."""

    state: ClassVar[type[Sums]] = Sums

    def on_next(self, reading: Reading, ctx: Context[Total, Sums]) -> None:
        """One total for each reading, and a timer at the next full hour."""
        ctx.state.count += 1
        ctx.state.sum += reading.level
        ctx.emit(Total(reading.sensor, ctx.state.count, ctx.state.sum))
        ctx.notify_at(_next_hour(ctx.event_time))

    def on_notify(self, time: int, ctx: Context[Total, Sums]) -> None:
        """Say the total, marked by its sign."""
        ctx.emit(Total(str(ctx.key), -ctx.state.count, ctx.state.sum))


class SumsAnew(State):
    """What later code keeps of one sensor."""

    times: int = 0
    so_far: int = 0


def anew(sums: Sums) -> SumsAnew:
    """The state of later code; what comes of it is the same."""
    return SumsAnew(sums.count, sums.sum)


class CountingAnew(Task[Reading, Total]):
    """The same with another type of state."""

    state: ClassVar[type[SumsAnew]] = SumsAnew
    migrate: ClassVar[Mapping[Any, Callable[[Any], Any]]] = {Sums: anew}

    def on_next(self, reading: Reading, ctx: Context[Total, SumsAnew]) -> None:
        """As `Counting`."""
        ctx.state.times += 1
        ctx.state.so_far += reading.level
        ctx.emit(Total(reading.sensor, ctx.state.times, ctx.state.so_far))
        ctx.notify_at(_next_hour(ctx.event_time))

    def on_notify(self, time: int, ctx: Context[Total, SumsAnew]) -> None:
        """As `Counting`."""
        ctx.emit(Total(str(ctx.key), -ctx.state.times, ctx.state.so_far))


def claiming_graph(source: Readings, counting: Callable[[], Task[Reading, Total]] = Counting) -> Graph:
    """Readings, their totals by sensor to a table, and the totals of some hours to another."""
    flow = Flow("fleet")
    readings = flow.source(READINGS, source, out=Reading, partitioned_by="sensor")
    totals = readings.key_by("sensor").process(TOTALS, counting(), keeps=("sensor",))
    totals.sink(SUMS, Table(SUMS))
    windows = totals.key_by("sensor", name="again").window(tumbling(timedelta(hours=6)))
    hours = windows.aggregate(HOURS, out=Hours, count=agg.count(), most=agg.max("sum"))
    hours.sink(TABLES[1], Table(TABLES[1]))
    return flow.graph()


def undisturbed(
    plan: Plan, source: Readings, records: Mapping[str, int], again: Mapping[tuple[str, int], int]
) -> dict[str, list[Row]]:
    """The rows of each table, sorted, where all steps run in one place and all is read at once.

    again: how often readings come once more, by their origins.
    """
    fragment = Fragment(plan.graph, plan.cloud)
    for device in records:
        for row, reading in records_of(source, device):
            for _ in range(1 + again.get((row.name, row.number), 0)):
                fragment.feed(READINGS, Batch([reading], [row.time], [row.name], [row.number]))
    fragment.advance(READINGS, END_OF_TIME)
    found: dict[str, list[Row]] = {table: [] for table in TABLES}
    for table, batches in fragment.take().batches.items():
        if table in found:
            codec = RowCodec(plan.graph[plan.graph[table].inputs[0].step].out)
            for batch in batches:
                columns = codec.to_columns(batch.values)
                places = batch.times, batch.names, batch.numbers, batch.paths
                found[table] += rows_of_columns(ColumnBatch(columns, *places))
    return {table: in_order(rows) for table, rows in found.items()}


def rows_of_columns(columns: ColumnBatch) -> Iterator[Row]:
    """The rows of columns, one by one."""
    paths = columns.paths if columns.paths is not None else [b""] * len(columns)
    fields = zip(*columns.fields, strict=True)
    yield from map(Row, columns.times, columns.names, columns.numbers, paths, fields)


def in_order(rows: list[Row]) -> list[Row]:
    """Rows in an order that does not say how they came."""
    return sorted(rows, key=lambda row: (row.name, row.time, row.number, row.path, row.fields))
