"""The control store as the control lane sees it: desired states with their serials, and what is reported.

Between `ControlStore` and `ControlLane`. Guarantees: the bytes of a desired state are a function of the store
alone, so that one serial has one content. A report moves nothing back: the lane's machine has ordered it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from geartrain.control.codec import decode_reported, encode_reported, encode_state
from geartrain.control.sender import Standing
from geartrain.control.states import App, Reported, State, Wanted
from geartrain.errors import WireError
from geartrain_cloud.control.hosting import split_options
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.model import Device, Instance, Report, merged
from geartrain_cloud.control_store.store import ControlStore

_LOG = logging.getLogger("geartrain.control")

HASH_CHARS = 64
"""Of a revision's hash, in hexadecimal digits."""


class StoreOfLane:
    """`DesiredStore` over the control store."""

    def __init__(self, store: ControlStore) -> None:
        self._store = store
        self._known: dict[str, tuple[int, str]] = {}
        self._changes = -1

    async def changed(self) -> Mapping[str, Standing]:
        """The devices whose serial, or whose refusal, is another than at the last call."""
        store, found = self._store, dict[str, Standing]()
        if store.database.changes == self._changes:
            return {}
        self._changes, lanes = store.database.changes, store.reports.lanes()
        for name in [name for name, lane in lanes.items() if self._known.get(name) != lane]:
            report, refused = store.reports.last(name), lanes[name][1]
            last = decode_reported(report) if report else None
            try:
                state = encode_state(state_of(store, name))
            except WireError as error:  # of this device alone: the others are told all the same
                _LOG.error("device %s cannot be told what is wanted of it: %s", name, error)
                state, refused = b"", refused or str(error)
            found[name] = Standing(state, last, refused)
        self._known = lanes
        return found

    async def store(self, report: Reported) -> None:
        """Keep the report, for its order, and what it says of each app."""
        reports = [
            Report(
                report.device,
                app.instance,
                app.state.word,
                app.why,
                report.program,
                report.serial,
                app.lacks,
                app.cut,
                app.revision,
                reasons=app.reasons,
            )
            for app in report.apps
        ]
        with self._store.database.change():
            self._store.programs.heard(report.device, report.program_code)
            self._store.reports.heard(report.device, encode_reported(report), report.serial, reports)
            self._store.secrets.heard(report)

    async def refuse(self, device: str, why: str) -> None:
        """Keep the sentence."""
        self._store.reports.refuse(device, why)


def accept(store: ControlStore, name: str) -> Device:
    """Have a refused device take what the store wants of it, under a serial above the one that it reported.

    Raises `NotFoundError`, and `ConflictError` for a device that is not refused.
    """
    device = store.devices.active(name)
    if not store.reports.refusal(name):
        raise ConflictError(
            f"device {name} is not refused, so there is nothing to accept: see gear device show {name}"
        )
    report = store.reports.last(name)
    return store.reports.accept(name, decode_reported(report).serial if report else device.applied)


def state_of(store: ControlStore, name: str) -> State:
    """What the store wants of a device."""
    desired = store.desired
    wanted = desired.wanted_on(name)
    found = desired_of(
        store.devices.get(name),
        wanted,
        desired.purged_on(name),
        store.programs.of(name).wanted,
        desired.own_cuts(name),
        {one.instance: store.revisions.dropped(one) for one, _ in wanted if one.revision > 1},
    )
    return msgspec.structs.replace(found, secrets=store.secrets.told(name))


def desired_of(
    device: Device,
    wanted: list[tuple[Instance, bool]],
    purged: list[str],
    program: str = "",
    cuts: Mapping[str, str] | None = None,
    dropped: Mapping[str, Mapping[str, int]] | None = None,
) -> State:
    """What a device is to run: instances, and whether each is only to be drained; purged: those of which it
    is to keep nothing; program: the hash of its agent's, empty to leave what it has; cuts: those of
    its own, by instance; dropped: by instance and step the number of the revision by which its state went.
    """
    own, gone = cuts or {}, dropped or {}
    apps = tuple(
        _app(one, device.device, own.get(one.instance, ""), gone.get(one.instance, {}), drains=drains)
        for one, drains in wanted
    )
    return State(device.serial, apps, tuple(purged), program)


def _app(instance: Instance, device: str, own_cut: str, dropped: Mapping[str, int], *, drains: bool) -> App:
    options = merged(instance.options, instance.device_options.get(device, {}))
    sources, steps = split_options(instance, options)
    revision = instance.outline.revision
    return App(
        instance.instance,
        instance.flow,
        revision if _is_hash(revision) else "",
        instance.cut,
        msgspec.json.encode({"sources": sources, "steps": steps}, order="deterministic").decode(),
        Wanted.DRAIN if drains else Wanted.RUN,
        instance.outline.code,
        own_cut,
        instance.revision,
        ",".join(instance.outline.without),
        msgspec.json.encode(dropped, order="deterministic").decode(),
    )


def _is_hash(revision: str) -> bool:
    return len(revision) == HASH_CHARS and all(letter in "0123456789abcdef" for letter in revision)
