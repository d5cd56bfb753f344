"""What PostgreSQL will refuse of a table, in the words of a platform whose tables are kept there.

Beside the stores, which ask the same of each table that they make. Pure: no store is opened. Guarantees: the
sentence names the table, the field, and what the user can change.
"""

from __future__ import annotations

from geartrain.declarations.limits import check_postgres as check_in_postgres
from geartrain.sinks import PostgresTable
from geartrain_cloud.sinks.layout import Layout, table_errors


def check_postgres(layout: Layout) -> None:
    """Raise `TableError` for a table that PostgreSQL cannot hold."""
    layout.check()
    sink = layout.table
    is_own = isinstance(sink, PostgresTable)
    instead = "" if is_own else ", or leave [tables] store of the platform empty"
    with table_errors():
        check_in_postgres(f"sink {layout.sink!r}", sink.name, sink.key, layout.schema, instead)
