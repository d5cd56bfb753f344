"""Ask a PostgreSQL database again and again for the rows behind those that were read.

For tables that only grow, and for reference data in which a change is a new row. A source with positions: a
column that goes up. Guarantees: each row that is visible in the order of that column is read once, also over
crashes of the process and of the database. While the database is away, the watermark waits. A row that is no
such record leaves as a dead letter with its columns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from geartrain.adapters.system import SystemClock
from geartrain.concurrency.cancelling import end_task
from geartrain.declarations.options import Count, Positive, SecretText
from geartrain.errors import USER_ERRORS, SourceError
from geartrain.ports import Clock
from geartrain.source import Batch, Reject, Source, Split
from geartrain_devices.json_fields import DOCUMENT_BYTES_MAX, JsonFields, now_us
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.no_record import refusal_of

if TYPE_CHECKING:
    from psycopg import AsyncConnection

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

_PAUSE_S, _PAUSE_S_MAX = 1.0, 60.0
_CONNECT_S_MAX = 10
_PAGE_ROWS, _PAGE_BYTES_MAX = 1_000, 8 << 20
"""Of one answer, at the most; the row that goes above it is its last."""
SAME_TIME_MAX = 1_024
"""Rows of one microsecond, where the key is a time: a position is the time and the place among them."""
_WHOLE, _TIMES, _BYTES = (20, 21, 23), (1114, 1184), 17
"""Types by their numbers in every PostgreSQL: int8, int2, int4; timestamp, timestamptz; bytea."""
_AWAY = ("08", "53", "57", "40", "55")
"""Classes of errors that pass: no connection, no room, shut down or too slow, conflicts, locks."""

_TOO_SLOW = "57014"
"""A query is cancelled, since it takes longer than it may."""
_ADVICE = (
    ("42501", "grant this user SELECT"),
    ("42", "correct query or key"),
    ("25006", "write a SELECT that changes nothing"),
    ("22", "have the query pass over, or mend, the row that it fails on"),
    ("28", "correct the user in dsn, or password"),
    ("3D", "correct dbname in dsn"),
)
"""What to do, by the beginning of a state of SQL."""


class PostgresQuery(ValueOptions, Source[T]):
    """Records of type `T` from the rows of a query. A record before 1970 is a dead letter.

    How its times and numbers are written, the options of `ValueOptions` say.

    Args:
        query: a SELECT, with one column for each field. Its rows only ever come, and none changes.
        key: the column that goes up from row to row: whole numbers from 0 that are unique, or times.
        dsn: where the database is, as libpq has it; empty for the `PG...` variables of the environment. A
            password does not belong here.
        password: `secret:NAME`; empty for `PGPASSWORD` or `~/.pgpass`.
        every_s: how long to wait behind the last row, seconds.
        settle_s: where the key is a time: how old a row must be to be read, seconds. A row of a transaction
            that commits later than that is missed.
        timeout_s: how long an answer may take, seconds.
        time: the column of the event time; empty where the time of the reading is meant.
        fields: paths by field, for those that are not found by their own name.
        out_of_orderness_ms: how far a record may lie behind the newest and not be late, beside `settle_s`.
    """

    replayable: ClassVar[bool] = True
    since_1970 = True

    query: str = ""
    key: str = "id"
    dsn: str = ""
    password: SecretText = ""
    every_s: Positive = 10.0
    settle_s: Positive = 5.0
    timeout_s: Positive = 60.0
    time: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    out_of_orderness_ms: Count = 0

    @property
    def keeps_order(self) -> bool:
        """Rows come in the order of their key; whether that is their event time."""
        return bool(self.time) and self.time == self.key

    def clock(self) -> Clock:
        """The clock that `every_s` is measured by; a test may have its own."""
        return SystemClock()

    def check_settings(self, step: str, out: type[T]) -> None:
        """As of a `Source`."""
        JsonFields(f"source {step}", out, self.time, self, self.fields)

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the option."""
        where = f"source {step}"
        try:
            import psycopg  # an extra: only who uses it has it
        except ImportError:
            raise SourceError(
                f'{where}: PostgreSQL needs psycopg: pip install "geartrain-devices[postgres]"'
            ) from None
        if not self.query.strip():
            raise SourceError(f'{where} has no query: set query = "SELECT ..." under [sources.{step}]')
        try:
            given = psycopg.conninfo.conninfo_to_dict(self.dsn)
        except psycopg.Error:  # what it says may hold a password
            raise SourceError(
                f"{where}: dsn cannot be read: write it as host=db.example dbname=plant user=reader, or as "
                "an address that begins with postgresql://"
            ) from None
        if "password" in given:
            raise SourceError(
                f"{where}: dsn holds a password: set password = secret:NAME or PGPASSWORD, or write it to "
                "~/.pgpass"
            )
        fields = JsonFields(where, out, self.time, self, self.fields)
        bound_us = self.out_of_orderness_ms * 1_000 + int(self.settle_s * 1_000_000)
        dsn = psycopg.conninfo.make_conninfo(self.dsn, password=str(self.password) or None)
        rows = _Rows(where, self.query, self.key, dsn, self.settle_s, self.timeout_s)
        return [_QuerySplit(device, step, rows, fields, self.every_s, bound_us, self.clock())]


class _Row(msgspec.Struct, frozen=True):
    number: int
    raw: bytes


class _Rows:
    """The database: the rows from a position on, over one connection that is made again."""

    def __init__(self, where: str, query: str, key: str, dsn: str, settle_s: float, timeout_s: float) -> None:
        self._where, self._query, self._key, self._dsn = where, query.strip().rstrip(";"), key, dsn
        self._settle_s, self._timeout_s = settle_s, timeout_s
        self._connection: AsyncConnection[Any] | None = None
        self._is_time = False
        self._columns: list[tuple[str, int]] = []
        """Name and type of each column of the query."""

    async def after(self, position: int, limit: int) -> list[_Row]:
        """Rows from `position` on, in the order of their numbers; raises `SourceError` for what only a person
        can mend, and `OSError` for a database that is away.
        """
        import psycopg

        try:
            async with asyncio.timeout(self._timeout_s + _CONNECT_S_MAX):
                return await self._page(position, limit)
        except psycopg.Error as error:
            await self.close()
            lost = error.sqlstate is None and not isinstance(error, psycopg.ProgrammingError)
            if error.sqlstate == _TOO_SLOW:
                raise OSError(f"the query takes longer than {self._timeout_s:g} s: set timeout_s") from None
            if lost or (error.sqlstate or "").startswith(_AWAY):
                raise OSError(
                    f"the database does not answer, or lets nobody in ({_said(error)}): see whether it runs, "
                    "and correct dsn or password"
                ) from None
            advice = next((do for state, do in _ADVICE if (error.sqlstate or "").startswith(state)), "")
            raise SourceError(
                f"{self._where}: the query cannot be run ({_said(error)}): {advice or 'correct query'}"
            ) from None
        except BaseException:
            await self.close()
            raise

    async def _page(self, position: int, limit: int) -> list[_Row]:
        connection = self._connection or await self._connect()
        first = position // SAME_TIME_MAX if self._is_time else position
        most = min(limit, _PAGE_ROWS) + (position % SAME_TIME_MAX if self._is_time else 0)
        found, size, place, last = list[_Row](), 0, 0, -1
        async with connection.transaction(), connection.cursor("geartrain") as rows:
            await rows.execute(self._statement(), {"first": first, "limit": most, "settle_s": self._settle_s})
            async for key, text in rows:
                number = int(key)
                if self._is_time:
                    place = place + 1 if number == last else 0
                    last = number
                    number = self._numbered(number, place)
                elif found and number == found[-1].number:
                    raise SourceError(
                        f"{self._where}: two rows have the {self._key} {number}: name a key that is unique"
                    )
                if number >= position:
                    found.append(_Row(number, str(text).encode()))
                    size += len(found[-1].raw)
                if size > _PAGE_BYTES_MAX:
                    break
        return found

    def _numbered(self, time_us: int, place: int) -> int:
        if place >= SAME_TIME_MAX:
            raise SourceError(
                f"{self._where}: more than {SAME_TIME_MAX:,} rows have the {self._key} {time_us} us since "
                "1970: name a key that is unique"
            )
        return time_us * SAME_TIME_MAX + place

    def _statement(self) -> Any:
        from psycopg import sql

        key = sql.SQL("q.{}").format(sql.Identifier(self._key))
        # What is too long is cut: the record's reader refuses it then.
        text = sql.SQL("left({}::text, {})").format(self._document(), sql.Literal(DOCUMENT_BYTES_MAX + 1))
        if not self._is_time:
            form = "SELECT {key}, {text} FROM ({query}) q WHERE {key} >= %(first)s ORDER BY 1 LIMIT %(limit)s"
        else:
            form = (
                "SELECT (extract(epoch FROM {key}) * 1000000)::bigint, {text} FROM ({query}) q "
                "WHERE {key} >= to_timestamp(0) + %(first)s * interval '1 microsecond' "
                "AND {key} <= now() - %(settle_s)s * interval '1 second' ORDER BY 1, 2 LIMIT %(limit)s"
            )
        query = sql.SQL(self._query.replace("%", "%%"))
        return sql.SQL(form).format(key=key, text=text, query=query)

    def _document(self) -> Any:
        """A row as JSON; bytes are base64, as in JSON of all sources. PostgreSQL would write `\\x00ff`."""
        from psycopg import sql

        if all(kind != _BYTES for _, kind in self._columns):
            return sql.SQL("row_to_json(q)")
        plain, packed = (
            sql.SQL("q.{0} AS {0}"),
            sql.SQL("translate(encode(q.{0}, 'base64'), E'\\n', '') AS {0}"),
        )
        columns = [
            (packed if kind == _BYTES else plain).format(sql.Identifier(name)) for name, kind in self._columns
        ]
        return sql.SQL("(SELECT row_to_json(r) FROM (SELECT {}) r)").format(sql.SQL(", ").join(columns))

    async def _connect(self) -> AsyncConnection[Any]:
        import psycopg

        timeout = f"-c statement_timeout={int(self._timeout_s * 1_000)} -c timezone=UTC -c datestyle=ISO"
        connection = await psycopg.AsyncConnection.connect(
            self._dsn, connect_timeout=_CONNECT_S_MAX, options=timeout, application_name="geartrain"
        )
        self._connection = connection
        await connection.set_read_only(True)
        async with connection.transaction(), connection.cursor() as cursor:
            from psycopg import sql

            form = sql.SQL("SELECT q.{}, q.* FROM ({}) q LIMIT 0").format(
                sql.Identifier(self._key),
                sql.SQL(self._query),
            )
            await cursor.execute(form)
            (_, kind), *self._columns = [(one.name, one.type_code) for one in cursor.description or ()]
        if kind not in _WHOLE + _TIMES:
            raise SourceError(
                f"{self._where}: key = {self._key!r} is neither a column of whole numbers nor of times: name "
                "one that goes up from row to row"
            )
        self._is_time = kind in _TIMES
        return connection

    async def close(self) -> None:
        """Leave the database."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                await connection.close()


class _QuerySplit:
    """The rows as the agent reads them: it never waits for the database."""

    live_clock = True

    def __init__(
        self,
        device: str,
        step: str,
        rows: _Rows,
        fields: JsonFields,
        every_s: float,
        bound_us: int,
        clock: Clock,
    ) -> None:
        self.name, self.label = device, f"{device}/{step}"
        self.out_of_orderness_us, self.is_behind = bound_us, True
        self._rows, self._fields, self._every_s, self._clock = rows, fields, every_s, clock
        self._asked: asyncio.Task[list[_Row]] | None = None
        self._from, self._again_s, self._pause_s = 0, 0.0, _PAUSE_S

    async def read(self, position: int, limit: int) -> Batch:
        """The rows that the last question has brought, up to `limit`; raises `SourceError`."""
        self.is_behind = True
        now_s = self._clock.monotonic_s()
        if self._asked is None:
            if now_s >= self._again_s:
                self._from = position
                self._asked = asyncio.ensure_future(self._rows.after(position, limit))
            return Batch([], [], [], position)
        if not self._asked.done():
            return Batch([], [], [], position)
        asked, self._asked = self._asked, None
        try:
            found = asked.result()
        except OSError as error:  # a time that is over is one, too
            why = str(error) or "the database has not answered in time: see whether it runs, or set timeout_s"
            _LOG.warning("source %s: %s", self.label, why)
            self._again_s, self._pause_s = now_s + self._pause_s, min(2 * self._pause_s, _PAUSE_S_MAX)
            return Batch([], [], [], position)
        self._pause_s = _PAUSE_S
        if self._from != position:
            return Batch([], [], [], position)
        if not found:
            self.is_behind, self._again_s = False, now_s + self._every_s
        return self._batch(position, found[:limit])

    def _batch(self, position: int, rows: Sequence[_Row]) -> Batch:
        after = rows[-1].number + 1 if rows else position
        if (found := self._fields.read_all([row.raw for row in rows])) is not None:
            all_times = [now_us() if time_us is None else time_us for time_us in found[0]]
            return Batch(found[1], all_times, [row.number for row in rows], after)
        values: list[Any] = []
        times: list[int] = []
        numbers: list[int] = []
        rejects: list[Reject] = []
        for row in rows:
            try:
                time_us, value = self._fields.read(row.raw)
            except USER_ERRORS as error:  # the user's own constructor: the row is the dead letter
                code, problem = refusal_of(error)
                rejects.append(Reject(row.number, f"{self.label}: {problem}", row.raw, code=code))
                continue
            values.append(value)
            times.append(now_us() if time_us is None else time_us)
            numbers.append(row.number)
        return Batch(values, times, numbers, after, rejects)

    async def close(self) -> None:
        """Leave the database."""
        if self._asked is not None:
            await end_task(self._asked)
            self._asked = None
        await self._rows.close()


def _said(error: Exception) -> str:
    """What the database says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
