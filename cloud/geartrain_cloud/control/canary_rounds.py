"""Looks at the devices of canaries, and has the other devices follow or the canaries go back.

Beside REST, by the same change of the store that a person makes. Guarantees: a canary is decided once, in one
transaction with its reason. When it is due is kept in the store, so that a restart of control changes
nothing of that; what devices do is asked anew. Each decision has an event and an entry of the audit log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from geartrain.control.app_reasons import AppCode, has_code
from geartrain.errors import GeartrainError, LedgerError
from geartrain.ports import Clock
from geartrain.printable import TEXT_CHARS_MAX, printable
from geartrain_cloud.changes.judging import Standing, Verdict, in_words, judged, others_of
from geartrain_cloud.control.crossed import has_crossed, report_of
from geartrain_cloud.control_store.bearers import Bearer
from geartrain_cloud.control_store.errors import StoreError
from geartrain_cloud.control_store.events import Event
from geartrain_cloud.control_store.model import ONLINE_US, Canary, CanaryStage, Instance, State, Wanted
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.log.brought import Brought, begun, brought_by_device, letters_by_device
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.rest.audit import AuditLog

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.control")

EVERY_S = 5.0
SETTLE_S = ONLINE_US / 1_000_000
"""After a start of control nothing is due for so long: devices have to come into contact first."""
EVENTS_MAX = 1_000
"""Of an app, that are looked at for starts anew."""
_WHO = Bearer("canary", "operator")


class CanaryRounds:
    """One for a control store."""

    def __init__(
        self,
        store: ControlStore,
        places: PlatformPlaces,
        audit: AuditLog,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """`changed`: called after each change."""
        self._store, self._places, self._audit, self._clock = store, places, audit, clock
        self._changed, self._since_s = changed, clock.monotonic_s()

    async def run(self) -> None:
        """One round after another, until it is cancelled; raises `StoreError`."""
        while True:
            await self._clock.sleep(EVERY_S)
            await self.round()

    async def round(self) -> None:
        """Look at every canary; raises `StoreError`. What else is in the way is said, and tried again."""
        for name in sorted(self._store.revisions.canaries.under_way()):
            instance = self._store.apps.find(name)
            if instance is None or instance.wanted is not Wanted.RUNNING:
                continue
            canary = self._store.revisions.canary_of(instance)
            if canary is None or not canary.began_us or instance.state is not State.RUNNING:
                continue
            try:
                await self._look(instance, canary)
            except StoreError:
                raise
            except GeartrainError as error:
                _LOG.warning("the canary of %s: %s", name, printable(str(error)))

    async def _look(self, instance: Instance, canary: Canary) -> None:
        ingest = self._ingest(instance.instance)
        if not canary.positions and (positions := _positions(ingest)):
            # Where the log was told of it, and not where it is seen first: what came meanwhile counts.
            told = await asyncio.to_thread(begun, self._places.log, instance.instance, canary.number)
            self._store.revisions.canaries.place(instance.instance, positions | told)
        is_settled = self._clock.monotonic_s() - self._since_s >= SETTLE_S
        is_over = is_settled and self._clock.now_us() >= canary.until_us
        letters = await self._of_log(letters_by_device, instance, canary)
        # Reads many entries, and so only once.
        brought = await self._of_log(brought_by_device, instance, canary) if is_over else {}
        found, count = self._standings(instance, canary, ingest, letters, brought)
        others, ends = others_of(letters, brought, canary.devices, count), instance.outline.bounded
        verdict = judged(found, others, in_words(canary.for_s), is_over=is_over, ends=ends)
        if verdict is not None:
            self._decide(instance, canary, verdict)

    async def _of_log(
        self,
        question: Callable[[Path, str, Mapping[str, int]], Mapping[str, T]],
        instance: Instance,
        canary: Canary,
    ) -> Mapping[str, T]:
        """By device, what it has sent since the canary began; nothing where that cannot be told."""
        if not canary.positions:
            return {}
        try:
            return await asyncio.to_thread(question, self._places.log, instance.instance, canary.positions)
        except LedgerError as error:
            _LOG.warning("the canary of %s: %s", instance.instance, printable(str(error)))
            return {}

    def _standings(
        self,
        instance: Instance,
        canary: Canary,
        ingest: Mapping[str, Any],
        letters: Mapping[str, int],
        brought: Mapping[str, Brought],
    ) -> tuple[list[Standing], int]:
        """The devices of a canary that have not left it, and how many others there are."""
        assigned = self._store.desired.assigned(instance.instance)
        wanted = [device for device, state in assigned.items() if state == "wanted"]
        events = self._store.events.last("applied", instance.name, canary.began_us, EVENTS_MAX)
        since_us, known = self._clock.now_us() - ONLINE_US, {canary.runs.outline.revision}
        found = list[Standing]()
        for device in wanted:
            if device not in canary.devices:
                continue
            said = report_of(self._store, device, instance.instance)
            found.append(
                Standing(
                    device,
                    "" if said is None else said.state.word,
                    "" if said is None else printable(said.why, TEXT_CHARS_MAX),
                    said is not None and has_code(said.reasons, AppCode.WENT_BACK),
                    has_crossed(self._store, device, instance, known),
                    self._store.devices.get(device).seen_us >= since_us,
                    restarts([one for one in events if one.device == device]),
                    letters.get(device, 0),
                    _held(ingest, device),
                    brought.get(device, Brought()),
                )
            )
        return found, len(wanted) - len(found)

    def _decide(self, instance: Instance, canary: Canary, verdict: Verdict) -> None:
        stage = CanaryStage.PROMOTED if verdict.is_good else CanaryStage.BACK
        name, what = instance.name, "promote" if verdict.is_good else "rollback"
        entry = self._audit.begin(_WHO, "POST", f"/api/v1/apps/{name}/{what}", (name, ""), "")
        number = self._store.apps.end_canary(name, canary.number, stage, verdict.why)
        self._audit.end(entry, 202, "ok", {"number": number, "why": verdict.why})
        _LOG.info("%s: the canary %d %s: %s", instance.instance, canary.number, stage, verdict.why)
        self._changed()

    def _ingest(self, instance: str) -> Mapping[str, Any]:
        flows = read_report(self._places.ingest_status).get("flows", {})
        found = flows.get(instance, {}) if isinstance(flows, dict) else {}
        return found if isinstance(found, dict) else {}


def restarts(events: Sequence[Event]) -> int:
    """How often an app was started anew after it had run, and said why; events: of one device, the newest
    first.
    """
    states = [(one.said.get("state"), one.said.get("why")) for one in reversed(events)]
    pairs = pairwise(states)
    return sum((before[0], now[0]) == ("running", "starting") and bool(now[1]) for before, now in pairs)


def _positions(ingest: Mapping[str, Any]) -> dict[str, int]:
    found = ingest.get("positions", {})
    return {str(key): int(number) for key, number in found.items()} if isinstance(found, dict) else {}


def _held(ingest: Mapping[str, Any], device: str) -> str:
    """Why ingest leaves with a device what it sends, "" where it takes all."""
    devices = ingest.get("devices", {})
    one = devices.get(device, {}) if isinstance(devices, dict) else {}
    held = one.get("held") if isinstance(one, dict) else None
    return printable(str(held.get("why", "")), TEXT_CHARS_MAX) if isinstance(held, dict) else ""
