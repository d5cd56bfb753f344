"""Events: each change of apps, revisions, cuts, secrets, tokens and devices, in one numbered list.

Between the control store and who follows it by REST. Guarantees: an event is in the transaction of the change
that it tells of, so that there is never one without the other. What was told of is kept, so that no restart
has it told again. Numbers only rise, across restarts as well. Kept are the newest `EVENTS_MAX` that are not
older than `AGE_US_MAX`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from geartrain_cloud.control_store.database import ControlDatabase, as_text
from geartrain_cloud.control_store.model import ONLINE_US

EVENTS_MAX = 10_000
AGE_US_MAX = 7 * 86_400_000_000
_COLUMNS = "number, at_us, kind, app, device, said"
_TRIM = f"DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - {EVENTS_MAX}"  # noqa: S608
_CONTACT, _IN_FORCE, _PROCESS = "contact", "in force", "process"
"""Kinds of what was told of, beside what the store's own tables say."""

_APP = (
    "json_object('instance', {0}.instance, 'state', {0}.state, 'wanted', {0}.wanted, 'number', {0}.revision, "
    "'run', {0}.run, 'slots', {0}.slots, 'retain_s', {0}.retain_s, 'retain_bytes', {0}.retain_bytes, "
    "'retain_tables_s', {0}.retain_tables_s, 'why', substr({0}.why, 1, 400), 'removed', json('{1}'))"
)
_GIVEN_UP = (
    "EXISTS (SELECT 1 FROM instances WHERE instance = old.instance AND revision < old.number AND NOT EXISTS "
    "(SELECT 1 FROM revisions AS own WHERE (own.instance, own.number) = (old.instance, revision)))"
)
"""One that the instance goes over to leaves the table, too; what it ran before is there by then."""
_NEW_REPORT = (
    "NOT EXISTS (SELECT 1 FROM reports AS old WHERE (old.instance, old.device) = (new.instance, new.device) "
    "AND (old.state, old.why, old.lacks, old.cut) IS (new.state, new.why, new.lacks, new.cut))"
)
_NAME = "ifnull((SELECT name FROM instances WHERE instance = {}.instance), '')"
_REVISION = "json_object('instance', {0}.instance, 'number', {0}.{1}, 'stage', '{2}')"
_CUTS = "json_object('instance', {0}.instance, 'number', {0}.number, 'waits', json('{1}'))"
_CANARY = (
    "json_object('instance', new.instance, 'number', new.number, 'stage', new.stage, 'selector', "
    "new.selector, 'devices', json_array_length(new.devices), 'why', new.why)"
)
_DEVICE = (
    "json_object('labels', json(new.labels), 'retired', "
    "json(CASE WHEN new.retired THEN 'true' ELSE 'false' END), 'serial', new.serial, 'applied', new.applied)"
)
_PROGRAM = "json_object('wanted', new.wanted, 'version', new.version, 'runs', new.runs)"
_OF_SECRETS = (
    "json_object('name', new.name, 'version', new.version, 'removed', "
    "json(CASE WHEN length(new.value) THEN 'false' ELSE 'true' END))"
)
_PURGE = (
    "json_object('step', new.step, 'asked_by', new.asked_by, 'rows', new.rows, "
    "'quarantined', new.quarantined, 'apps', (SELECT json_group_array(key) FROM json_each(new.runs)), "
    "'kept', json(new.kept))"
)
_OF_TOKENS = (
    "json_object('name', {0}.name, 'role', {0}.role, 'made_by', {0}.made_by, "
    "'expires_us', {0}.expires_us, 'removed', json('{1}'))"
)
_REPORT = (
    "json_object('instance', new.instance, 'state', new.state, 'why', substr(new.why, 1, 400), "
    "'lacks', json(new.lacks), 'cut', new.cut)"
)


_News = tuple[tuple[str, str, int], tuple[str, str, str, str]]
"""What is told of from now on, as a row of its table; and of the event its kind, app, device and text."""


class _Told(msgspec.Struct, frozen=True):
    """A kind of change that statements of the store make: the statements and the condition, and of the event
    its kind, app, device and what it says, as SQL.
    """

    when: str
    only: str
    kind: str
    app: str
    device: str
    said: str

    def trigger(self, number: int) -> str:
        """The statement that has the event added."""
        only = f"WHEN {self.only}" if self.only else ""
        values = f"events_now_us(), '{self.kind}', {self.app}, {self.device}, {self.said}"
        add = f"INSERT INTO events (at_us, kind, app, device, said) VALUES ({values})"  # noqa: S608
        return f"CREATE TEMP TRIGGER event_{number} {self.when} {only} BEGIN {add}; {_TRIM}; END"


def _changed(*columns: str) -> str:
    """The condition that one of the columns is not what it was."""
    return " OR ".join(f"old.{one} IS NOT new.{one}" for one in columns)


_EVERY = (
    _Told("AFTER INSERT ON instances", "", "app", "new.name", "''", _APP.format("new", "false")),
    _Told(
        "AFTER UPDATE ON instances",
        _changed(
            *("state", "wanted", "why", "revision", "run", "attempt", "slots", "outline"),
            *("retain_s", "retain_bytes", "retain_tables_s"),
        ),
        "app",
        "new.name",
        "''",
        _APP.format("new", "false"),
    ),
    _Told("AFTER DELETE ON instances", "", "app", "old.name", "''", _APP.format("old", "true")),
    _Told(
        "AFTER INSERT ON revisions",
        "new.number > (SELECT revision FROM instances WHERE instance = new.instance)",
        "revision",
        _NAME.format("new"),
        "''",
        _REVISION.format("new", "number", "prepared"),
    ),
    _Told(
        "AFTER UPDATE OF revision ON instances",
        _changed("revision"),
        "revision",
        "new.name",
        "''",
        _REVISION.format("new", "revision", "logged"),
    ),
    _Told(
        "AFTER DELETE ON revisions",
        _GIVEN_UP,
        "revision",
        _NAME.format("old"),
        "''",
        _REVISION.format("old", "number", "given up"),
    ),
    _Told("AFTER INSERT ON cut_changes", "", "cut", _NAME.format("new"), "''", _CUTS.format("new", "true")),
    _Told("AFTER DELETE ON cut_changes", "", "cut", _NAME.format("old"), "''", _CUTS.format("old", "false")),
    _Told("AFTER INSERT ON canaries", "", "canary", _NAME.format("new"), "''", _CANARY),
    _Told("AFTER UPDATE ON canaries", _changed("stage"), "canary", _NAME.format("new"), "''", _CANARY),
    _Told(
        "BEFORE INSERT ON reports",
        _NEW_REPORT,
        "applied",
        _NAME.format("new"),
        "new.device",
        _REPORT,
    ),
    _Told("AFTER INSERT ON devices", "", "device", "''", "new.device", _DEVICE),
    _Told(
        "AFTER UPDATE ON devices",
        _changed("labels", "retired", "serial", "applied"),
        "device",
        "''",
        "new.device",
        _DEVICE,
    ),
    _Told("AFTER INSERT ON programs", "", "agent", "''", "new.device", _PROGRAM),
    _Told("AFTER UPDATE ON programs", _changed("wanted", "runs"), "agent", "''", "new.device", _PROGRAM),
    _Told("AFTER INSERT ON device_purges", "", "purge", "''", "new.device", _PURGE),
    _Told("AFTER UPDATE ON device_purges", _changed("step"), "purge", "''", "new.device", _PURGE),
    _Told("AFTER INSERT ON bearers", "", "token", "new.app", "''", _OF_TOKENS.format("new", "false")),
    _Told("AFTER DELETE ON bearers", "", "token", "old.app", "''", _OF_TOKENS.format("old", "true")),
    _Told("AFTER INSERT ON secrets", "", "secret", "new.app", "''", _OF_SECRETS),
    _Told("AFTER UPDATE ON secrets", "", "secret", "new.app", "''", _OF_SECRETS),
)
_FORGET = (
    "CREATE TEMP TRIGGER event_forget AFTER DELETE ON instances BEGIN "  # noqa: S608
    f"DELETE FROM told WHERE kind = '{_IN_FORCE}' AND name = old.instance; END"
)


class Event(msgspec.Struct, frozen=True):
    """One change. at_us: when it was made, on the platform's wall clock; kind: of what; app, device: whose,
    "" for nobody's; said: what holds since.
    """

    number: int
    at_us: int
    kind: str
    app: str
    device: str
    said: dict[str, Any]


class Events:
    """Those of one control store; `now_us` tells the wall clock, microseconds."""

    def __init__(self, database: ControlDatabase, now_us: Callable[[], int]) -> None:
        """Have changes of the store be told of from now on; raises `StoreError`."""
        self._database, self._now_us = database, now_us
        triggers = [one.trigger(number) for number, one in enumerate(_EVERY)]
        database.add_triggers({"events_now_us": now_us}, [*triggers, _FORGET])

    # Changes

    def look(
        self, in_force: Mapping[str, int], processes: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Tell what no statement of the store changes, where it is not what was told last. Drop what is too
        old. Raises `StoreError`.

        It is whether devices are in contact, which revision is in force, and which processes run.

        in_force: by instance its revision's number; processes: what `gear up` says of each, None for nothing.
        """
        now_us = self._now_us()
        news = [*self._contacts(now_us), *self._revisions(in_force)]
        if processes:
            news += self._processes(processes)
        oldest = self._database.rows("SELECT at_us FROM events ORDER BY number LIMIT 1")
        is_old = bool(oldest) and oldest[0][0] < now_us - AGE_US_MAX
        if not news and not is_old:
            return
        with self._database.change() as database:
            for told, event in news:
                database.execute("INSERT OR REPLACE INTO told VALUES (?, ?, ?)", told)
                database.execute(
                    "INSERT INTO events (at_us, kind, app, device, said) VALUES (?, ?, ?, ?, ?)",
                    (now_us, *event),
                )
            database.execute(_TRIM)
            if is_old:
                database.execute(
                    "DELETE FROM events WHERE number <= (SELECT max(number) FROM events WHERE at_us < ?)",
                    (now_us - AGE_US_MAX,),
                )

    def note(self, kind: str, app: str, device: str, said: Mapping[str, Any]) -> None:
        """Tell of a change that other tables do not show, within its transaction."""
        with self._database.change() as database:
            database.execute(
                "INSERT INTO events (at_us, kind, app, device, said) VALUES (?, ?, ?, ?, ?)",
                (self._now_us(), kind, app, device, as_text(said)),
            )
            database.execute(_TRIM)

    def _contacts(self, now_us: int) -> Iterator[_News]:
        rows = self._database.rows(
            "SELECT device, seen_us, seen_us >= ?1 FROM devices "
            "LEFT JOIN told ON kind = ?2 AND name = device "
            "WHERE NOT retired AND (seen_us >= ?1) != ifnull(value, 0) ORDER BY device",
            (now_us - ONLINE_US, _CONTACT),
        )
        for device, seen_us, is_online in rows:
            said = {"online": bool(is_online), "seen_us": seen_us}
            yield (_CONTACT, device, is_online), ("contact", "", device, as_text(said))

    def _revisions(self, in_force: Mapping[str, int]) -> Iterator[_News]:
        told = dict(self._database.rows("SELECT name, value FROM told WHERE kind = ?", (_IN_FORCE,)))
        for instance, number in sorted(in_force.items()):
            if told.get(instance) == number:
                continue
            for (app,) in self._database.rows("SELECT name FROM instances WHERE instance = ?", (instance,)):
                said = {"instance": instance, "number": number, "stage": _IN_FORCE}
                yield (_IN_FORCE, instance, number), ("revision", app, "", as_text(said))

    def _processes(self, processes: Mapping[str, Mapping[str, Any]]) -> Iterator[_News]:
        """What was told of a process is the id under which it runs, 0 while it does not."""
        told = dict(self._database.rows("SELECT name, value FROM told WHERE kind = ?", (_PROCESS,)))
        for name in sorted({*told, *processes}):
            one = processes.get(name, {"state": "stopped"})
            pid = one.get("pid") if one.get("state") == "running" else 0
            number = pid if isinstance(pid, int) else 0
            if told.get(name, 0) != number:
                said = {"process": name, "state": one.get("state"), "restarts": one.get("restarts", 0)}
                yield (_PROCESS, name, number), ("process", "", "", as_text(said))

    # Questions

    def last(self, kind: str, app: str, since_us: int, limit: int) -> list[Event]:
        """The newest events of a kind and an app since then, the newest first."""
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM events WHERE kind = ? AND app = ? AND at_us >= ? "  # noqa: S608
            "ORDER BY number DESC LIMIT ?",
            (kind, app, since_us, limit),
        )
        return [_event(row) for row in rows]

    def knows(self, app: str) -> bool:
        """Whether there is an app of this name, or an event of one that was purged. Raises `StoreError`."""
        question = (
            "SELECT EXISTS(SELECT 1 FROM apps WHERE name = ?1) OR EXISTS(SELECT 1 FROM events WHERE app = ?1)"
        )
        return bool(self._database.rows(question, (app,))[0][0])

    def listen(self, tell: Callable[[], None]) -> None:
        """Have `tell` called after each change of the store."""
        self._database.listeners.append(tell)

    @property
    def now_us(self) -> int:
        """The wall clock, microseconds."""
        return self._now_us()

    @property
    def newest(self) -> int:
        """The number of the last event, one that is gone, too; 0 for none."""
        rows = self._database.rows("SELECT seq FROM sqlite_sequence WHERE name = 'events'")
        return int(rows[0][0]) if rows else 0

    @property
    def begin(self) -> int:
        """The number after which all events are there."""
        rows = self._database.rows("SELECT min(number) FROM events")
        return self.newest if rows[0][0] is None else int(rows[0][0]) - 1

    def before(self, at_us: int) -> int:
        """The number after which the events are that are not before this time; the oldest ones may be gone:
        then it is one below `begin`.
        """
        rows = self._database.rows(
            "SELECT number, at_us FROM events WHERE at_us >= ? ORDER BY number LIMIT 1", (at_us,)
        )
        if not rows:
            return self.newest
        number = int(rows[0][0]) - 1
        return number - 1 if 0 < number == self.begin else number

    def after(self, number: int, limit: int, app: str = "") -> tuple[list[Event], int]:
        """The next events after that of this number, at most `limit`, and the number up to which these are
        all; app: of this one alone, "" for all. Raises `StoreError`.
        """
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM events WHERE number > ?1 AND (?2 = '' OR app = ?2) "  # noqa: S608
            "ORDER BY number LIMIT ?3",
            (number, app, limit),
        )
        found = [_event(row) for row in rows]
        return found, found[-1].number if len(found) == limit else max(number, self.newest)


def _event(row: tuple[Any, ...]) -> Event:
    number, at_us, kind, app, device, said = row
    return Event(number, at_us, kind, app, device, msgspec.json.decode(said))
