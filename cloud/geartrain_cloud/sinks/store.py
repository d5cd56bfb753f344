"""What every store of a flow's records must do, and the set of all that one flow has.

It stands last on a record's path. The flow's own tables, a file or a schema, are always one of the stores:
they hold dead letters, late records and how far each query is.

Guarantees: a micro-batch reaches the other stores before that file says that it is done, and a store skips
one that it holds. So each record is in each store once, where the store can promise that. A record that a
store cannot take is a dead letter, not the end of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from geartrain.declarations.sink import Sink, Table
from geartrain.graph.graph import DEAD_LETTERS
from geartrain.records.codes import Refusal
from geartrain.records.letters import RAW_BYTES_MAX
from geartrain.schema import ColumnBatch, Schema
from geartrain_cloud.sinks.evolution import Evolution
from geartrain_cloud.sinks.layout import Layout, TableError
from geartrain_cloud.sinks.own import OwnTables
from geartrain_cloud.sinks.rows import json_row, take_rows
from geartrain_cloud.sinks.sqlite import QueryProgress

Rows = Mapping[str, Sequence[ColumnBatch]]


def is_reached(held: Mapping[str, int], positions: Mapping[str, int]) -> bool:
    """Whether what stands at `held` has all up to `positions`."""
    return all(position <= held.get(key, 0) for key, position in positions.items())


class Store(Protocol):
    """One place beside the flow's own tables."""

    def declare(self, sink_id: str, sink: Sink, schema: Schema) -> None:
        """Say what comes; raises `TableError` where it cannot be kept."""
        ...

    def check(self, layout: Layout) -> None:
        """Raise `TableError` for what cannot be, without connecting: options, libraries and files."""
        ...

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Bind a query to its checkpoint; raises `TableError` where they do not belong together."""
        ...

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, Refusal]:
        """The rows that it cannot take, and why."""
        ...

    def write(self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        """Write a micro-batch, unless it is held; raises `TableError`."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


@runtime_checkable
class Standing(Protocol):
    """A store that knows how far each query is in it."""

    def stands(self, query: str) -> Sequence[Mapping[str, int]]:
        """The positions at which its places hold what `query` has written."""
        ...


@runtime_checkable
class Evolving(Protocol):
    """A store of tables, whose columns may change with a revision of the flow."""

    def planned(self, layouts: Sequence[Layout]) -> list[Evolution]:
        """What `evolve` would change, and nothing is changed; raises `TableError` where that is refused."""
        ...

    def evolve(self, layouts: Sequence[Layout]) -> None:
        """Have the tables be these from the next micro-batch on that is written, in one step with it.

        A place that is not known here yet, and holds nothing of a query, begins with that micro-batch.
        """
        ...


@runtime_checkable
class Returning(Protocol):
    """A store that may find out only while it writes that it cannot take a row."""

    def returned(self, query: str, batch_id: int) -> Sequence[tuple[str, Refusal, ColumnBatch]]:
        """(sink, refusal, rows) that it did not take of a micro-batch that it holds, always the same."""
        ...


class Tables:
    """All stores of one flow, with the face of its own file. Used from one thread at a time."""

    def __init__(self, own: OwnTables, stores: Mapping[type[Sink], Callable[[], Store]]) -> None:
        """own: the flow's own tables; stores: how the store of each kind of sink is opened, on first use."""
        self.own = own
        self._open = stores
        self._opened: dict[type[Sink], Store] = {}
        self._store_of: dict[str, Store] = {}
        self._schemas: dict[str, Schema] = {}
        self._bound: dict[str, str] = {}

    def declare(self, sink_id: str, sink: Sink, schema: Schema) -> None:
        """Say where the records of `sink_id` come to rest; raises `TableError`."""
        if isinstance(sink, Table):
            self.own.declare(sink_id, sink, schema)
            self._schemas[sink_id] = schema
            return
        store = self._opened_for(sink_id, sink)
        store.declare(sink_id, sink, schema)
        self._store_of[sink_id], self._schemas[sink_id] = store, schema

    def planned(self, layouts: Iterable[Layout]) -> list[Evolution]:
        """What `evolve` would change in the tables that are there; nothing is changed.

        Raises:
            TableError: a table cannot be evolved so; one sentence says what to do.
        """
        own, others = self._by_store(layouts)
        found = self.own.planned(own)
        for store, several in others.items():
            found += store.planned(several) if isinstance(store, Evolving) else []
        return found

    def evolve(self, layouts: Iterable[Layout]) -> None:
        """Have the sinks be these from the next micro-batch on that is written.

        The tables of each store change in one step with the rows of that micro-batch. A micro-batch that a
        store holds already changes nothing. Tables that are not among these stay as they are, and another
        database or folder begins with that micro-batch.

        Args:
            layouts: all sinks of the flow, those without tables, too.

        Raises:
            TableError: a sink cannot be kept. A table that cannot be evolved is refused by `write`.
        """
        own, others = self._by_store(layouts)
        self.own.evolve(own)
        self._store_of, self._schemas = {}, {layout.sink: layout.schema for layout in own}
        for store, several in others.items():
            if isinstance(store, Evolving):
                store.evolve(several)
            for layout in several:
                if not isinstance(store, Evolving):
                    store.declare(layout.sink, layout.table, layout.schema)
                self._store_of[layout.sink], self._schemas[layout.sink] = store, layout.schema

    def _by_store(self, layouts: Iterable[Layout]) -> tuple[list[Layout], dict[Store, list[Layout]]]:
        """Layouts of the flow's own tables, and of each other store; one that is new is opened."""
        own: list[Layout] = []
        others: dict[Store, list[Layout]] = {store: [] for store in self._opened.values()}
        for layout in layouts:
            if isinstance(layout.table, Table):
                own.append(layout)
            else:
                others.setdefault(self._opened_for(layout.sink, layout.table), []).append(layout)
        return own, others

    def _opened_for(self, sink_id: str, sink: Sink) -> Store:
        kind = type(sink)
        if kind not in self._open:
            raise TableError(f"sink {sink_id!r}: nothing here writes a {kind.__name__}")
        if kind not in self._opened:
            store = self._opened[kind] = self._open[kind]()
            for query, checkpoint in self._bound.items():
                store.attach(query, checkpoint, has_run=False)
        return self._opened[kind]

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Bind a query to its checkpoint in every store; raises `TableError`."""
        self._bound[query] = checkpoint
        for store in self._opened.values():
            store.attach(query, checkpoint, has_run=has_run)
        self.own.attach(query, checkpoint, has_run=has_run)

    def write(
        self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows, log_rows: int = 0
    ) -> bool:
        """Write a micro-batch to every store, the flow's own file last; False where that holds it already.

        Raises `TableError`.
        """
        own, others = self._dealt(rows)
        for store, several in others.items():
            store.write(query, batch_id, positions, several)
            self._take_back(store, query, batch_id, own)
        return self.own.write(query, batch_id, positions, own, log_rows)

    def _take_back(self, store: Store, query: str, batch_id: int, own: dict[str, list[ColumnBatch]]) -> None:
        """Have what a store did not take of a micro-batch be dead letters of the flow's own file."""
        for sink, refusal, batch in store.returned(query, batch_id) if isinstance(store, Returning) else ():
            letters = self._letters(sink, batch, dict.fromkeys(range(len(batch)), refusal))
            own.setdefault(DEAD_LETTERS, []).append(letters)

    @property
    def is_silent(self) -> bool:
        """Whether one of the stores cannot say how far a query is in it."""
        return not all(isinstance(store, Standing) for store in self._opened.values())

    def ahead(self, query: str) -> Mapping[str, int]:
        """Where stores stand that hold one micro-batch more than the flow's own file; empty for none.

        Raises `TableError`.
        """
        own = self.own.positions(query)
        for store in self._opened.values():
            for positions in store.stands(query) if isinstance(store, Standing) else ():
                if dict(positions) != own and is_reached(positions, own):
                    return positions
        return {}

    def _dealt(
        self, rows: Rows
    ) -> tuple[dict[str, list[ColumnBatch]], dict[Store, dict[str, list[ColumnBatch]]]]:
        """Rows by sink for the flow's own file, and for each other store; what one refuses is a letter."""
        own: dict[str, list[ColumnBatch]] = {}
        others: dict[Store, dict[str, list[ColumnBatch]]] = {store: {} for store in self._opened.values()}
        for sink, batches in rows.items():
            store = self._store_of.get(sink)
            goal = (own if store is None else others[store]).setdefault(sink, [])
            for batch in batches:
                refused = (store or self.own).refused(sink, batch)
                if refused:
                    own.setdefault(DEAD_LETTERS, []).append(self._letters(sink, batch, refused))
                kept = [row for row in range(len(batch)) if row not in refused]
                goal.append(take_rows(batch, kept) if refused else batch)
        return own, others

    def _letters(self, sink: str, batch: ColumnBatch, refused: Mapping[int, Refusal]) -> ColumnBatch:
        rows = list(refused)
        found = take_rows(batch, rows)
        found.fields = found.fields[: len(self._schemas[sink].fields)]  # a store may be told more of a row
        raws = [json_row(self._schemas[sink], found, row)[:RAW_BYTES_MAX] for row in range(len(found))]
        refusals = [refused[row] for row in rows]
        codes, reasons = [str(one.code) for one in refusals], [one.reason for one in refusals]
        fields: list[list[Any]] = [[sink] * len(rows), codes, reasons, raws]
        return ColumnBatch(fields, found.times, found.names, found.numbers, found.paths)

    def positions(self, query: str) -> dict[str, int]:
        """Up to which position of each channel all stores hold what `query` made of it."""
        return self.own.positions(query)

    def progress(self, query: str) -> QueryProgress | None:
        """Where `query` stands, None where it was never attached."""
        return self.own.progress(query)

    def records(self) -> dict[str, int]:
        """Records written so far to the flow's own file, by sink."""
        return self.own.records()

    def close(self) -> None:
        """Let go of every store."""
        for store in self._opened.values():
            store.close()
        self.own.close()
