"""What becomes of a table whose records change with a revision of its flow: a comparison, without I/O.

Between two revisions of a flow, or what a store holds and what is to come. The stores carry it out, in the
transaction of the first micro-batch that the new revision writes.

Guarantees: a table that is evolved loses no row. It loses a value only with the column that is dropped,
which a sentence says beforehand. Whatever else would change or lose a value is refused, and the sentence says
what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from geartrain.declarations.cloud_sink import ParquetTable, PostgresTable
from geartrain.declarations.sink import Sink, Table
from geartrain.schema import Field, FieldType
from geartrain.schema.plain import value_reader
from geartrain_cloud.sinks.layout import Layout, TableError

_KINDS = (Table, PostgresTable, ParquetTable)
_ELSE = "give the table another name, which begins empty and leaves the old one as it is"


class EvolutionError(TableError):
    """A table cannot become what is declared. clause: why, behind the table's name."""

    def __init__(self, table: str, clause: str) -> None:
        super().__init__(f"table {table!r}: {clause}")
        self.clause = clause


@dataclass(frozen=True)
class Evolution:
    """How one table changes.

    Args:
        old: what it is; None where it is made.
        new: what it becomes; None where nothing writes it any more, and it stays as it is.
        added: fields that come.
        dropped: fields that go.
        widened: fields that take more values than before, each as it was and as it is.
    """

    old: Layout | None
    new: Layout | None
    added: tuple[Field, ...] = ()
    dropped: tuple[Field, ...] = ()
    widened: tuple[tuple[Field, Field], ...] = ()

    @property
    def table(self) -> Sink:
        """The sink whose table it is."""
        return next(layout.table for layout in (self.new, self.old) if layout is not None)

    @property
    def changes(self) -> bool:
        """Whether columns of a table that is there change."""
        return bool(self.added or self.dropped or self.widened)

    def clauses(self) -> list[str]:
        """What changes, for people, each behind the table's name; none where nothing does."""
        if self.old is None:
            return ["is made"]
        if self.new is None:
            return ["nothing writes it any more, its rows stay"]
        there = "the rows there are"
        files = isinstance(self.table, ParquetTable)
        goes = "the files there are keep it" if files else f"and its values in {there} with it"
        found = [f"column {f.name!r} is added ({_shown(f, self.new)} in {there})" for f in self.added]
        found += [f"column {f.name!r} is dropped, {goes}" for f in self.dropped]
        found += [
            f"column {new.name!r} is widened from {old.type_name} to {new.type_name}"
            for old, new in self.widened
        ]
        return found


def evolution(old: Layout, new: Layout, earlier: Iterable[str] = ()) -> Evolution:
    """Compare a table with what it is to become.

    A field may come that is optional or has a default, and any may go that is not of the key. One may take
    None where it did not, a Decimal more digits before the point, an enum more members, or any text. A whole
    number never becomes a float, for a float does not hold every one of them.

    Args:
        old: the table that is there.
        new: what the flow declares, of the same name.
        earlier: columns that its files once had, which cannot come again.

    Raises:
        TableError: the key changes, a field changes its type or takes fewer values, a field comes without a
            value for the rows there are, or one seems to be renamed.
    """
    new.check()
    name = new.table.name
    if old.table.name != name:
        raise TableError(
            f"table {name!r} is called {old.table.name!r} so far: keep its name, or choose one that differs "
            "in more than upper and lower case"
        )
    if old.table.key != new.table.key:
        was, now = (f"({', '.join(key)})" if key else "none" for key in (old.table.key, new.table.key))
        raise EvolutionError(name, f"its key was {was}, is now {now}: {_ELSE}")
    before, after = {f.name: f for f in old.schema.fields}, {f.name: f for f in new.schema.fields}
    added = tuple(f for f in new.schema.fields if f.name not in before)
    dropped = tuple(f for f in old.schema.fields if f.name not in after)
    both = [(before[f.name], f) for f in new.schema.fields if f.name in before]
    widened = tuple((was, now) for was, now in both if was != now)
    for one, wider in widened:
        _check_wider(name, one, wider)
    _check_added(new, added, dropped, frozenset(earlier))
    return Evolution(old, new, added, dropped, widened)


def evolutions(old: Iterable[Layout], new: Iterable[Layout]) -> list[Evolution]:
    """Compare all tables of a flow: those that `new` has in its order, then those that only `old` has.

    A table is known by its kind, its place and its name, whatever step writes it. Sinks that keep no table
    are passed over.

    Raises:
        TableError: as `evolution`; also where a table cannot be kept.
    """
    held = {_identity(layout.table): layout for layout in old if isinstance(layout.table, _KINDS)}
    found = []
    for layout in new:
        if isinstance(layout.table, _KINDS):
            was = held.pop(_identity(layout.table), None)
            layout.check()
            found.append(Evolution(None, layout) if was is None else evolution(was, layout))
    return found + [Evolution(left, None) for left in held.values()]


def moved_sinks(held: Sequence[Layout], wanted: Sequence[Layout]) -> list[tuple[str, str]]:
    """Tables of a store whose step changes, and the id of that; one that is left without a step gets an id
    that no step can have.

    Args:
        held: the tables that the store has.
        wanted: those that the flow declares.
    """
    writers = {layout.table.name.lower(): layout.sink for layout in wanted}
    taken = set(writers.values())
    found = []
    for layout in held:
        left = unwritten(layout.table.name) if layout.sink in taken else layout.sink
        sink = writers.get(layout.table.name.lower(), left)
        if sink != layout.sink:
            found.append((layout.table.name, sink))
    return found


def unwritten(name: str) -> str:
    """The id under which a store keeps a table that no step writes, so that another step can have its id."""
    return f"!{name}"


def _identity(table: Sink) -> tuple[type[Sink], str, str]:
    place = table.dsn if isinstance(table, PostgresTable) else ""
    folder = table.folder if isinstance(table, ParquetTable) else ""
    return type(table), place or str(folder), table.name.lower()


def _check_added(
    new: Layout, added: Sequence[Field], dropped: Sequence[Field], earlier: frozenset[str]
) -> None:
    name = new.table.name
    for one in added:
        for gone in dropped:
            if (gone.type, gone.logical) == (one.type, one.logical):
                raise EvolutionError(
                    name,
                    f"{gone.name!r} goes and {one.name!r} of the same type comes, and a "
                    "column cannot be renamed: drop the one in this update and add the other in the next, or "
                    f"{_ELSE}",
                )
        if not one.optional and one.name not in new.defaults:
            raise EvolutionError(
                name,
                f"column {one.name!r} is new and the rows there are have no value for it: "
                f"declare it as {one.type_name} | None, or give it a default",
            )
        if one.name in earlier:
            raise EvolutionError(
                name,
                f"earlier files have a column {one.name!r} that was dropped: choose another "
                f"name for the field, or {_ELSE}",
            )


def _check_wider(table: str, was: Field, now: Field) -> None:
    if was.optional and not now.optional:
        why = "and rows there are may hold None"
    elif (was.type, was.logical) == (now.type, now.logical) or _is_wider(was, now):
        return
    else:
        why = "which does not hold every value of that"
    raise EvolutionError(
        table,
        f"column {was.name!r} was {was.type_name}, is now {now.type_name}, {why}: keep its "
        f"type, give the field another name, or {_ELSE}",
    )


def _is_wider(was: Field, now: Field) -> bool:
    if was.logical.startswith("decimal(") and now.logical.startswith("decimal("):
        (precision, scale), (more, same) = digits(was), digits(now)
        return more >= precision and same == scale
    if was.logical.startswith("enum("):
        if now.logical.startswith("enum("):
            return _members(was) <= _members(now)
        return now.type is FieldType.STR and not now.logical
    return False


def digits(one: Field) -> tuple[int, int]:
    """Precision and scale of a Decimal field."""
    precision, _, scale = one.logical[len("decimal(") : -1].partition(",")
    return int(precision), int(scale)


def _members(one: Field) -> set[str]:
    return set(one.logical[len("enum(") : -1].split(","))


def _shown(one: Field, layout: Layout) -> str:
    value = layout.defaults.get(one.name)
    return "null" if value is None else str(value_reader(one)(value))[:40]
