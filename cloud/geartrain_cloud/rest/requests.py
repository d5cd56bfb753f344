"""The form of a REST request: its parameters and its body, checked before anything is done.

Between the server and the control store. Guarantees: what a body may hold is listed here, and anything else
is refused by name. A mistake is one sentence that names the field.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from aiohttp import web

from geartrain.control.questions import KEY_CHARS_MAX
from geartrain.errors.conversion import ConversionCode, read_conversion
from geartrain.fleet.labels import check_device, shown
from geartrain.printable import printable
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain_cloud.changes.editing import Edit
from geartrain_cloud.changes.fitting import CAPACITY
from geartrain_cloud.control_store.bearers import Role
from geartrain_cloud.control_store.errors import InvalidError, UnsupportedError
from geartrain_cloud.control_store.model import Mode, Options
from geartrain_cloud.hosting.wanted import SLOTS_MAX, Isolation
from geartrain_cloud.pages.questions import ADDRESS_CHARS_MAX, Question

BODY_BYTES_MAX = 4 << 20
LIMIT, LIMIT_MAX = 100, 1_000
IDEMPOTENCY_KEY_CHARS_MAX = 200
CUTS_MAX = 100
"""Cuts for devices that a submit names."""
HISTORY_FILES_MAX = 1_000
HOSTS_MAX = 100
REQUEST_CHARS_MAX = 10_000
STEPS_MAX = 1_000
"""Steps that an update names."""
CANARY_S, CANARY_S_MAX = 600.0, 7 * 86_400.0
"""How long the devices of a canary are looked at: if nothing is said, and at the most."""
TOKEN_S_MAX = 366 * 86_400.0
BEARER_S_MAX = 3_660 * 86_400.0
LINES_MAX = 10_000
ROWS_MAX = 10_000
SKIP_MAX = 10**15
WAIT_S_MAX = 50
"""How long a question to an app waits at the most: less than it is kept."""
SHOWN_MAX = 1_000
ROW_KEY_CHARS_MAX = 1_000
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_BOOLS = {"true": True, "false": False}
"""As JSON writes them."""
_READ = (
    msgspec.inspect.BoolType,
    msgspec.inspect.IntType,
    msgspec.inspect.LiteralType,
    msgspec.inspect.StrType,
)
"""The types of parameters."""
S = TypeVar("S", bound=msgspec.Struct)


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the bodies: a field that is not known is an error."""


class DeviceCut(_Body, frozen=True):
    """A cut of the devices that a selector means; the last that means a device holds."""

    devices: str
    cut: str


Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class SubmitBody(_Body, frozen=True):
    """A submit: `set` and each of `device_set` hold `step.option: value`; a text is converted by the
    option's annotation. Devices other than all, of which there is none, are refused, but for allow_none.
    """

    name: str
    flow: str
    cut: str = "auto"
    devices: str = "all"
    set: dict[str, Any] = {}
    device_set: dict[str, dict[str, Any]] = {}
    revision: dict[str, Any] = {}
    isolation: Isolation = "shared"
    device_cuts: Annotated[list[DeviceCut], msgspec.Meta(max_length=CUTS_MAX)] = []
    retain_s: Seconds = 0.0
    retain_bytes: Size = 0
    retain_tables_s: Seconds = 0.0
    allow_none: bool = False


class RetainBody(_Body, frozen=True):
    """`POST /apps/{name}/retain`: how long its rows stay in the log, by age and by size, and in tables, by
    event time; absent: as before, 0: as long as those of all apps.
    """

    age_s: Seconds | None = None
    bytes: Size | None = None
    tables_age_s: Seconds | None = None


class CutBody(_Body, frozen=True):
    """Another cut: the devices of the app that get the cut; dry_run: only tell what would
    move; capacity: for `auto` and `adaptive`, the share of one core that the app may take of a
    device.
    """

    cut: str
    devices: str = "all"
    dry_run: bool = False
    capacity: Annotated[float, msgspec.Meta(gt=0, le=1)] = CAPACITY


class MoveBody(_Body, frozen=True):
    """A move: the step that goes to the other tier, and of which devices."""

    step: str
    to: Literal["edge", "cloud"]
    devices: str = "all"
    dry_run: bool = False


class BackfillBody(_Body, frozen=True):
    """History of a device for a source of an app: files that have come, by their names, and the column of
    the event time. set: options of the sources that read such files, which say how these are written; a text
    is converted by the option's annotation. heads: with `dry_run`, the first bytes of each file, unpacked,
    as base64, "" for one that is not to be looked into; none for none. called: what a refusal is to call each
    file; none for their names.
    """

    source: str
    device: str
    files: Annotated[list[str], msgspec.Meta(min_length=1, max_length=HISTORY_FILES_MAX)]
    time: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] = "time"
    set: dict[str, Any] = {}
    dry_run: bool = False
    heads: Annotated[list[bytes], msgspec.Meta(max_length=HISTORY_FILES_MAX)] = []
    called: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]],
        msgspec.Meta(max_length=HISTORY_FILES_MAX),
    ] = []


class ScaleBody(_Body, frozen=True):
    """Over how many slots the keys of an app are to be dealt; dry_run: only tell what would be done."""

    slots: Annotated[int, msgspec.Meta(ge=1, le=SLOTS_MAX)]
    dry_run: bool = False


class SecretBody(_Body, frozen=True):
    """The value of a secret."""

    value: str


class KillBody(_Body, frozen=True):
    """How an app ends; purge: its tables, and what devices keep of it, are removed."""

    mode: Mode = Mode.DRAIN
    purge: bool = False


class ReplayBody(_Body, frozen=True):
    """From where the log is read again: `beginning`."""

    from_: str = msgspec.field(name="from", default="beginning")


class DeviceBody(_Body, frozen=True):
    """A new device: `local` for a device that this machine itself runs."""

    name: str
    labels: dict[str, str] = {}
    local: bool = False


class TokenBody(_Body, frozen=True):
    """For how many seconds the device may join with it."""

    expires_s: Annotated[float, msgspec.Meta(gt=0, le=TOKEN_S_MAX)] = 86_400.0


class BearerBody(_Body, frozen=True):
    """A token: whose it is, its role, and for how many seconds it is good. app: the only app that it is for,
    empty for the whole platform.
    """

    name: str
    role: Role
    app: str = ""
    expires_s: Annotated[float, msgspec.Meta(gt=0, le=BEARER_S_MAX)] = 90 * 86_400.0


class TrimBody(_Body, frozen=True):
    """What of the log may go: rows that are older, and the oldest beyond so many bytes."""

    older_than_s: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
    bytes_max: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None


class EraseBody(_Body, frozen=True):
    """dry_run: only say what there is."""

    dry_run: bool = False


class AuthorityBody(_Body, frozen=True):
    """What the fleet is called, and for how many days its authority is valid."""

    fleet: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] = "fleet"
    days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] = 3_650


class IssueBody(_Body, frozen=True):
    """A signing request (PEM) for a key of the curve P-256; hosts: other names and addresses of a server;
    days: for how many it is valid.
    """

    request: Annotated[str, msgspec.Meta(max_length=REQUEST_CHARS_MAX)]
    hosts: Annotated[list[str], msgspec.Meta(max_length=HOSTS_MAX)] = []
    days: Annotated[int, msgspec.Meta(ge=1, le=3_650)] = 730


class BackupBody(_Body, frozen=True):
    """What the backup is called."""

    name: Annotated[str, msgspec.Meta(max_length=200)]


class LabelsBody(_Body, frozen=True):
    """Labels to set: null takes a label away."""

    labels: dict[str, str | None]


class MetadataBody(_Body, frozen=True):
    """Signed metadata, as text."""

    metadata: str


Steps = Annotated[list[str], msgspec.Meta(max_length=STEPS_MAX)]


class UpdateBody(_Body, frozen=True):
    """An update: the flow, and the hash of its files.

    dry_run: only tell what would change; drop_state: the steps that are to keep nothing; only: what may
    become of steps, all where it names nothing; steps: those that may change, all where it names none;
    without: steps that are to leave the flow that the app runs, with what hangs below them; from: where
    attached steps begin to read the log, `now`, `earliest` or an event time; drain: steps that lose their
    state put out first what they hold; cut: the app's, with new steps on the devices, "" to have these in the
    data centre where they can; canary: a selector of the devices that run it first, "" for all at once;
    for_s: how long these are looked at before the others follow; dead_letter_old: records of a former type
    that cannot be upgraded, of devices that have not gone over, become dead letters.
    """

    flow: str
    code: str
    dry_run: bool = False
    drop_state: list[str] = []
    only: list[Edit] = []
    steps: Steps = []
    without: Steps = []
    from_: str = msgspec.field(name="from", default="now")
    drain: bool = False
    cut: str = ""
    canary: str = ""
    for_s: Annotated[float, msgspec.Meta(ge=0, le=CANARY_S_MAX)] = CANARY_S
    dead_letter_old: bool = False


class PromoteBody(_Body, frozen=True):
    """The end of a canary by hand: all devices follow; dry_run: only tell what that would be."""

    dry_run: bool = False


class RollbackBody(_Body, frozen=True):
    """A rollback: as for an update."""

    dry_run: bool = False
    drop_state: list[str] = []
    dead_letter_old: bool = False


class UpgradeBody(_Body, frozen=True):
    """The hash of a program, and the devices that are to run it."""

    program: str
    devices: list[str]


EventTime = Annotated[int, msgspec.Meta(ge=START_OF_TIME, le=END_OF_TIME)]
"""Microseconds since 1970."""


class PurgeBody(_Body, frozen=True):
    """dry_run: only say what would go; leave: the apps, or instances, that stay as they are."""

    dry_run: bool = False
    leave: Annotated[list[str], msgspec.Meta(max_length=1_000)] = []


class EmptyBody(_Body, frozen=True):
    """A body without fields, or none."""


class NoQuery(_Body, frozen=True):
    """No parameters."""


class PageQuery(_Body, frozen=True):
    """A page of a list: at most `limit` items, after the one that the page before has as `next`."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)] = LIMIT
    after: str = ""


class RevisionsQuery(_Body, frozen=True):
    """A page of revisions: at most `limit`, before the number that the page before has as `next`."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)] = LIMIT
    after: Annotated[int, msgspec.Meta(ge=1, le=SKIP_MAX)] = SKIP_MAX


class PlacesQuery(_Body, frozen=True):
    """A page of a list: at most `limit` items, from the place that the page before has as `next`."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)] = LIMIT
    after: Annotated[int, msgspec.Meta(ge=0, le=SKIP_MAX)] = 0


class LettersQuery(PlacesQuery, frozen=True):
    """A page of dead letters, those of an app where one is named."""

    app: str = ""


class EntriesQuery(_Body, frozen=True):
    """A page of the log's entries: those that follow the position `after`, or the newest where that is left
    out. A page is shorter where their rows fill it.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)] = LIMIT
    after: Annotated[int, msgspec.Meta(ge=-1, le=SKIP_MAX)] = -1
    channel: str = ""
    partition: Annotated[int, msgspec.Meta(ge=0, le=SKIP_MAX)] = 0
    rows: Literal["yes", "no"] = "no"


class DevicesQuery(PageQuery, frozen=True):
    """A page of the devices that the selector `label` means."""

    label: str = "all"


class SecretsQuery(PageQuery, frozen=True):
    """A page of the secrets, of one app where `app` names it."""

    app: str = ""


class EventsQuery(_Body, frozen=True):
    """Where to begin: after the event of this number, or with the first that is not before `since_us`; with
    the next one where neither is given. The header Last-Event-ID goes before both. app: of this one alone.
    """

    after: Annotated[int, msgspec.Meta(ge=0, le=SKIP_MAX)] | None = None
    since_us: EventTime | None = None
    app: str = ""


class LinesQuery(_Body, frozen=True):
    """How many lines, the last ones."""

    lines: Annotated[int, msgspec.Meta(ge=1, le=LINES_MAX)] = 100


class RowsQuery(_Body, frozen=True):
    """A page of a table: at most `limit` rows, after the place that the page before has as `next`; order: by
    the fields, or as they were written, for a table without a key.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)] = 1_000
    after: Annotated[int, msgspec.Meta(ge=0, le=SKIP_MAX)] = 0
    order: Literal["fields", "written"] = "fields"


class StateQuery(_Body, frozen=True):
    """The key, some keys where it is left out; device: the only one to ask; wait_s: seconds at the most."""

    key: Annotated[str, msgspec.Meta(max_length=KEY_CHARS_MAX)] | None = None
    device: str | None = None
    wait_s: Annotated[int, msgspec.Meta(ge=1, le=WAIT_S_MAX)] = 10


class ExplainQuery(_Body, frozen=True):
    """The key of the row, and how many of the records behind it are shown."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=ROW_KEY_CHARS_MAX)]
    limit: Annotated[int, msgspec.Meta(ge=1, le=SHOWN_MAX)] = 20


class AuditQuery(_Body, frozen=True):
    """A page of the audit log: at most `limit` entries that are not before `since_us`, below the number that
    the page before has as `next`.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)] = LIMIT
    after: Annotated[int, msgspec.Meta(ge=1, le=SKIP_MAX)] = SKIP_MAX
    since_us: EventTime = START_OF_TIME


class PieceQuery(_Body, frozen=True):
    """The byte of the file at which the piece begins; size: of the whole file, bytes."""

    begin: Annotated[int, msgspec.Meta(ge=0, le=2**50)]
    size: Annotated[int, msgspec.Meta(ge=1, le=2**50)]


class RecordsQuery(_Body, frozen=True):
    """A page of the records of event times from `from_us` on and before `to_us`; after, upto: those of the
    page before, such as 0:12,1:30.
    """

    from_us: EventTime = START_OF_TIME
    to_us: EventTime = END_OF_TIME
    after: str = ""
    upto: str = ""


_QUERY = web.RequestKey("parameters", msgspec.Struct)
_KIND = web.RequestKey("kind of body", object)
_BODY = web.RequestKey("body", object)
Q = TypeVar("Q", bound=msgspec.Struct)


def declare(request: web.Request, query: type[msgspec.Struct], body: type[Any] | None) -> None:
    """Take the parameters as a `query`, and note of which type the body is. Raises `InvalidError`, and
    `UnsupportedError` for a body that says it is no JSON where it is to be.
    """
    request[_QUERY] = _parameters(Question(request), query)
    request[_KIND] = body
    is_json = body is not None and issubclass(body, msgspec.Struct)
    if is_json and "Content-Type" in request.headers and request.content_type != "application/json":
        raise UnsupportedError(f"Content-Type: send application/json, not {shown(request.content_type)}")
    key_of(request)


def query_of(request: web.Request, kind: type[Q]) -> Q:
    """The parameters of a request, which its route declares as a `kind`."""
    found = request[_QUERY]
    if type(found) is not kind:
        raise AssertionError(f"{request.path} declares {type(found).__name__}, and not {kind.__name__}")
    return found


def _parameters(question: Question, kind: type[Q]) -> Q:
    """Each as its field is annotated; raises `InvalidError` that names it, and `HTTPBadRequest`."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        text = question.get(field.encode_name)
        if text is not None:
            values[field.encode_name] = _parameter(field.encode_name, field.type, text)
        elif field.required:
            raise InvalidError(f"{field.encode_name}: this parameter is missing")
    question.check()
    return kind(**values)


def check_query(kind: type[msgspec.Struct]) -> None:
    """Raise `TypeError` for parameters of types that no address can be read as: they would stay texts, and
    the text `false` is true.
    """
    for field in msgspec.structs.fields(kind):
        found = _type_of(field.type)
        is_bounded = not isinstance(found, msgspec.inspect.IntType) or found.le is not None
        if not isinstance(found, _READ) or not is_bounded:
            raise TypeError(f"{kind.__name__}.{field.name}: no parameter is read as {field.type}")


def _type_of(kind: Any) -> msgspec.inspect.Type:
    """What a parameter is where it is there."""
    found = msgspec.inspect.type_info(kind)
    if isinstance(found, msgspec.inspect.UnionType):
        return next(one for one in found.types if not isinstance(one, msgspec.inspect.NoneType))
    return found


def _parameter(name: str, kind: Any, text: str) -> str | int | bool:
    found = _type_of(kind)
    if isinstance(found, msgspec.inspect.BoolType):
        if text not in _BOOLS:
            raise InvalidError(f"{name}: give {' or '.join(_BOOLS)}, not {shown(text)}")
        return _BOOLS[text]
    if isinstance(found, msgspec.inspect.IntType):
        least, most = found.ge or 0, found.le or 0
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            raise InvalidError(f"{name}: give a whole number from {least} to {most}, not {shown(text)}")
        return int(text)
    if isinstance(found, msgspec.inspect.LiteralType) and text not in found.values:
        raise InvalidError(f"{name}: give {' or '.join(map(str, found.values))}, not {shown(text)}")
    if isinstance(found, msgspec.inspect.StrType):
        least, most = found.min_length or 0, found.max_length or ADDRESS_CHARS_MAX
        if not least <= len(text) <= most:
            raise InvalidError(f"{name}: give {least:,} to {most:,} characters, not {len(text):,}")
    return text


async def body_of(request: web.Request, kind: type[S]) -> tuple[S, str]:
    """The body as a `kind`, and what is asked in a form that is equal for equal requests.

    Raises `InvalidError` that names the field.
    """
    declared = request.get(_KIND, kind)
    if declared is not kind:
        raise AssertionError(f"{request.path} declares another body than {kind.__name__}")
    raw = await request.read()
    try:
        found = msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise InvalidError(_sentence(error, kind)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        said = printable(str(error), 200)
        raise InvalidError(f"the body is not JSON ({said}): send one JSON object, as UTF-8") from None
    except RecursionError:
        raise InvalidError("the body: its JSON is nested too deep") from None
    request[_BODY] = found
    digest = hashlib.sha256(msgspec.json.encode(found, order="sorted")).hexdigest()
    return found, f"{request.method} {request.path} {digest}"


def asked_of(request: web.Request) -> msgspec.Struct | None:
    """The body that was read, None where none was, or none that could be read."""
    found = request.get(_BODY)
    return found if isinstance(found, msgspec.Struct) else None


def _sentence(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    place, reason = read_conversion(error)
    where = f"{place}: " if place else ""
    if reason.code == ConversionCode.UNKNOWN_FIELD:
        fields = ", ".join(kind.__struct_encode_fields__)
        return (
            f"the body: {where}object contains unknown field '{reason['field'][:200]}'; its fields: {fields}"
        )
    if reason.code == ConversionCode.MISSING_FIELD:
        return f"the body: {where}object missing required field '{reason['field']}'"
    words = reason["text"][:200].replace("`", "'")
    return f"the body: {where}{words}"


def key_of(request: web.Request) -> str:
    """The header Idempotency-Key, "" where there is none; raises `InvalidError`."""
    key = request.headers.get("Idempotency-Key", "")
    if len(key) > IDEMPOTENCY_KEY_CHARS_MAX or not key.isprintable():
        raise InvalidError(f"Idempotency-Key: use 1 to {IDEMPOTENCY_KEY_CHARS_MAX} printable characters")
    return key


def options_of(given: dict[str, Any], where: str) -> Options:
    """Options by step out of `{"step.option": value}`; raises `InvalidError`."""
    found: Options = {}
    for target, value in given.items():
        step, dot, option = target.partition(".")
        if not (dot and step and option):
            raise InvalidError(f"{where}: {shown(target)}: write STEP.OPTION, such as drawdown.period")
        found.setdefault(step, {})[option] = value
    return found


def device_options_of(given: dict[str, dict[str, Any]]) -> dict[str, Options]:
    """Options by device and step; raises `InvalidError`."""
    return {check_device(name): options_of(values, f"device_set.{name}") for name, values in given.items()}
