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

from geartrain.fleet.labels import check_device, shown
from geartrain_cloud.control.editing import Edit
from geartrain_cloud.control.errors import InvalidError
from geartrain_cloud.control.model import Mode, Options
from geartrain_cloud.hosting.wanted import Isolation
from geartrain_cloud.pages.questions import Question

BODY_BYTES_MAX = 4 << 20
LIMIT, LIMIT_MAX = 100, 1_000
KEY_CHARS_MAX = 200
CUTS_MAX = 100
"""Cuts for devices that a submit names."""
STEPS_MAX = 1_000
"""Steps that an update names."""
TOKEN_S_MAX = 366 * 86_400.0
_FIELD = r" - at `(?:key in )?\$\.?(.*)`$"
S = TypeVar("S", bound=msgspec.Struct)


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the bodies: a field that is not known is an error."""


class DeviceCut(_Body, frozen=True):
    """A cut of the devices that a selector means; the last that means a device holds."""

    devices: str
    cut: str


class SubmitBody(_Body, frozen=True):
    """`POST /apps`: `set` and each of `device_set` hold `step.option: value`; a text is converted by the
    option's annotation.
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


class CutBody(_Body, frozen=True):
    """`POST /apps/{name}/cut`: the devices of the app that get the cut; dry_run: only tell what would
    move.
    """

    cut: str
    devices: str = "all"
    dry_run: bool = False


class MoveBody(_Body, frozen=True):
    """`POST /apps/{name}/move`: the step that goes to the other tier, and of which devices."""

    step: str
    to: Literal["edge", "cloud"]
    devices: str = "all"
    dry_run: bool = False


class KillBody(_Body, frozen=True):
    """`POST /apps/{name}/kill`."""

    mode: Mode = Mode.DRAIN
    purge: bool = False


class ReplayBody(_Body, frozen=True):
    """`POST /apps/{name}/replay`."""

    from_: str = msgspec.field(name="from", default="beginning")


class DeviceBody(_Body, frozen=True):
    """`POST /devices`: `local` for a device that this machine itself runs."""

    name: str
    labels: dict[str, str] = {}
    local: bool = False


class TokenBody(_Body, frozen=True):
    """`POST /devices/{d}/token`: for how many seconds the device may join with it."""

    expires_s: Annotated[float, msgspec.Meta(gt=0, le=TOKEN_S_MAX)] = 86_400.0


class LabelsBody(_Body, frozen=True):
    """`PATCH /devices/{d}`: null takes a label away."""

    labels: dict[str, str | None]


class MetadataBody(_Body, frozen=True):
    """`POST /trust/root` and `POST /trust/targets`: signed metadata, as text."""

    metadata: str


Steps = Annotated[list[str], msgspec.Meta(max_length=STEPS_MAX)]


class UpdateBody(_Body, frozen=True):
    """`POST /apps/{name}/update`: the flow, and the hash of its files.

    dry_run: only tell what would change; drop_state: the steps that are to keep nothing; only: what may
    become of steps, all where it names nothing; steps: those that may change, all where it names none;
    without: steps that are to leave the flow that the app runs, with what hangs below them; from: with which
    records attached steps begin; drain: steps that lose their state put out first what they hold.
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


class RollbackBody(_Body, frozen=True):
    """`POST /apps/{name}/rollback`: as for an update."""

    dry_run: bool = False
    drop_state: list[str] = []


class UpgradeBody(_Body, frozen=True):
    """`POST /agents/upgrade`: the hash of a program, and the devices that are to run it."""

    program: str
    devices: list[str]


class EmptyBody(_Body, frozen=True):
    """A body without fields, or none."""


async def body_of(request: web.Request, kind: type[S]) -> tuple[S, str]:
    """The body as a `kind`, and what is asked in a form that is equal for equal requests.

    Raises `InvalidError` that names the field.
    """
    raw = await request.read()
    try:
        found = msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise InvalidError(_sentence(str(error), kind)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"the body is not JSON: {error}") from None
    digest = hashlib.sha256(msgspec.json.encode(found, order="sorted")).hexdigest()
    return found, f"{request.method} {request.path} {digest}"


def _sentence(said: str, kind: type[msgspec.Struct]) -> str:
    place = re.search(_FIELD, said)
    where = f"{place[1]}: " if place and place[1] else ""
    words = re.sub(_FIELD, "", said).replace("`", "'")
    hint = f"; its fields: {', '.join(kind.__struct_encode_fields__)}" if "unknown field" in words else ""
    return f"the body: {where}{words[:1].lower()}{words[1:200]}{hint}"


def key_of(request: web.Request) -> str:
    """The header Idempotency-Key, "" where there is none; raises `InvalidError`."""
    key = request.headers.get("Idempotency-Key", "")
    if len(key) > KEY_CHARS_MAX or not key.isprintable():
        raise InvalidError(f"Idempotency-Key: use 1 to {KEY_CHARS_MAX} printable characters")
    return key


def number_of(question: Question, name: str, default: int, most: int, least: int = 1) -> int:
    """A whole number among the parameters; raises `InvalidError`."""
    text = question.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 18 and least <= int(text) <= most):
        raise InvalidError(f"{name}: give a whole number from {least} to {most}, not {shown(text)}")
    return int(text)


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
