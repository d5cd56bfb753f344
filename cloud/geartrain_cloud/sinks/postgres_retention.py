"""What goes of tables by age, out of a PostgreSQL schema: as `geartrain_cloud.sinks.retention` does it.

Beside the Spark host, which writes the same schema. Guarantees: those of the SQLite file, but that no row
stays for its number, which a sequence gives here.
"""

from __future__ import annotations

import re

from psycopg import sql

from geartrain.records.event_time import START_OF_TIME
from geartrain_cloud.sinks.postgres_schema import SchemaConnection, check_owner
from geartrain_cloud.sinks.refused_state import QUERY, TABLE, Refused
from geartrain_cloud.sinks.retention import BUSY_S, COUNT_REMOVED, REMOVED, ROWS_MAX

_DELETE = (
    "DELETE FROM {0} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {0} WHERE ctid > %s::tid "
    "AND _event_time > %s AND _event_time < %s LIMIT %s)) RETURNING ctid::text"
)
_PLACE = re.compile(r"\((\d+),(\d+)\)")


class SchemaSweep:
    """Through the tables of a schema, each once, in the order in which rows lie."""

    def __init__(self, dsn: str, schema: str, owner: str, before_us: int) -> None:
        """dsn: as libpq has it, without a password; owner: who made the schema; before_us: the event time
        before which rows go, microseconds since 1970 UTC.
        """
        self._dsn, self._schema, self._owner, self._before_us = dsn, schema, owner, before_us
        self._after: dict[str, tuple[int, int]] = {}
        self._done: set[str] = set()

    def step(self) -> bool:
        """Remove the next rows; see `geartrain_cloud.sinks.retention.Sweep`.

        Raises `TableError`, also for a schema that somebody else made.
        """
        link = SchemaConnection(self._dsn, self._schema, BUSY_S)
        try:
            with link.transaction() as db:
                check_owner(db, link, self._owner)
                names = [name for (name,) in db.execute("SELECT name FROM _sinks ORDER BY name").fetchall()]
            more = [self._remove(link, name) for name in names if name not in self._done]
            return any(more)
        finally:
            link.close()

    def _remove(self, link: SchemaConnection, name: str) -> bool:
        block, place = self._after.get(name, (0, 0))
        with link.transaction() as db:
            delete = sql.SQL(_DELETE).format(sql.Identifier(name))
            times = (START_OF_TIME, self._before_us, ROWS_MAX)
            gone = db.execute(delete, (f"({block},{place})", *times)).fetchall()
            if gone:
                db.execute(sql.SQL(REMOVED))
                db.execute(sql.SQL(COUNT_REMOVED.format("%s")), (name, len(gone)))
        if len(gone) < ROWS_MAX:
            self._done.add(name)
            return False
        places = (_PLACE.fullmatch(text) for (text,) in gone)
        self._after[name] = max((int(found[1]), int(found[2])) for found in places if found)
        return True


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


def refused_state(dsn: str, schema: str) -> Refused:
    """The cells of state that could not be taken in, by the schema's dead letters; raises `TableError`."""
    link = SchemaConnection(dsn, schema, BUSY_S)
    try:
        with link.transaction() as db:
            if db.execute("SELECT to_regclass(%s)", (TABLE,)).fetchone() == (None,):
                return []
            found = db.execute(QUERY)
            return [(str(step), str(reason), int(count)) for step, reason, count in found]
    finally:
        link.close()
