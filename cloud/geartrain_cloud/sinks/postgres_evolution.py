"""Change tables in PostgreSQL to those of a revision, within the transaction of a micro-batch.

Under both stores of PostgreSQL. Guarantees: the caller's transaction holds all of it, so that a crash leaves
the old table or the new one. PostgreSQL rewrites no row for any change that is made here.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from geartrain_cloud.sinks.evolution import Evolution
from geartrain_cloud.sinks.postgres_columns import column_type, converter


def alter(db: psycopg.Connection[Any], change: Evolution) -> None:
    """Carry out the changes of one table that is there."""
    if change.new is None or not change.changes:
        return
    parts = [sql.SQL("DROP COLUMN {}").format(sql.Identifier(one.name)) for one in change.dropped]
    defaulted = []
    for one in change.added:
        part = sql.SQL("ADD COLUMN {} {}").format(sql.Identifier(one.name), column_type(one))
        value = converter(one)(change.new.defaults.get(one.name))
        if value is not None:
            exact = repr(value) if isinstance(value, float) else value  # a bare -0.0 is a numeric, and 0.0
            part += sql.SQL(" DEFAULT {}").format(sql.Literal(exact))
            defaulted.append(sql.SQL("ALTER COLUMN {} DROP DEFAULT").format(sql.Identifier(one.name)))
        parts.append(part)
    for was, now in change.widened:
        if was.logical != now.logical and now.logical.startswith("decimal("):
            parts.append(
                sql.SQL("ALTER COLUMN {} TYPE {}").format(sql.Identifier(now.name), column_type(now))
            )
    for several in (parts, defaulted):
        if several:
            table = sql.Identifier(change.table.name)
            db.execute(sql.SQL("ALTER TABLE {} {}").format(table, sql.SQL(", ").join(several)))
