"""What REST answers, as types: the other half of its contract, beside the bodies and parameters.

Beside the routes that declare them. Guarantees: each answer has these fields and no others; what nobody
reports is null. Times end in `_us`: microseconds since 1970 UTC, those of events excepted where it is said.
The OpenAPI document is made of them, and the tests hold every answer against its type.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from geartrain.revision import Change
from geartrain_cloud.control_store.bearers import Role
from geartrain_cloud.hosting.wanted import Isolation

Number = int | float
Json = Any
"""Any JSON, such as the value of a user's field."""


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the answers: a field that is not here is a mistake."""


class Done(_Answer, frozen=True):
    """Nothing more is to be said."""


class ErrorText(_Answer, frozen=True):
    """An error: a word for programs, and a sentence that says what was wrong and what to do."""

    code: str
    sentence: str


class Failure(_Answer, frozen=True):
    """What every error is."""

    error: ErrorText


class ReasonCode(_Answer, frozen=True):
    """Why something is as it is, for programs. code: empty for no reason; details: what the sentence beside
    it names.
    """

    code: str
    details: dict[str, Json]


# Who may ask


class Token(_Answer, frozen=True):
    """A token without what it is. app: the only one that it is for, empty for the whole platform; made_by:
    the name of the token that made it; used_us: when it was used last, to the minute, 0 for never.
    """

    name: str
    role: Role
    app: str
    made_us: int
    made_by: str
    expires_us: int
    used_us: int


class Tokens(_Answer, frozen=True):
    """A page of the tokens."""

    items: list[Token]
    next: str | None


class MadeToken(Token, frozen=True, kw_only=True):
    """A token that was made, and what it is."""

    token: str


class Named(_Answer, frozen=True):
    """What was changed, by its name."""

    name: str


class SecretOn(_Answer, frozen=True):
    """A device that is to have a secret. version: the one that it has, 0 for none; why: it has not the newest
    one, empty where it has.
    """

    device: str
    version: int
    why: str


class Secret(_Answer, frozen=True):
    """A secret of an app, without its value. version: goes up with each value; set_us: when it was set;
    wanted: how many devices are to have it; applied: how many have this version; devices: the first of them,
    with those before that have it not.
    """

    app: str
    name: str
    version: int
    set_us: int
    wanted: int
    applied: int
    devices: list[SecretOn]


class Secrets(_Answer, frozen=True):
    """A page of the secrets."""

    items: list[Secret]
    next: str | None


class AuditEntry(_Answer, frozen=True):
    """A request that was to change something. token, role: who asked; app, device: in its path; asked: what
    its body holds, but for what may be secret; status: of HTTP, 0 where control ended before it answered;
    result: ok, or a word for the error; address: where it came from. An entry without a path counts the wrong
    tokens of a minute.
    """

    number: int
    time_us: int
    token: str
    role: Role | Literal[""]
    method: str
    path: str
    app: str
    device: str
    asked: dict[str, Json]
    status: int
    result: str
    address: str


class Audit(_Answer, frozen=True):
    """A page of the audit log, the newest first."""

    items: list[AuditEntry]
    next: int | None


# Processes


class Process(_Answer, frozen=True):
    """A process of the platform: what the supervisor and the system tell of it."""

    name: str
    state: str
    pid: int | None
    restarts: int
    rss_bytes: int | None
    cpu_percent: Number | None
    version: str
    waits_for: str
    since_us: int | None


class Status(_Answer, frozen=True):
    """The processes of the platform; url: where REST answers; state: the state folder."""

    version: str
    url: str
    state: str
    processes: list[Process]


# Apps


class Counts(_Answer, frozen=True):
    """Devices of an app: those it is for, those that run it as it is wanted, those in contact."""

    assigned: int
    applied: int
    online: int


class CutCount(_Answer, frozen=True):
    """A cut of an app's devices: how many are to have it, and how many run with it."""

    cut: str
    devices: int
    applied: int


class App(_Answer, frozen=True):
    """An app, by its newest instance. number: of its newest revision, whose hash is `revision`; code: the
    hash of its files; bundled: whether that is a signed bundle.
    """

    name: str
    instance: str
    state: str
    wanted: str
    revision: str
    flow: str
    isolation: Isolation
    number: int
    code: str
    bundled: bool
    devices: Counts
    why: str
    cuts: list[CutCount]


class Apps(_Answer, frozen=True):
    """A page of the apps; next: what `after` of the next page is, null at the end."""

    items: list[App]
    next: str | None


class Crossing(_Answer, frozen=True):
    """The revision that an app goes over to: how far that is, and why it is no further."""

    number: int
    stage: str
    why: str


class CutsToCome(_Answer, frozen=True):
    """Cuts for which `count` devices wait, the first 100 by name, until revision `number` is in force."""

    number: int
    count: int
    devices: list[str]


class SourceInfo(_Answer, frozen=True):
    """A source of the flow, and the selector of the app's devices that have it."""

    id: str
    bounded: bool
    devices: str


class ChannelInfo(_Answer, frozen=True):
    """A channel with the sources above it, and how many rows of it were logged."""

    id: str
    sources: list[str]
    rows: int | None


class SourceClock(_Answer, frozen=True):
    """The clock of a source, an event time, null for none yet; held_by: the devices that hold it back."""

    source: str
    clock_us: int | None
    held_by: list[str]


class Applied(_Answer, frozen=True):
    """What a device runs of an app; lacks: sources that it does not have; reasons: why the app does not run
    there as it is to, for programs: `awaits_state`, `state_stays` or `went_back`.
    """

    device: str
    state: str
    serial: int
    why: str
    reasons: list[ReasonCode]
    online: bool
    lacks: list[str]
    cut: str
    cut_applied: bool


class Hosted(_Answer, frozen=True):
    """What the Spark host says of an app."""

    state: str
    why: str
    rows: int
    run: int


class KeyShare(_Answer, frozen=True):
    """A key, and the part of the rows of its stream that are of it."""

    key: str
    share: Number


class Skew(_Answer, frozen=True):
    """Of a keyed stream, the slot with most rows, its part of them, and the keys with most rows."""

    step: str
    slots: int
    slot: int
    share: Number
    keys: list[KeyShare]


class Behind(_Answer, frozen=True):
    """The devices that have not gone over to revision `number`: `count` of `of`, the first 100 by name;
    online: of these.
    """

    number: int
    count: int
    of: int
    online: int
    devices: list[str]


class FieldNote(_Answer, frozen=True):
    """A field of a table that has a unit or a description; the other of the two may be empty."""

    table: str
    field: str
    unit: str
    description: str


class Retention(_Answer, frozen=True):
    """How long an app's rows stay in the log, and what it takes. age_s: the stricter one of the app's and the
    platform's, bytes: of the app; null for no limit. log_bytes: of its segments, log_bytes_per_day: how many
    came in the last log_span_s. days_to_limit: until the bytes are reached; null where nobody knows.
    tables_age_s: by the event time of rows in tables; tables_removed: the rows that have gone by it, null
    where the tables do not answer.
    """

    age_s: float | None
    bytes: int | None
    log_bytes: int
    log_bytes_per_day: float | None
    log_span_s: float | None
    days_to_limit: float | None
    tables_age_s: float | None
    tables_removed: int | None


class Cost(_Answer, frozen=True):
    """What an app takes, by the last span_s. link_bytes_per_day: of batches that ingest took. disk_bytes: of
    its log, its tables in SQLite and its outbox; disk_bytes_per_day: how that grows. disk_free_bytes: of the
    whole disk; days_to_full: as it fills, by whomever; null where it does not, or nobody knows.
    """

    span_s: float | None
    link_bytes_per_day: int | None
    disk_bytes: int
    disk_bytes_per_day: int | None
    disk_free_bytes: int
    days_to_full: float | None


class Retained(_Answer, frozen=True):
    """How long rows of an app stay by its own limits; 0 for no limit of its own."""

    name: str
    instance: str
    age_s: float
    bytes: int
    tables_age_s: float


class RefusedState(_Answer, frozen=True):
    """Cells of state that could not be taken in where a step has gone. They are in the table dead_letters."""

    step: str
    reason: str
    cells: int


class CutMove(_Answer, frozen=True):
    """A move of a device whose cut follows what is measured of it."""

    at_us: int
    device: str
    before: str
    cut: str
    why: str


class Adaptive(_Answer, frozen=True):
    """Devices whose cuts follow what is measured of them: how many, and the last ten moves, the newest first,
    as far as events tell.
    """

    devices: int
    moves: list[CutMove]


class Canary(_Answer, frozen=True):
    """The devices that run a revision before the others do, or did so last. number: by which they run it;
    code: of it; stage: `waits` until that number is in force, `runs` on them, and then `promoted` or `went
    back`; why: so, in one sentence; count: of the devices, the first 100 by name; crossed: of them; since_us,
    until_us: null until they are told of it; is_open: the log was not told of what follows.
    """

    number: int
    code: str
    stage: str
    why: str
    selector: str
    count: int
    crossed: int
    devices: list[str]
    since_us: int | None
    until_us: int | None
    is_open: bool


class AppInfo(App, frozen=True):
    """All that is known of an app. adaptive: null where no device has such a cut; canary: the last one.
    slots: over how many its keys are to be dealt, slots_now: are dealt; skew: where most rows are; tables:
    where they are; files: the folders of Parquet and Delta tables beside them; rates: by hop; lag: entries of
    the log that the tables have not; refused_state: by step and reason, null where the tables cannot be read;
    unread_rows: of the log, by channel, that no step reads since a revision; waits_for: a sentence each;
    applied: the first 100 devices; notes: of the first 1,000 fields of its tables that have some.
    """

    cut: str
    cut_change: CutsToCome | None
    adaptive: Adaptive | None
    canary: Canary | None
    selector: str
    run: int
    slots: int
    slots_now: int | None
    skew: list[Skew]
    change: Crossing | None
    crossing: Behind | None
    tables: str
    files: list[str]
    submitted_us: int
    options: dict[str, dict[str, Json]]
    sources: list[SourceInfo]
    channels: list[ChannelInfo]
    clocks: list[SourceClock]
    rates: dict[str, dict[str, Number]]
    retention: Retention
    cost: Cost
    lag: int | None
    dead_letters: int | None
    refused_state: list[RefusedState] | None
    unread_rows: dict[str, int]
    host: Hosted | None
    waits_for: list[str]
    applied: list[Applied]
    notes: list[FieldNote]


class Submitted(_Answer, frozen=True):
    """A submit that was accepted; note: what the one who submits should know, empty for nothing."""

    name: str
    instance: str
    revision: str
    devices: list[str]
    isolation: Isolation
    note: str


class HistoryFile(_Answer, frozen=True):
    """How much of a file of history has come; whole: all of it, as its digest says."""

    bytes: int
    whole: bool


class Backfilled(_Answer, frozen=True):
    """What becomes of a history. way: `before` the live records of the device, or `apart`; reason: why apart;
    app: in whose tables it is; is_new: false where it was brought in before.
    """

    name: str
    instance: str
    way: Literal["before", "apart"]
    reason: str
    app: str
    device: str
    is_new: bool


class Accepted(_Answer, frozen=True):
    """A change of an app that was accepted, and the state that it is in by now."""

    name: str
    instance: str
    state: str


class Run(_Answer, frozen=True):
    """The run that begins."""

    run: int


class StepState(_Answer, frozen=True):
    """State of a step that a change concerns, on a tier; becomes: of it. cells, bytes: without keys, as was
    said last; null where nobody has said. unsaid: devices of which it is not known.
    """

    step: str
    tier: Literal["edge", "cloud"]
    becomes: Literal["kept", "dropped", "refused"]
    cells: int | None
    bytes: int | None
    unsaid: int


class Updated(_Answer, frozen=True):
    """What an update comes to. former: the code before; state: of the steps that change and keep something;
    refusals: of a dry run, why it would not be done; given_up: the revision that a rollback has given up;
    canary: the devices that run it first.
    """

    name: str
    instance: str
    revision: str
    number: int
    code: str
    former: str
    devices: list[str]
    change: Change
    state: list[StepState]
    refusals: list[str] | UnsetType = UNSET
    given_up: int | UnsetType = UNSET
    canary: list[str] | UnsetType = UNSET


class DeviceRecut(_Answer, frozen=True):
    """A device and its cut; why: where the cut was chosen for the device by what was measured of it."""

    device: str
    before: str
    cut: str
    why: str | UnsetType = UNSET


class StepMoved(_Answer, frozen=True):
    """A step that goes to another tier on so many devices; keeps: what it keeps goes with it. cells, bytes:
    of that state, without keys, as was said last; null where nobody has said. at_most: there are those of
    other devices among them; unsaid: devices of which it is not known.
    """

    step: str
    to: Literal["edge", "cloud"]
    keeps: bool
    devices: int
    cells: int | None
    bytes: int | None
    at_most: bool
    unsaid: int


class Recut(_Answer, frozen=True):
    """What other cuts come to. devices: the first 100 of `count`, and with `auto` those behind them that
    stay as they are; revises: whether it needs a revision, whose number is `number`; micro_batches, pause_ms:
    about how long steps with state pause, as micro-batches take now; behind_entries: of the log that come
    before what devices ask for, in pause_ms as well; the way of the state over the link comes on top.
    refusals: of a dry run, why it would not be done.
    """

    name: str
    instance: str
    number: int
    revises: bool
    count: int
    devices: list[DeviceRecut]
    moves: list[StepMoved]
    micro_batches: int
    behind_entries: int
    pause_ms: int
    refusals: list[str] | UnsetType = UNSET


class Scaled(_Answer, frozen=True):
    """Other slots for an app, and how long it pauses, as its micro-batches take now. state_bytes: what its
    slots keep, whose move comes on top; null until each of them has run since the Spark host began. refusals:
    of a dry run, why it would not be done.
    """

    name: str
    instance: str
    slots: int
    former: int
    micro_batches: int
    state_bytes: int | None
    pause_ms: int
    refusals: list[str] | UnsetType = UNSET


class RevisionItem(_Answer, frozen=True):
    """A revision of an app; code_before: the code that `code` has taken the place of, "" for none; drops: the
    steps that lost what they had kept; without: those removed; behind: of the one in force, the first 100
    devices that have not gone over to it.
    """

    number: int
    made_us: int
    flow: str
    revision: str
    code: str
    code_before: str
    bundled: bool
    drops: list[str]
    without: list[str]
    state: str
    behind: list[str] | UnsetType = UNSET
    behind_count: int | UnsetType = UNSET


class Revisions(_Answer, frozen=True):
    """A page of the revisions of an app, the newest first."""

    items: list[RevisionItem]
    next: int | None


class Line(_Answer, frozen=True):
    """A line that a process has printed."""

    process: str
    line: str


class Lines(_Answer, frozen=True):
    """The last lines of what works for an app."""

    items: list[Line]


class Table(_Answer, frozen=True):
    """A table of an app."""

    name: str
    columns: list[str]
    rows: int


class Tables(_Answer, frozen=True):
    """A page of the tables of an app."""

    items: list[Table]
    next: str | None


class Rows(_Answer, frozen=True):
    """A page of a table: each row has a value for each of the columns."""

    columns: list[str]
    rows: list[list[Json]]
    next: str | None


class OpenWindow(_Answer, frozen=True):
    """A window of a key that is open, event times, and what its result would be by now."""

    start_us: int
    end_us: int
    result: Json


class SilentDevice(_Answer, frozen=True):
    """A device that did not answer, and when it was heard last."""

    device: str
    seen_us: int | None


class KeyState(_Answer, frozen=True):
    """What a running app keeps of a key. clock_us, clocks: event times that the step and the sources have
    reached; positions: of the log, by partition; device, epoch, seq, silent: of a step on devices.
    """

    app: str
    instance: str
    run: int
    step: str
    key: Json
    found: bool
    state: Json
    windows: list[OpenWindow]
    timers_us: list[int]
    forgets_us: int | None
    keys: list[Json]
    clock_us: int | None
    clocks: dict[str, int]
    positions: dict[str, int]
    answered_us: int
    device: str | UnsetType = UNSET
    epoch: str | UnsetType = UNSET
    seq: int | UnsetType = UNSET
    silent: list[SilentDevice] | UnsetType = UNSET


class Explanation(msgspec.Struct, frozen=True):
    """Why a row is so. row: its values; made_by: the steps; records: those of the log behind it, counted and
    the last ones shown; reproduced: whether they alone make the row again; notes: what is not known.
    """

    app: str
    instance: str
    table: str
    step: str
    row: dict[str, Json]
    rows_of_key: int
    revision: str
    made_by: list[dict[str, Json]]
    channels: list[dict[str, Json]]
    records: dict[str, Json]
    reproduced: bool | None
    why: str
    notes: list[str]


class Records(msgspec.Struct, frozen=True):
    """A page of the records of an app in the log. after, upto: for the next page, by partition; done: whether
    this is the last; removed: by channel, up to which entry rows are gone; types: by channel and id, the
    schemas of the records in the page, each of which names its own; given_up: by channel the layouts of those
    whose records are dead letters.
    """

    app: str
    instance: str
    flow: str
    cut: Json
    cuts: list[str]
    options: dict[str, dict[str, Json]]
    revision: str
    records: list[dict[str, Json]]
    after: dict[str, int]
    upto: dict[str, int]
    clocks: dict[str, int]
    removed: dict[str, int]
    types: dict[str, dict[str, str]]
    given_up: dict[str, list[str]]
    done: bool


# What changes


EventKind = Literal[
    "begin",
    "missed",
    "end",
    "app",
    "revision",
    "cut",
    "moved",
    "applied",
    "secret",
    "device",
    "contact",
    "agent",
    "purge",
    "process",
    "token",
    "log",
    "certificate",
    "backup",
    "key",
    "bundle",
]


PurgeStep = Literal["planned", "stopping", "replaying", "done", "failed"]


class Purge(_Answer, frozen=True):
    """What is erased of a device. step: how far it is; rows, quarantined: of the log, and batches; replays:
    instances that make their tables anew; waits_for: what is still to come; leaves: instances that stay as
    they are; stops: the processes that pause; obstacles: why it could not begin; not_reached: what to look
    after oneself, a line each.
    """

    device: str
    step: PurgeStep
    asked_us: int
    done_us: int | None
    asked_by: str
    rows: int
    quarantined: int
    replays: list[str]
    waits_for: list[str]
    leaves: list[str]
    stops: list[str]
    obstacles: list[str]
    not_reached: list[str]
    why: str


class Event(_Answer, frozen=True):
    """One change. kind: of what; app, device: whose, empty for nobody's; said: what holds since. `begin`:
    what follows comes after this number. `missed`: events between the last one and what follows are gone, so
    read the lists. `end`: the stream ends, and `why` says for what reason.
    """

    number: int
    at_us: int
    kind: EventKind
    app: str
    device: str
    said: dict[str, Json]


# Devices


class Agent(_Answer, frozen=True):
    """Which program a device runs, which one it is to run, and how far that is; machine: its Python."""

    version: str
    program: str
    machine: str
    wanted: str
    wanted_version: str
    state: str
    why: str


class Device(_Answer, frozen=True):
    """A device. serial: of what it is to run; applied: the one that it has reported; clones: a sentence where
    there are two of it; certificate_until_us, joins_until_us: on a platform that is open.
    """

    name: str
    labels: dict[str, str]
    local: bool
    retired: bool
    serial: int
    applied: int
    seen_us: int | None
    online: bool
    clones: str
    agent: Agent
    certificate_until_us: int | UnsetType | None = UNSET
    joins_until_us: int | UnsetType | None = UNSET


class Devices(_Answer, frozen=True):
    """A page of the devices."""

    items: list[Device]
    next: str | None


class AppOfDevice(_Answer, frozen=True):
    """An app that a device is to run. number, code: of the revision that it is told to run; canary: before
    other devices.
    """

    name: str
    instance: str
    draining: bool
    number: int
    code: str
    canary: bool
    cut: str
    state: str
    why: str
    lacks: list[str]


class DeviceInfo(Device, frozen=True, kw_only=True):
    """A device with its apps; refused: why it is told nothing, empty where it is told."""

    apps: list[AppOfDevice]
    refused: str


class KeptApp(_Answer, frozen=True):
    """An app that a device keeps though the selector does not mean it any more."""

    name: str
    selector: str


class KeptSource(_Answer, frozen=True):
    """A source with which, or without which, a device goes on though its selector says otherwise now."""

    name: str
    source: str
    has: bool


class Labelled(Device, frozen=True, kw_only=True):
    """A device with other labels."""

    kept: list[KeptApp]
    sources: list[KeptSource]


class Added(_Answer, frozen=True):
    """A device that was added; file: what `gear-agent --device` reads; joins: whether it joins by a token."""

    device: Device
    file: dict[str, Json]
    joins: bool


class Join(_Answer, frozen=True):
    """What a device joins with, once."""

    url: str
    token: str
    ca_fingerprint: str
    expires_us: int


class Revoked(_Answer, frozen=True):
    """How many certificates were good till now; broker: what a person has to do at a broker elsewhere."""

    name: str
    revoked: int
    broker: str


class Upgraded(_Answer, frozen=True):
    """The program that devices are to run, and those of which another one was wanted."""

    program: str
    version: str
    changed: list[str]


class Trusted(_Answer, frozen=True):
    """What the next version of signed metadata is made of: root and targets as they were signed, empty for
    none; keys: the public ones of the platform's roles; used: hashes of code that must stay.
    """

    keys: dict[str, str]
    root: str
    targets: str
    used: list[str]


# What a person looks into


class LogChannel(_Answer, frozen=True):
    """A channel in one partition of the log. first, last: positions of its entries; position, clocks: of the
    newest entry there; old_files: files that no entry names any more; clock_time: the least clock as text.
    """

    flow: str
    partition: int
    channel: str
    first: int
    last: int
    position: int
    rows: int
    segments: int
    bytes: int
    old_files: int
    old_bytes: int
    clocks: dict[str, int]
    clock_time: str | None


class LogChannels(_Answer, frozen=True):
    """A page of the channels."""

    items: list[LogChannel]
    next: int | None


class LogEntry(_Answer, frozen=True):
    """An entry of the log, with the clocks after it; detail: why it was made, as a sentence; reason: the same
    for programs; rows: its rows, where they were asked for.
    """

    position: int
    kind: str
    channel: str
    source: str
    clocks: dict[str, int]
    clock_times: dict[str, str | None]
    device: str
    epoch: str
    seq: int
    segment: str
    first_row: int
    count: int
    detail: str
    reason: ReasonCode
    rows: list[dict[str, Json]] | UnsetType = UNSET


class LogEntries(_Answer, frozen=True):
    """A page of entries; next: the position to go on after, where rows have cut the page short."""

    items: list[LogEntry]
    next: int | None


class Damage(_Answer, frozen=True):
    """What is damaged: positions `first` to `last`, or a whole file where these are 0."""

    flow: str
    partition: int
    channel: str
    first: int
    last: int
    file: str
    reason: str


class Verified(_Answer, frozen=True):
    """Whether the log is whole, and what was read."""

    whole: bool
    entries: int
    placed: int
    rows: int
    segments: int
    segment_bytes: int
    unchecked: int
    damages: list[Damage]


class Trimmed(_Answer, frozen=True):
    """The segments that went; held: those that a query still needs."""

    segments: int
    bytes: int
    bytes_left: int
    held: int


class LogQuery(_Answer, frozen=True):
    """A query that reads the log, and up to which position of a partition it is done."""

    name: str
    flow: str
    key: str
    position: int


class LogQueries(_Answer, frozen=True):
    """A page of the queries."""

    items: list[LogQuery]
    next: int | None


class LogDevice(_Answer, frozen=True):
    """Where a device stands in a flow. holds: the sources whose clock waits for it; excluded: those whose
    clock does not; misplaced: values that came from another device, too.
    """

    flow: str
    device: str
    last_contact: str | None
    epoch: str
    ordinal: int
    seq: int
    spooled_seq: int | None
    unacked: int | None
    spool_bytes: int | None
    event_time: str | None
    behind_s: Number | None
    holds: list[str]
    excluded: list[str]
    misplaced: list[dict[str, Json]]


class LogDevices(_Answer, frozen=True):
    """A page of devices by flow."""

    items: list[LogDevice]
    next: int | None


class Quarantined(_Answer, frozen=True):
    """A batch that was kept out of the log, and why."""

    number: int
    device: str
    flow: str
    epoch: str
    seq: int
    count: int
    bytes: int
    state: str
    reason: str


class Quarantine(_Answer, frozen=True):
    """A page of the quarantine."""

    items: list[Quarantined]
    next: int | None


class QuarantinedBatch(Quarantined, frozen=True, kw_only=True):
    """A batch with its header, or why that cannot be decoded, and with its bytes in hexadecimal."""

    header: dict[str, Json] | str
    payload: str


class LetterItem(_Answer, frozen=True):
    """A record that could not be processed, and why. device: empty for a step in the data centre; code: what
    kind of refusal it is, for programs; reason: for people.
    """

    id: str
    device: str
    flow: str
    step: str
    event_time: str | None
    state: str
    code: str
    reason: str


class Letters(_Answer, frozen=True):
    """A page of dead letters; count: of all."""

    items: list[LetterItem]
    count: int
    next: int | None


class Letter(LetterItem, frozen=True, kw_only=True):
    """A dead letter with its origin and its raw form, as text and in hexadecimal."""

    origin: list[Json]
    raw: str
    raw_hex: str


class Resubmitted(_Answer, frozen=True):
    """The entry of the log that rows have become; overtaken: how many of them lie below the clock."""

    flow: str
    channel: str
    partition: int
    position: int
    rows: int
    overtaken: int


class ErasedRows(_Answer, frozen=True):
    """What went out of the log, or would: rows of `flows` in so many segments, and quarantined batches.
    assigned: the flows that the device is still a member of: what it sends on is logged again.
    """

    changed: bool
    flows: list[str]
    segments: int
    rows: int
    quarantined: int
    assigned: list[str]


class Certificate(_Answer, frozen=True):
    """A certificate: whom it is for, its end and its revocation."""

    serial: str
    kind: str
    name: str
    not_after: str
    revoked_at: str | None


class Certificates(_Answer, frozen=True):
    """A page of what was issued."""

    items: list[Certificate]
    next: int | None


class Authority(_Answer, frozen=True):
    """The authority that was made: its certificate as PEM, and what tells it from others."""

    fingerprint: str
    certificate: str


class SignedCertificate(Certificate, frozen=True, kw_only=True):
    """A certificate that was issued, and that of the authority which has signed it, both as PEM."""

    certificate: str
    authority: str


class RevokedCertificates(_Answer, frozen=True):
    """The certificates that were revoked now, and the list on the platform's machine that says so."""

    revoked: list[Certificate]
    crl: str


# Backups


class Backup(_Answer, frozen=True):
    """A backup. doing: what is being done for it now; file: where it is on the platform's disk; made_us: the
    moment that it is of; elsewhere: sentences on what is not in it; why: it has failed.
    """

    name: str
    state: Literal["running", "made", "failed"]
    doing: str
    file: str
    begun_us: int
    made_us: int | None
    files: int
    bytes: int
    elsewhere: list[str]
    why: str


class Backups(_Answer, frozen=True):
    """A page of backups."""

    items: list[Backup]
    next: int | None
