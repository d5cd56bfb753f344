"""What goes of tables by age, out of a PostgreSQL schema: as `geartrain_cloud.sinks.retention` does it.

Beside the Spark host, which writes the same schema. Guarantees: those of the SQLite file, but that no row
stays for its number, which a sequence gives here.
"""

from __future__ import annotations

from psycopg import sql

from geartrain.records.event_time import START_OF_TIME
from geartrain_cloud.sinks.postgres_schema import SchemaConnection, check_owner
from geartrain_cloud.sinks.retention import BUSY_S, COUNT_REMOVED, REMOVED, ROWS_MAX

_DELETE = (
    "DELETE FROM {0} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {0} WHERE _event_time > %s AND _event_time < %s "
    "LIMIT %s))"
)


def remove_older(dsn: str, schema: str, owner: str, before_us: int, rows_max: int = ROWS_MAX) -> int:
    """Remove some rows whose event time lies before `before_us`; at most `rows_max` of each table.

    dsn: as libpq has it, without a password; owner: who made the schema; before_us: microseconds since 1970
    UTC. Returns how many went. Raises `TableError`, also for a schema that somebody else made.
    """
    link, gone = SchemaConnection(dsn, schema, BUSY_S), 0
    try:
        with link.transaction() as db:
            check_owner(db, link, owner)
            names = [name for (name,) in db.execute("SELECT name FROM _sinks ORDER BY name").fetchall()]
        for name in names:
            with link.transaction() as db:
                delete = sql.SQL(_DELETE).format(sql.Identifier(name))
                count = db.execute(delete, (START_OF_TIME, before_us, rows_max)).rowcount
                if count:
                    db.execute(sql.SQL(REMOVED))
                    db.execute(sql.SQL(COUNT_REMOVED.format("%s")), (name, count))
                gone += count
    finally:
        link.close()
    return gone


def removed_rows(dsn: str, schema: str) -> int:
    """How many rows of the schema have gone by age; raises `TableError`."""
    link = SchemaConnection(dsn, schema, BUSY_S)
    try:
        with link.transaction() as db:
            if db.execute("SELECT to_regclass('_removed')").fetchone() == (None,):
                return 0
            found = db.execute("SELECT coalesce(sum(rows), 0) FROM _removed").fetchone()
            return 0 if found is None else int(found[0])
    finally:
        link.close()
