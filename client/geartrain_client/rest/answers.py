"""What the platform answers, as far as the command line shows it; other fields are passed over."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from geartrain.errors.reason import Reason
from geartrain_client.errors import FailedError

T = TypeVar("T")

RUNNING, ENDED, FAILED = "running", "ended", "failed"


class Counts(msgspec.Struct, frozen=True):
    """Devices of an app: those it is for, those that run it as it is wanted, those in contact."""

    assigned: int = 0
    applied: int = 0
    online: int = 0


class CutCount(msgspec.Struct, frozen=True):
    """A cut of an app's devices: how many are to have it, and how many run with it."""

    cut: str
    devices: int = 0
    applied: int = 0


class App(msgspec.Struct, frozen=True):
    """An app, by its instance."""

    name: str
    instance: str = ""
    state: str = ""
    wanted: str = ""
    revision: str = ""
    flow: str = ""
    isolation: str = ""
    devices: Counts = Counts()
    why: str = ""
    cuts: list[CutCount] = []


class Clock(msgspec.Struct, frozen=True):
    """The clock of a source; clock_us: None where it has none yet."""

    source: str
    clock_us: int | None = None
    held_by: list[str] = []


class Applied(msgspec.Struct, frozen=True):
    """What a device runs of an app."""

    device: str
    state: str = ""
    serial: int | None = None
    why: str = ""
    reasons: list[Reason] = []
    online: bool | None = None
    lacks: list[str] = []
    cut: str = ""
    cut_applied: bool = True


class Crossing(msgspec.Struct, frozen=True):
    """The revision that an app goes over to: how far that is, and why it is no further."""

    number: int
    stage: str = ""
    why: str = ""


class Recut(msgspec.Struct, frozen=True):
    """Other cuts for which `count` devices wait, until revision `number` is in force."""

    number: int
    count: int = 0


class KeyShare(msgspec.Struct, frozen=True):
    """A key and its share of the rows of its stream."""

    key: str
    share: float = 0.0


class Skew(msgspec.Struct, frozen=True):
    """Of the keyed stream of a step: the slot, of `slots`, that has most rows, its share, and such keys."""

    step: str
    slots: int = 0
    slot: int = 0
    share: float = 0.0
    keys: list[KeyShare] = []


class Behind(msgspec.Struct, frozen=True):
    """The devices that have not gone over to revision `number`: `count` of `of`, the first by name; online:
    of these.
    """

    number: int
    count: int = 0
    of: int = 0
    online: int = 0
    devices: list[str] = []


class FieldNote(msgspec.Struct, frozen=True):
    """A field of a table, with its unit and its description."""

    table: str
    field: str
    unit: str = ""
    description: str = ""


class Retention(msgspec.Struct, frozen=True):
    """How long rows stay in the log of an app, None for ever; what is there, and how it grew over log_span_s;
    days_to_limit: until the bytes are at their limit; tables_age_s: of rows in tables, by their event time;
    tables_removed: those that have gone by it.
    """

    age_s: float | None = None
    bytes: int | None = None
    log_bytes: int = 0
    log_bytes_per_day: float | None = None
    log_span_s: float | None = None
    days_to_limit: float | None = None
    tables_age_s: float | None = None
    tables_removed: int | None = None


class Cost(msgspec.Struct, frozen=True):
    """What an app takes on link and disk, by the last span_s; days_to_full: as the whole disk fills."""

    span_s: float | None = None
    link_bytes_per_day: int | None = None
    disk_bytes: int = 0
    disk_bytes_per_day: int | None = None
    disk_free_bytes: int | None = None
    days_to_full: float | None = None


class RefusedState(msgspec.Struct, frozen=True):
    """Cells of state that could not be taken in."""

    step: str
    reason: str = ""
    cells: int = 0


class CutMove(msgspec.Struct, frozen=True):
    """A move of a device whose cut follows what is measured of it."""

    at_us: int
    device: str
    before: str = ""
    cut: str = ""
    why: str = ""


class Adaptive(msgspec.Struct, frozen=True):
    """How many devices have such a cut, and their last moves, the newest first."""

    devices: int
    moves: list[CutMove] = []


class Canary(msgspec.Struct, frozen=True):
    """The devices that run a revision before the others do. stage: `waits`, `runs`, `promoted` or `went
    back`; crossed: of `count`; until_us: None until they are told of it.
    """

    number: int
    stage: str
    count: int
    crossed: int = 0
    why: str = ""
    devices: list[str] = []
    until_us: int | None = None
    is_open: bool = False


class AppInfo(App, frozen=True):
    """An app with what stands where. bundled: whether its code is a signed bundle; number: of the newest
    revision that its log was told of; change: the one that it goes over to, None where it stays; cut_change:
    the cuts that devices are to get then; adaptive: of devices whose cut follows what they measure; canary:
    the last one, None where there was none; crossing: the devices that have not gone over, None for none;
    slots: over how many its keys are to be dealt in the data centre, slots_now: over how many they are, None
    where nobody says; skew: how unevenly, of the last minutes; notes: of fields of its tables.
    """

    clocks: list[Clock] = []
    applied: list[Applied] = []
    rates: dict[str, Any] = {}
    retention: Retention = Retention()
    cost: Cost = Cost()
    lag: Any = None
    dead_letters: Any = None
    refused_state: list[RefusedState] | None = None
    unread_rows: dict[str, int] = {}
    tables: str = ""
    files: list[str] = []
    waits_for: list[str] = []
    code: str = ""
    bundled: bool = False
    number: int = 1
    change: Crossing | None = None
    cut_change: Recut | None = None
    adaptive: Adaptive | None = None
    canary: Canary | None = None
    slots: int = 0
    slots_now: int | None = None
    skew: list[Skew] = []
    crossing: Behind | None = None
    notes: list[FieldNote] = []


class Submitted(msgspec.Struct, frozen=True):
    """The answer to a submit; note: what the one who submits should know."""

    name: str
    instance: str
    revision: str = ""
    devices: list[str] = []
    note: str = ""


class Join(msgspec.Struct, frozen=True):
    """What a device joins with; expires_us: when its token ends, on the platform's clock."""

    url: str
    token: str
    ca_fingerprint: str
    expires_us: int


class SecretOn(msgspec.Struct, frozen=True):
    """A device that is to have a secret. version: that it has, 0 for none; why: it has not the newest one."""

    device: str
    version: int
    why: str


class Secret(msgspec.Struct, frozen=True):
    """A secret of an app, without its value. set_us: on the platform's clock; devices: the first of those
    that are to have it, of which there are `wanted`; applied: how many have this version.
    """

    app: str
    name: str
    version: int
    set_us: int
    wanted: int
    applied: int
    devices: list[SecretOn]


class Token(msgspec.Struct, frozen=True):
    """A token by which a platform is driven, for one app or "" for all. Times are the platform's; used_us:
    when it was used last, to the minute, 0 for never.
    """

    name: str
    role: str
    app: str = ""
    made_us: int = 0
    made_by: str = ""
    expires_us: int = 0
    used_us: int = 0


class MadeToken(Token, frozen=True, kw_only=True):
    """One that was just made, and the token itself."""

    token: str


class AuditEntry(msgspec.Struct, frozen=True):
    """A request that was to change something. token: by whom; asked: what of it is told; status: of HTTP, 0
    where control ended before it was answered; result: the error's code, or ok; address: where it came from.
    """

    number: int
    time_us: int
    token: str
    method: str
    path: str
    role: str = ""
    asked: dict[str, Any] = {}
    status: int = 0
    result: str = ""
    address: str = ""


class Event(msgspec.Struct, frozen=True):
    """Something that has changed. at_us: when, on the platform's clock; kind: of what; app, device: whose, ""
    for nobody's; said: what holds since.
    """

    number: int
    at_us: int
    kind: str
    app: str = ""
    device: str = ""
    said: dict[str, Any] = {}


class Table(msgspec.Struct, frozen=True):
    """A table of an app."""

    name: str
    columns: list[Any] = []
    rows: int | None = None


class OpenWindow(msgspec.Struct, frozen=True):
    """A window of a key that is open, microseconds, and what its result would be by now."""

    start_us: int
    end_us: int
    result: Any = None


class SilentDevice(msgspec.Struct, frozen=True):
    """A device that did not answer; seen_us: when it was heard last, None for never."""

    device: str
    seen_us: int | None = None


class KeyState(msgspec.Struct, frozen=True):
    """What a running app keeps of a key at the end of a micro-batch, or at a commit of a device.

    found: whether it keeps anything; keys: some of the step's, where none was asked for; clock_us: the event
    time that the step has reached, None for none; positions: of the log, by partition; device, epoch, seq:
    who has told it, and the last batch of that commit; silent: devices that did not answer.
    """

    instance: str = ""
    step: str = ""
    run: int = 1
    key: Any = None
    found: bool = False
    state: Any = None
    windows: list[OpenWindow] = []
    timers_us: list[int] = []
    forgets_us: int | None = None
    keys: list[Any] = []
    clock_us: int | None = None
    positions: dict[str, int] = {}
    answered_us: int = 0
    device: str = ""
    epoch: str = ""
    seq: int = 0
    silent: list[SilentDevice] = []


class Page(msgspec.Struct, frozen=True):
    """Rows of a table."""

    columns: list[Any]
    rows: list[list[Any]]
    next: str | int | None = None


class Line(msgspec.Struct, frozen=True):
    """A line that a process has printed."""

    process: str
    line: str


class Process(msgspec.Struct, frozen=True):
    """A process of the platform."""

    name: str
    state: str = ""
    pid: int | None = None
    restarts: int = 0
    rss_bytes: int | None = None
    cpu_percent: float | None = None
    version: str | None = ""
    waits_for: str | list[str] | None = ""
    since_us: int | None = None


class Status(msgspec.Struct, frozen=True):
    """The processes of a platform."""

    version: str = ""
    url: str = ""
    processes: list[Process] = []


def answer_as(kind: type[T], value: Any) -> T:
    """`value` as a `kind`; raises `FailedError` where the platform sent something else."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise FailedError(
            f"the platform sent what gear does not know ({error}): install the same version of both"
        ) from None


def column_name(column: Any) -> str:
    """The name of a column, which is a text or an object with a name."""
    return str(column.get("name", "")) if isinstance(column, dict) else str(column)
