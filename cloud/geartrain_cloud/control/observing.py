"""What is reported of a platform, as REST answers it: processes, apps, devices, logs and tables.

Between the files in which processes report, the control store, and REST. Guarantees: it writes nothing and
invents nothing; what nobody reports is null. Text of devices and users is printable. Every answer is bounded.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geartrain import __version__
from geartrain.control.states import reported_cut
from geartrain.errors.reason import Reason
from geartrain.fleet.selectors import ALL, CLOUD_DEVICE, parse_selector
from geartrain.graph.graph import DEAD_LETTERS
from geartrain.printable import TEXT_CHARS_MAX, printable
from geartrain.records.event_time import END_OF_TIME
from geartrain.revision import Revision, table_notes
from geartrain_cloud.control.agents import standing_of
from geartrain_cloud.control.cost import Costs
from geartrain_cloud.control.crossed import has_crossed, laggards
from geartrain_cloud.control.cutting import shown_cut
from geartrain_cloud.control.hosting import HostReport, read_hosted, unsent_because
from geartrain_cloud.control.machine import GONE, Measured, ProcessMeter
from geartrain_cloud.control.rates import RateMeter
from geartrain_cloud.control.reconciler import Reconciler
from geartrain_cloud.control_store.desired import rule_of
from geartrain_cloud.control_store.errors import NotFoundError
from geartrain_cloud.control_store.model import Device, Instance, Report, State
from geartrain_cloud.control_store.sources import lacking, needs_devices, not_for
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.hosting.skew import Hottest
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.places import read_report
from geartrain_cloud.rest.requests import LIMIT
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.own import TablesReader
from geartrain_cloud.sinks.refused_state import TABLE as LETTERS

if TYPE_CHECKING:
    from geartrain_cloud.control.enrolment import Enrolment

NAMES_MAX = 100
_MOVES_MAX = 10
_NOTES_MAX = 1000
"""Devices that an answer about an app names; it counts all."""
_TOLD_MAX = 3
"""Devices whose reason is told beside what an app waits for."""
LETTERS_S = 5.0
"""How long an answer about dead letters in tables is good."""
LOG_BYTES_MAX = 4 << 20
LINES_READ_MAX = 100_000
APPLIED = ("running", "draining", "ended")
"""What a device says of an instance that it has taken on."""


@dataclass(frozen=True, slots=True)
class _Letters:
    """The dead letters in an app's tables: how many, and the cells of state that could not be taken in, by
    step and reason. None: nobody can say.
    """

    count: int | None = None
    refused_state: list[dict[str, Any]] | None = None


class Observer:
    """Answers from the store and from what processes report."""

    def __init__(
        self,
        store: ControlStore,
        config: PlatformConfig,
        reconciler: Reconciler,
        url: Callable[[], str],
        now_s: Callable[[], float],
        cloned: Callable[[str], str] = lambda device: "",
        enrolment: Enrolment | None = None,
    ) -> None:
        """`url`: where REST answers; now_s: a clock that never goes back, seconds; cloned: the sentence for a
        device of which there are two; enrolment: of a platform that is open to other machines.
        """
        self._cloned, self._enrolment = cloned, enrolment
        self._store, self._config, self._places = store, config, config.places
        self._reconciler, self._url, self._meter = reconciler, url, ProcessMeter()
        self._rates, self._costs = RateMeter(config.places, now_s), Costs(config, now_s)
        self._now_s = now_s
        self._letters: dict[str, tuple[float, _Letters]] = {}

    def look(self) -> None:
        """Remember now and then how far all apps are, and what they take; called at any time."""
        if self._rates.is_due:
            names = [one.instance for one in self._store.apps.instances()]
            self._rates.look([(name, self._here(name)) for name in names])
            if self._costs.is_due:
                self._costs.look(names)

    def _here(self, instance: str) -> list[str] | None:
        """The devices that run an instance; None unless all of them run on this machine."""
        devices = self._store.desired.running(instance)
        return devices if all(self._store.devices.get(device).local for device in devices) else None

    def status(self) -> dict[str, Any]:
        """The processes, as the supervisor and the system tell of them."""
        found = {
            name: one for name, one in read_report(self._places.processes).items() if isinstance(one, dict)
        }
        measured = self._meter.of([pid for one in found.values() if isinstance(pid := one.get("pid"), int)])
        return {
            "version": __version__,
            "url": self._url(),
            "state": str(self._places.folder),
            "processes": [
                self._process(name, one, measured.get(one.get("pid", 0), GONE)) for name, one in found.items()
            ],
        }

    def _process(self, name: str, said: Mapping[str, Any], measured: Measured) -> dict[str, Any]:
        rss, cpu = measured
        return {
            "name": name,
            "state": said.get("state", ""),
            "pid": said.get("pid"),
            "restarts": said.get("restarts", 0),
            "rss_bytes": rss,
            "cpu_percent": cpu,
            "version": __version__,
            "waits_for": printable(str(said.get("why", "")), TEXT_CHARS_MAX),
            "since_us": said.get("since_us"),
        }

    # Apps

    def item(self, instance: Instance) -> dict[str, Any]:
        """An app as a list has it."""
        assigned = self._store.desired.assigned(instance.instance)
        reports = self._store.reports.of(instance.instance)
        cuts = self._cuts(instance, reports)
        applied = sum(
            reports[d].state in APPLIED and (d not in cuts or cuts[d][1]) for d in assigned if d in reports
        )
        online = sum(self._reconciler.is_online(self._store.devices.get(d)) for d in assigned)
        return {
            "name": instance.name,
            "instance": instance.instance,
            "state": instance.state.value,
            "wanted": instance.wanted.value,
            "revision": instance.outline.revision,
            "flow": instance.flow,
            "isolation": instance.isolation,
            "number": instance.revision,
            "code": instance.outline.code,
            "bundled": instance.outline.bundled,
            "devices": {"assigned": len(assigned), "applied": applied, "online": online},
            "why": printable(instance.why, TEXT_CHARS_MAX),
            "cuts": _by_cut(cuts),
        }

    def _cuts(self, instance: Instance, reports: Mapping[str, Report]) -> dict[str, tuple[str, bool]]:
        """By device that has not left the app the cut that it is to have, and whether it runs with it."""
        found = {}
        for device, own in self._store.desired.cuts(instance.instance).items():
            report = reports.get(device)
            said = report.cut if report else ""
            is_wanted = said == reported_cut(own or instance.cut) if said else not own
            runs = report is not None and report.state in APPLIED and not report.awaits_state
            has_it = runs and is_wanted
            found[device] = (shown_cut(instance, own), has_it)
        return found

    def info(self, instance: Instance) -> dict[str, Any]:
        """All that is known of an app."""
        assigned = self._store.desired.assigned(instance.instance)
        _, hosted = read_hosted(self._places)
        host = hosted.get(instance.instance)
        ingest = self._ingest(instance.instance)
        channels = ingest.get("channels")
        known = channels.items() if isinstance(channels, dict) else ()
        logged = {name: one.get("rows", 0) for name, one in known if isinstance(one, dict)}
        letters = self._letters_of(instance)
        counts = [count for count in (logged.get(DEAD_LETTERS), letters.count) if count is not None]
        return {
            **self.item(instance),
            "cut": instance.cut,
            "cut_change": self._cut_change(instance),
            "adaptive": self._adaptive(instance),
            "canary": self._canary(instance),
            "crossing": self._crossing(instance),
            "selector": instance.selector,
            "run": instance.run,
            "slots": instance.slots,
            "skew": [] if host is None else [told_skew(one) for one in host.skew[:NAMES_MAX]],
            "slots_now": None if host is None else host.slots or None,
            "change": self._change(instance, host or HostReport()),
            "tables": self._place(instance),
            "files": [str(folder) for folder in self._tables(instance).folders()],
            "submitted_us": instance.submitted_us,
            "options": instance.options,
            "sources": [
                {"id": source.id, "bounded": source.bounded, "devices": source.devices or ALL}
                for source in instance.outline.sources
            ],
            "channels": [
                {"id": one.id, "sources": one.sources, "rows": logged.get(one.id)}
                for one in instance.outline.channels
            ],
            "clocks": self._clocks(instance, ingest),
            "rates": self._rates.rates(instance.instance, self._here(instance.instance)),
            "retention": self._costs.retention(instance),
            "cost": self._costs.cost(instance.instance),
            "lag": None if host is None else host.lag,
            "dead_letters": max(counts, default=None),
            "refused_state": letters.refused_state,
            "unread_rows": {} if host is None else dict(host.unread),
            "host": None
            if host is None
            else {
                "state": host.state,
                "why": printable(host.why, TEXT_CHARS_MAX),
                "rows": host.rows,
                "run": host.run,
            },
            "waits_for": self._waits(instance, assigned, ingest),
            "applied": self._applied_by(instance, list(assigned)[:NAMES_MAX]),
            "notes": _notes(instance),
        }

    def _letters_of(self, instance: Instance) -> _Letters:
        """What the tables of an app hold of dead letters. Waiting commands ask for an app many times, so that
        it is looked up now and then.
        """
        now_s, (since_s, known) = self._now_s(), self._letters.get(instance.instance, (-math.inf, _Letters()))
        if now_s - since_s < LETTERS_S:
            return known
        try:
            tables = AppTables(self._places.tables(instance.instance), self._config.tables.store)
            reader = tables.reader(tables.served)
            known = _Letters(
                reader.row_count(LETTERS) if reader is not None and LETTERS in reader.names() else None,
                [
                    {
                        "step": printable(step, TEXT_CHARS_MAX),
                        "reason": printable(reason, TEXT_CHARS_MAX),
                        "cells": n,
                    }
                    for step, reason, n in tables.refused_state(tables.served)
                ],
            )
        except TableError:
            return _Letters()
        self._letters[instance.instance] = now_s, known
        return known

    def _change(self, instance: Instance, host: HostReport) -> dict[str, Any] | None:
        """The revision that an app goes over to, and how far that is; None where it stays."""
        following = self._store.revisions.next_of(instance)
        number = instance.revision if following is None else following.number
        if instance.state.has_whole_log or host.revision >= number:
            return None
        stage = (
            "being logged"
            if following is None
            else "prepared"
            if host.prepared >= number
            else "being prepared"
        )
        return {"number": number, "stage": stage, "why": printable(host.next_why, TEXT_CHARS_MAX)}

    def _cut_change(self, instance: Instance) -> dict[str, Any] | None:
        """The cuts for which devices wait, until a revision is in force; None for none."""
        change = self._store.cut_changes.of(instance.instance)
        if change is None or not change.cuts:
            return None
        return {
            "number": change.number,
            "count": len(change.cuts),
            "devices": sorted(change.cuts)[:NAMES_MAX],
        }

    def _adaptive(self, instance: Instance) -> dict[str, Any] | None:
        """The devices whose cut follows what is measured of them; None for none."""
        rules, devices = instance.cut_rules, self._store.desired.cuts(instance.instance)
        if not any(rule.adaptive for rule in rules):
            return None
        found = (rule_of(rules, self._store.devices.get(name)) for name in devices)
        moves = self._store.events.last("moved", instance.name, instance.submitted_us, _MOVES_MAX)
        return {
            "devices": sum(rule is not None and rule.adaptive for rule in found),
            "moves": [
                {
                    "at_us": one.at_us,
                    "device": one.device,
                    **{field: one.said[field] for field in ("before", "cut", "why")},
                }
                for one in moves
            ],
        }

    def _canary(self, instance: Instance) -> dict[str, Any] | None:
        """The canary of an app, also one that is over; None where it never had one."""
        canary = self._store.revisions.canaries.of(instance.instance)
        if canary is None:
            return None
        known, store = {canary.runs.outline.revision}, self._store
        return {
            "number": canary.number,
            "code": canary.runs.outline.code,
            "stage": canary.stage.value,
            "why": printable(canary.why, TEXT_CHARS_MAX),
            "selector": canary.selector,
            "count": len(canary.devices),
            "crossed": sum(has_crossed(store, device, instance, known) for device in canary.devices),
            "devices": list(canary.devices)[:NAMES_MAX],
            "since_us": canary.began_us or None,
            "until_us": canary.until_us if canary.began_us else None,
            "is_open": self._store.revisions.canary_of(instance) is not None,
        }

    def _crossing(self, instance: Instance) -> dict[str, Any] | None:
        """The devices that have not gone over to the newest revision with other steps for them; None where
        all have.
        """
        running = self._store.desired.running(instance.instance)
        is_told = self._store.revisions.in_force(instance) is instance
        behind = laggards(self._store, instance) if is_told else running
        if instance.state.has_whole_log or not behind:
            return None
        return {
            "number": instance.revision,
            "count": len(behind),
            "of": len(running),
            "online": sum(self._reconciler.is_online(self._store.devices.get(one)) for one in behind),
            "devices": behind[:NAMES_MAX],
        }

    def _ingest(self, instance: str) -> Mapping[str, Any]:
        found = read_report(self._places.ingest_status).get("flows", {})
        one = found.get(instance, {}) if isinstance(found, dict) else {}
        return one if isinstance(one, dict) else {}

    def _clocks(self, instance: Instance, ingest: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The clock of each source and who holds it, as ingest says; nobody holds one that has ended."""
        said = ingest.get("sources", {})
        return [
            {
                "source": source.id,
                "clock_us": said[source.id].get("clock"),
                "held_by": []
                if _has_ended(said[source.id])
                else list(said[source.id].get("holding", []))[:NAMES_MAX],
            }
            for source in instance.outline.sources
            if isinstance(said, dict) and isinstance(said.get(source.id), dict)
        ]

    def _missing(self, instance: Instance, ingest: Mapping[str, Any]) -> list[str]:
        """The sources that keep a bounded flow from its end: no device has them, and they have not ended."""
        outline, said = instance.outline, ingest.get("sources", {})
        sources, lacks = [source.id for source in outline.sources], self._lacks(instance)
        running = self._store.desired.running(instance.instance)
        there = {s for d in running for s in sources if s not in lacks.get(d, ())}
        ended = {s for s in sources if isinstance(said, dict) and _has_ended(said.get(s))}
        return [s for s in sources if s not in there | ended] if outline.bounded else []

    def _lacks(self, instance: Instance) -> dict[str, tuple[str, ...]]:
        """By device the sources that it lacks: what it has reported, else what it was told."""
        reports = self._store.reports.of(instance.instance)
        told = self._store.desired.lacking(instance.instance)
        return {
            device: lacking(instance, device, told.get(device, ()), reports.get(device))
            for device in self._store.desired.assigned(instance.instance)
        }

    def _waits(self, instance: Instance, assigned: Mapping[str, str], ingest: Mapping[str, Any]) -> list[str]:
        if instance.state is State.ENDED:
            return []
        _, hosted = read_hosted(self._places)
        host = hosted.get(instance.instance)
        if instance.state is State.REPLAYING:
            return self._waits_for_run(instance, host or HostReport())
        if instance.state is State.DRAINING:
            return self._reconciler.waits_for(instance, assigned, hosted.get(instance.instance))
        waiting = []
        if needs_devices(instance.outline) and not set(assigned) - {CLOUD_DEVICE}:
            waiting.append(f"no device matches {instance.selector}: add one, or label one")
        else:
            selectors = {source.id: source.devices for source in instance.outline.sources}
            waiting += [
                f"no device of the app has source {source}, so it never ends: add a device that "
                f"{_meant(selectors[source])}, or kill the app and submit it with {source}.enabled=true"
                for source in self._missing(instance, ingest)
            ]
            waiting += _held(ingest)
        running = self._store.desired.running(instance.instance)
        offline = [d for d in running if not self._reconciler.is_online(self._store.devices.get(d))]
        if offline:
            more = f" and {len(offline) - 3} more" if len(offline) > 3 else ""
            are = "is" if len(offline) == 1 else "are"
            waiting.append(f"{', '.join(offline[:3])}{more} {are} offline")
        reports = self._store.reports.of(instance.instance)
        waiting += _on_its_way([reports[device] for device in running if device in reports])
        if assigned and instance.instance not in hosted:
            waiting.append("the Spark host has not taken it up yet")
        if why := unsent_because(self._places, instance.instance):
            waiting.append(printable(why, TEXT_CHARS_MAX))
        if host is None:
            return waiting
        if host.state == "finished":
            still = self._reconciler.still_take(instance, assigned)
            waiting += [f"device {device} takes what was sent to it" for device in still[:NAMES_MAX]]
        return waiting + self._waits_for_run(instance, host)

    def _waits_for_run(self, instance: Instance, host: HostReport) -> list[str]:
        if instance.run <= max(host.run, 1):
            return []
        return [printable(host.why, TEXT_CHARS_MAX) or f"run {instance.run} is to begin"]

    def _applied_by(self, instance: Instance, devices: list[str]) -> list[dict[str, Any]]:
        lacks, reports = self._lacks(instance), self._store.reports.of(instance.instance)
        cuts = self._cuts(instance, reports)
        return [
            {
                **self._applied(name, reports.get(name)),
                "lacks": list(lacks[name])[:NAMES_MAX],
                "cut": cuts.get(name, ("", False))[0],
                "cut_applied": cuts.get(name, ("", False))[1],
            }
            for name in devices
        ]

    def _applied(self, device: str, report: Report | None) -> dict[str, Any]:
        online = self._reconciler.is_online(self._store.devices.get(device))
        if report is None:
            state, why = ("pending", "") if online else ("offline", "nothing was heard of it yet")
            return {
                "device": device,
                "state": state,
                "serial": 0,
                "why": why,
                "reasons": [],
                "online": online,
            }
        return {
            "device": device,
            "state": printable(report.state, 40),
            "serial": report.serial,
            "why": printable(report.why, TEXT_CHARS_MAX),
            "reasons": [_reason(one) for one in report.reasons],
            "online": online,
        }

    def lines(self, instance: Instance, count: int, devices: Iterable[str]) -> list[dict[str, str]]:
        """The last lines of what works for an app: its agents on this machine, and the Spark host where it
        names the instance.
        """
        name, found = instance.instance, deque[dict[str, str]](maxlen=count)
        for device in devices:
            path = self._places.agent(device, name) / "agent.log"
            found.extend({"process": f"agent {device}", "line": line} for line in _tail(path, count))
        of_host = [line for line in _tail(self._places.process_log("spark"), LINES_READ_MAX) if name in line]
        found.extend({"process": "spark", "line": line} for line in of_host)
        return list(found)

    # Tables

    def _tables(self, instance: Instance) -> AppTables:
        return AppTables(self._places.tables(instance.instance), self._config.tables.store)

    def _place(self, instance: Instance) -> str:
        try:
            tables = self._tables(instance)
            return tables.place(tables.served)
        except TableError as error:
            return str(error)

    def _reader(self, instance: Instance) -> TablesReader | None:
        """That of the run that is served."""
        tables = self._tables(instance)
        return tables.reader(tables.served)

    def tables(self, instance: Instance, limit: int = LIMIT, after: str = "") -> dict[str, Any]:
        """A page of the tables of an app, by name; none before its first micro-batch. Raises `TableError`."""
        reader = self._reader(instance)
        names = [] if reader is None else [one for one in sorted(reader.names()) if one > after]
        items = [
            {"name": name, "columns": reader.columns(name), "rows": reader.row_count(name)}
            for name in names[:limit]
            if reader is not None
        ]
        return {"items": items, "next": names[limit - 1] if len(names) > limit else None}

    def rows(
        self, instance: Instance, table: str, after: int, limit: int, *, as_written: bool
    ) -> dict[str, Any]:
        """A page of a table; raises `TableError` and `NotFoundError`."""
        reader = self._reader(instance)
        if reader is None:
            raise NotFoundError(f"app {instance.name} has no tables yet: see gear info {instance.name}")
        names = reader.columns(table)
        if as_written:
            found, place = reader.rows_after(table, after, limit)
            following = str(place)
        else:
            found = reader.page(table, after, limit)
            following = str(after + len(found))
        more = len(found) == limit or as_written
        return {
            "columns": names,
            "rows": [[row[name] for name in names] for row in found],
            "next": following if more else None,
        }

    # Devices

    def device(self, device: Device) -> dict[str, Any]:
        """A device as a list has it."""
        return {
            "name": device.device,
            "labels": device.labels,
            "local": device.local,
            "retired": device.retired,
            "serial": device.serial,
            "applied": device.applied,
            "seen_us": device.seen_us or None,
            "online": self._reconciler.is_online(device),
            "clones": self._cloned(device.device),
            "agent": standing_of(self._store, device, online=self._reconciler.is_online(device)),
            **({} if self._enrolment is None else self._enrolment.standing(device.device)),
        }

    def labelled(self, device: Device) -> dict[str, Any]:
        """A device with the apps that it keeps though their selectors match it no longer. `sources` are those
        with which, or without which, it goes on although their selectors say otherwise now.
        """
        kept: list[dict[str, Any]] = [
            {"name": instance.name, "selector": instance.selector}
            for instance, draining in self._store.desired.wanted_on(device.device)
            if not draining and not parse_selector(instance.selector).matches(device.device, device.labels)
        ]
        sources = []
        for instance, draining in self._store.desired.wanted_on(device.device):
            held = set(self._store.desired.lacking(instance.instance).get(device.device, ()))
            differ = sorted(held ^ set(not_for(instance.outline, device)))
            sources += [
                {"name": instance.name, "source": source, "has": source not in held}
                for source in differ
                if not draining
            ]
        return {**self.device(device), "kept": kept, "sources": sources}

    def device_info(self, device: Device) -> dict[str, Any]:
        """A device with the apps that it is to run."""
        apps, cuts = [], self._store.desired.own_cuts(device.device)
        for instance, draining in self._store.desired.wanted_on(device.device):
            known = self._store.reports.of(instance.instance).get(device.device)
            report = known or Report("", "", "pending")
            told = self._store.desired.lacking(instance.instance).get(device.device, ())
            apps.append(
                {
                    "name": instance.name,
                    "instance": instance.instance,
                    "draining": draining,
                    "number": instance.revision,
                    "code": instance.outline.code,
                    "canary": self._is_canary(instance, device.device),
                    "cut": shown_cut(instance, cuts.get(instance.instance, "")),
                    "state": printable(report.state, 40),
                    "why": printable(report.why, TEXT_CHARS_MAX),
                    "lacks": list(lacking(instance, device.device, told, known))[:NAMES_MAX],
                }
            )
        refused = printable(self._store.reports.refusal(device.device), TEXT_CHARS_MAX)
        return {**self.device(device), "apps": apps, "refused": refused}

    def _is_canary(self, told: Instance, device: str) -> bool:
        """Whether a device runs an app as it is told before other devices do."""
        canary = self._store.revisions.canaries.of(told.instance)
        return canary is not None and device in canary.devices and told.revision == canary.number

    def device_file(self, device: Device) -> dict[str, Any]:
        """What the file of a device holds, as `gear-agent --device FILE` reads it."""
        broker: Any = read_report(self._places.broker).get("address", "127.0.0.1:1883")
        if self._config.is_open:  # the certificate and its key are those of gear certs issue device NAME
            own = {name: f"{device.device}.{end}" for name, end in (("certificate", "pem"), ("key", "key"))}
            broker = {"address": self._config.device_broker, "tls": True, "ca": "ca.pem", **own}
        return {"device": device.device, "state": device.device, "broker": broker}


def told_skew(one: Hottest) -> dict[str, Any]:
    """The slot and the keys of a keyed stream that have most rows; keys are of devices."""
    keys = [{"key": printable(key.key, TEXT_CHARS_MAX), "share": key.share} for key in one.keys]
    return {"step": one.step, "slots": one.slots, "slot": one.slot, "share": one.share, "keys": keys}


def _reason(one: Reason) -> dict[str, Any]:
    """A reason of a device for programs, with nothing in it that a terminal would obey."""
    details = {
        printable(name, TEXT_CHARS_MAX): printable(value, TEXT_CHARS_MAX) if isinstance(value, str) else value
        for name, value in one.details.items()
    }
    return {"code": one.code, "details": details}


def _by_cut(cuts: Mapping[str, tuple[str, bool]]) -> list[dict[str, Any]]:
    """The cuts of an app's devices: how many are to have each, and run with it; the most frequent first."""
    wanted = Counter(cut for cut, _ in cuts.values())
    applied = Counter(cut for cut, has_it in cuts.values() if has_it)
    return [
        {"cut": cut, "devices": count, "applied": applied[cut]}
        for cut, count in wanted.most_common(NAMES_MAX)
    ]


def _meant(selector: str) -> str:
    return f"matches {selector}" if selector else "has it"


def _notes(instance: Instance) -> list[dict[str, str]]:
    """Units and descriptions of the first fields of an app's tables that have some."""
    document = instance.outline.document
    found = table_notes(Revision.from_json(document)) if document else ()
    return [
        {"table": table, "field": field, "unit": note.unit, "description": note.description}
        for table, field, note in islice(found, _NOTES_MAX)
    ]


def _held(ingest: Mapping[str, Any]) -> list[str]:
    """What ingest leaves with devices, as it says itself: one sentence for each of the first."""
    devices = ingest.get("devices", {})
    found = devices.items() if isinstance(devices, dict) else ()
    held = [
        (name, one["held"])
        for name, one in found
        if isinstance(one, dict) and isinstance(one.get("held"), dict)
    ]
    said = [f"device {name} keeps what it sends: {one.get('why', '')}" for name, one in held[:3]]
    more = [f"{len(held) - 3} more devices keep what they send"] if len(held) > 3 else []
    return [printable(one, TEXT_CHARS_MAX) for one in (*said, *more)]


def _on_its_way(reports: Iterable[Report]) -> list[str]:
    """What keeps state from devices that are to have it: the first that say why, and how many others wait."""
    moving = [one for one in reports if one.awaits_state]
    told = [one for one in moving if any("unmoved" in reason.details for reason in one.reasons)][:_TOLD_MAX]
    said = [printable(f"device {one.device} {one.why}", TEXT_CHARS_MAX) for one in told]
    others = len(moving) - len(told)
    are = "device" if others == 1 else "devices"
    return [*said, *([f"the state of steps is on its way to {others:,} {are}"] if others else [])]


def _has_ended(source: Any) -> bool:
    """Whether a source has come to its end, by what ingest says of it."""
    clock = source.get("clock") if isinstance(source, dict) else None
    return isinstance(clock, int) and clock >= END_OF_TIME


def _tail(path: Path, count: int) -> list[str]:
    """The last lines of a file, with nothing in them that a terminal would obey."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
            text = file.read(LOG_BYTES_MAX).decode(errors="backslashreplace")
    except OSError:
        return []
    return [printable(line, TEXT_CHARS_MAX) for line in text.splitlines() if line.strip()][-count:]
