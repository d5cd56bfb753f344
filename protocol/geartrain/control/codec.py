"""Desired and reported state as bytes and back.

On both ends of the control lane, and under the file in which a device keeps what it was told. Guarantees:
equal data gives equal bytes; arbitrary bytes raise only `WireError`, and what decodes is within the caps.
What was damaged on its way is refused by its checksum: it could make a device stop an app.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from geartrain.control import lane_pb2 as pb
from geartrain.control.limits import LANE_LIMITS, LaneLimits
from geartrain.control.states import (
    CUT_CHARS,
    DIGEST_BYTES,
    INSTALLED_PROGRAM,
    SESSION_BYTES,
    VERSION,
    App,
    AppReport,
    AppState,
    Desired,
    Kept,
    Measured,
    Reported,
    SealedSecret,
    SecretReport,
    State,
    StepKept,
    Wanted,
)
from geartrain.control.summed import check_sum, check_version, with_checksum
from geartrain.declarations.secrets import check_secret_name
from geartrain.errors import ConfigError, WireError
from geartrain.errors.reason import Reason
from geartrain.records.codes import CODE
from geartrain.wire.parsing import INT64_MAX, check_size, parse
from geartrain.wire.topics import check_name

_WANTED = frozenset(wanted.value for wanted in Wanted)
_STATES = frozenset(state.value for state in AppState)
_HEX = frozenset("0123456789abcdef")
_HASH_CHARS = 64
_decode_details = msgspec.json.Decoder(dict[str, str | int | float | bool]).decode


def encode_state(state: State, limits: LaneLimits = LANE_LIMITS) -> bytes:
    """The bytes of a desired state; raises `WireError` when it could not be decoded."""
    _check_state(state, limits)
    apps = [
        pb.State.App(
            instance=app.instance,
            revision=app.revision,
            flow=app.flow,
            cut=app.cut,
            options=app.options,
            wanted=pb.State.Wanted.ValueType(app.wanted.value),
            code=app.code,
            own_cut=app.own_cut,
            number=app.number,
            without=app.without,
            drops="" if app.drops == "{}" else app.drops,
        )
        for app in state.apps
    ]
    try:
        secrets = [
            pb.State.Secret(app=one.app, name=one.name, version=one.version, sealed=one.sealed)
            for one in state.secrets
        ]
        raw = pb.State(serial=state.serial, apps=apps, purged=state.purged, secrets=secrets)
        if state.program == INSTALLED_PROGRAM:
            raw.installed_program = True
        else:
            raw.program = state.program
        encoded: bytes = raw.SerializeToString()
    except (TypeError, ValueError) as error:
        raise WireError(f"desired state {state.serial} cannot be encoded: {error}") from None
    check_size(encoded, f"desired state {state.serial}", limits.state_bytes_max)
    return encoded


def decode_state(data: bytes, limits: LaneLimits = LANE_LIMITS) -> State:
    """The desired state in these bytes; raises `WireError`."""
    raw = parse(pb.State, data, "a desired state", limits.state_bytes_max)
    _check_count(raw.apps, limits)
    _check_count(raw.purged, limits)
    for app in raw.apps:
        if app.wanted not in _WANTED:
            raise WireError(f"a desired state wants {app.wanted} of an app, which this program does not know")
    apps = tuple(
        App(
            *(app.instance, app.flow, app.revision, app.cut, app.options, Wanted(app.wanted), app.code),
            *(app.own_cut, app.number, app.without, app.drops or "{}"),
        )
        for app in raw.apps
    )
    if raw.installed_program and raw.program:
        raise WireError("a desired state asks for the installed program and for another one")
    program = INSTALLED_PROGRAM if raw.installed_program else raw.program
    _check_secret_count(raw.secrets, limits)
    secrets = tuple(SealedSecret(one.app, one.name, one.version, one.sealed) for one in raw.secrets)
    state = State(raw.serial, apps, tuple(raw.purged), program, secrets)
    _check_state(state, limits)
    return state


def encode_desired(desired: Desired, limits: LaneLimits = LANE_LIMITS) -> bytes:
    """The payload of a `desired` topic; raises `WireError` when it could not be decoded."""
    _check_desired(desired, limits)
    raw = pb.Desired(
        version=VERSION,
        device=desired.device,
        session=desired.session,
        life=desired.life,
        number=desired.number,
        state=desired.state,
    )
    return with_checksum(raw, "a desired state", limits.desired_bytes_max)


def decode_desired(data: bytes, limits: LaneLimits = LANE_LIMITS) -> Desired:
    """What came on a `desired` topic; its state is checked by `decode_state`. Raises `WireError`."""
    raw = parse(pb.Desired, data, "a desired state", limits.desired_bytes_max)
    check_sum(raw, data, "a desired state")
    check_version(raw.version)
    desired = Desired(raw.device, raw.session, raw.life, raw.number, raw.state)
    _check_desired(desired, limits)
    return desired


def encode_reported(report: Reported, limits: LaneLimits = LANE_LIMITS) -> bytes:
    """The payload of a `reported` topic; raises `WireError` when it could not be decoded."""
    _check_report(report, limits)
    apps = [
        pb.Reported.App(
            instance=app.instance,
            state=pb.Reported.State.ValueType(app.state.value),
            why=app.why,
            revision=app.revision,
            lacks=app.lacks,
            cut=app.cut,
            measured=_raw_measured(app.measured),
            reasons=[_raw_reason(one) for one in app.reasons],
        )
        for app in report.apps
    ]
    raw = pb.Reported(
        version=VERSION,
        device=report.device,
        session=report.session,
        life=report.life,
        number=report.number,
        serial=report.serial,
        digest=report.digest,
        apps=apps,
        program=report.program,
        why=report.why,
        program_code=report.program_code,
        program_why=report.program_why,
        machine=report.machine,
    )
    about = pb.Reported.AboutProgram(
        can=report.can,
        went_back=report.program_went_back,
        secrets=[
            pb.Reported.Secret(app=one.app, name=one.name, version=one.version, why=one.why)
            for one in report.secrets
        ],
        certificate=report.certificate,
    )
    if about.ByteSize():
        raw.about_program.CopyFrom(about)
    return with_checksum(raw, "a report", limits.report_bytes_max)


def decode_reported(data: bytes, limits: LaneLimits = LANE_LIMITS) -> Reported:
    """What came on a `reported` topic; raises `WireError`."""
    raw = parse(pb.Reported, data, "a report", limits.report_bytes_max)
    check_sum(raw, data, "a report")
    check_version(raw.version)
    _check_count(raw.apps, limits)
    for app in raw.apps:
        if app.state not in _STATES:
            raise WireError(f"a report gives an app the state {app.state}, which this program does not know")
    for app in raw.apps:
        _check_sources(app.lacks, limits)
    about = raw.about_program
    _check_secret_count(about.secrets, limits)
    apps = tuple(
        AppReport(
            app.instance,
            AppState(app.state),
            app.why,
            app.revision,
            tuple(app.lacks),
            app.cut,
            _measured(app),
            tuple(_reason(one) for one in app.reasons),
        )
        for app in raw.apps
    )
    report = Reported(
        *(raw.device, raw.session, raw.life, raw.number, raw.serial, raw.digest, apps, raw.program, raw.why),
        *(raw.program_code, raw.program_why, raw.machine, tuple(about.can), about.went_back),
        tuple(SecretReport(one.app, one.name, one.version, one.why) for one in about.secrets),
        about.certificate,
    )
    _check_report(report, limits)
    return report


def _raw_reason(reason: Reason) -> pb.Reported.Reason:
    details = msgspec.json.encode(reason.details, order="sorted").decode() if reason.details else ""
    return pb.Reported.Reason(code=reason.code, details=details)


def _reason(raw: pb.Reported.Reason) -> Reason:
    if not raw.details:
        return Reason(raw.code)
    try:
        return Reason(raw.code, _decode_details(raw.details))
    except msgspec.DecodeError as error:
        raise WireError(
            f"the details of a report's reason {raw.code[:40]!r} cannot be read: {error}"
        ) from None


def _raw_measured(measured: Measured | None) -> pb.Reported.Measured | None:
    if measured is None:
        return None
    return pb.Reported.Measured(
        records_per_s=measured.records_per_s,
        cpu_share=measured.cpu_share,
        idle_cores=measured.idle_cores,
        free_bytes=measured.free_bytes,
        kept=[pb.Reported.Kept(step=one.step, cells=one.cells, bytes=one.bytes) for one in measured.kept],
    )


def _measured(app: pb.Reported.App) -> Measured | None:
    raw = app.measured
    if not app.HasField("measured"):
        return None
    kept = tuple(StepKept(one.step, one.cells, one.bytes) for one in raw.kept)
    return Measured(raw.records_per_s, raw.cpu_share, raw.idle_cores, raw.free_bytes, kept)


def encode_kept(kept: Kept) -> bytes:
    """What a device writes to its disk; raises `WireError` when it could not be decoded."""
    _check_range("life", kept.life, 0)
    return with_checksum(
        pb.Kept(life=kept.life, state=kept.state),
        "the desired state on the disk",
        LANE_LIMITS.desired_bytes_max,
    )


def decode_kept(data: bytes) -> Kept:
    """What a device finds there; raises `WireError`, also for what was damaged."""
    raw = parse(pb.Kept, data, "the desired state on the disk", LANE_LIMITS.desired_bytes_max)
    check_sum(raw, data, "the desired state on the disk")
    _check_range("life", raw.life, 0)
    if raw.state:
        decode_state(raw.state)
    return Kept(raw.life, raw.state)


def _check_count(named: Iterable[object], limits: LaneLimits) -> None:
    if sum(1 for _ in named) > limits.apps_max:
        raise WireError(f"a state has more than {limits.apps_max} apps")


def _check_range(what: str, number: int, least: int) -> None:
    if not least <= number <= INT64_MAX:
        raise WireError(f"a state has the {what} {number}; {least} is the least")


def _check_text(what: str, text: str, chars_max: int) -> None:
    if len(text) > chars_max:
        raise WireError(f"a {what} has {len(text)} characters; {chars_max} are the most")


def _check_instances(names: Iterable[str], limits: LaneLimits) -> None:
    seen: set[str] = set()
    for name in names:
        check_name("instance", name)
        if not name.strip("."):
            raise WireError(f"instance {name!r} cannot name a folder")
        if name in seen:
            raise WireError(f"instance {name} is in a state twice")
        seen.add(name)
    _check_count(seen, limits)


def _check_secret_count(secrets: Sequence[object], limits: LaneLimits) -> None:
    if len(secrets) > limits.secrets_max:
        raise WireError(f"a state has {len(secrets)} secrets; {limits.secrets_max} are the most")


def _check_secrets(
    secrets: Sequence[SealedSecret | SecretReport], least_version: int, limits: LaneLimits
) -> None:
    _check_secret_count(secrets, limits)
    seen = set[tuple[str, str]]()
    for one in secrets:
        check_name("app", one.app)
        try:
            check_secret_name(one.name, "a state")
        except ConfigError as error:
            raise WireError(str(error)) from None
        if not one.app.strip("."):
            raise WireError(f"app {one.app!r} cannot name a folder")
        if (one.app, one.name) in seen:
            raise WireError(f"secret {one.name} of app {one.app} is in a state twice")
        seen.add((one.app, one.name))
        _check_range("version of a secret", one.version, least_version)


def _check_hash(what: str, text: str) -> None:
    if text and (len(text) != _HASH_CHARS or not _HEX.issuperset(text)):
        raise WireError(f"a {what} is {_HASH_CHARS} hexadecimal digits, not {text[:80]!r}")


def _check_sources(names: Sequence[str], limits: LaneLimits) -> None:
    if len(names) > limits.sources_max:
        raise WireError(f"a report names more than {limits.sources_max} sources of an app")
    for name in names:
        check_name("source", name)


def _check_state(state: State, limits: LaneLimits) -> None:
    _check_range("serial", state.serial, 1)
    _check_instances([app.instance for app in state.apps], limits)
    _check_instances(state.purged, limits)
    if state.program != INSTALLED_PROGRAM:
        _check_hash("program", state.program)
    for app in state.apps:
        if app.instance in state.purged:
            raise WireError(f"instance {app.instance} is wanted and purged in one desired state")
    _check_secrets(state.secrets, 1, limits)
    for one in state.secrets:
        check_size(one.sealed, f"sealed secret {one.name}", limits.sealed_bytes_max)
    for app in state.apps:
        _check_hash("revision", app.revision)
        _check_hash("hash of files", app.code)
        _check_range("number of a revision", app.number, 0)
        for what, text in (("flow", app.flow), ("cut", app.cut), ("cut", app.own_cut)):
            _check_text(what, text, limits.text_chars_max)
        for what, text in (
            ("table of options", app.options),
            ("list of removed steps", app.without),
            ("list of dropped states", app.drops),
        ):
            _check_text(what, text, limits.options_chars_max)


def _check_desired(desired: Desired, limits: LaneLimits) -> None:
    check_name("device", desired.device)
    _check_range("life", desired.life, 0)
    _check_range("number", desired.number, 0)
    check_size(desired.state, "a desired state", limits.state_bytes_max)
    if len(desired.session) != SESSION_BYTES and (desired.session or desired.state):
        raise WireError(f"a session has {len(desired.session)} bytes; it has {SESSION_BYTES}, or none to ask")


def _check_reasons(reasons: Sequence[Reason], limits: LaneLimits) -> None:
    if len(reasons) > limits.reasons_max:
        raise WireError(f"a report gives more than {limits.reasons_max} reasons for an app")
    for one in reasons:
        if not CODE.fullmatch(one.code):
            raise WireError(f"a report's reason has the code {one.code[:80]!r}: use small letters and _")
        if len(one.details) > limits.details_max:
            raise WireError(f"a report's reason {one.code} has more than {limits.details_max} details")
        for name, value in one.details.items():
            _check_text("detail", name, limits.text_chars_max)
            _check_text("detail", value if isinstance(value, str) else "", limits.why_chars_max)


def _check_measured(measured: Measured | None, limits: LaneLimits) -> None:
    if measured is None:
        return
    if len(measured.kept) > limits.kept_max:
        raise WireError(f"a report tells of the state of more than {limits.kept_max} steps")
    figures = [measured.records_per_s, measured.cpu_share, measured.idle_cores, measured.free_bytes]
    for one in measured.kept:
        _check_text("step", one.step, limits.text_chars_max)
        figures += [one.cells, one.bytes]
    if not all(0 <= one < math.inf for one in figures):
        raise WireError("a report has a figure of an app that is no number from 0 on")


def _check_report(report: Reported, limits: LaneLimits) -> None:
    check_name("device", report.device)
    if len(report.session) != SESSION_BYTES:
        raise WireError(f"a session has {len(report.session)} bytes; it has {SESSION_BYTES}")
    for what, number, least in (
        ("life", report.life, 1),
        ("number", report.number, 1),
        ("serial", report.serial, 0),
    ):
        _check_range(what, number, least)
    if len(report.digest) != (DIGEST_BYTES if report.serial else 0):
        raise WireError(f"the digest of desired state {report.serial} has {len(report.digest)} bytes")
    _check_instances([app.instance for app in report.apps], limits)
    _check_hash("program", report.program_code)
    if len(report.can) > limits.abilities_max:
        raise WireError(f"a report names more than {limits.abilities_max} things that a program knows")
    texts = [("version", report.program), ("machine", report.machine), *(("name", one) for one in report.can)]
    for what, text in texts:
        _check_text(what, text, limits.text_chars_max)
    _check_secrets(report.secrets, 0, limits)
    check_size(report.certificate, "a certificate", limits.certificate_bytes_max)
    whys = (*(app.why for app in report.apps), *(one.why for one in report.secrets))
    for sentence in (report.why, report.program_why, *whys):
        _check_text("sentence", sentence, limits.why_chars_max)
    for app in report.apps:
        _check_hash("revision", app.revision)
        _check_text("cut", app.cut, CUT_CHARS)
        _check_measured(app.measured, limits)
        _check_sources(app.lacks, limits)
        _check_reasons(app.reasons, limits)
