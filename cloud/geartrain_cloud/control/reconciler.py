"""The reconciler: brings what runs to what is wanted, one idempotent round after another.

It stands between the control store and the processes of a platform, beside every record's path. A round reads
what was reported, moves each instance one state on where that is due, and writes what is wanted. Guarantees:
every step may be done again after a kill at any moment. The store alone says how far a submit or a kill has
come. What devices and the host were told stays in force while no reconciler runs.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping

from geartrain.errors import ConfigError, LedgerError
from geartrain_cloud.control.fleet import write_local
from geartrain_cloud.control.history_files import HistoryFiles
from geartrain_cloud.control.history_files import given as history_of
from geartrain_cloud.control.hosting import (
    HostReport,
    ToHost,
    is_hosted,
    knows_next,
    read_hosted,
    write_hosted,
    write_outboxes,
)
from geartrain_cloud.control.roster import RosterKeeper, Told
from geartrain_cloud.control_store.model import ONLINE_US, Device, Instance, Mode, State, Wanted
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.followed import has_let_go
from geartrain_cloud.platform.places import read_report
from geartrain_cloud.platform.runs import runs_with_tables
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.sinks.layout import TableError

_LOG = logging.getLogger("geartrain.control")

PURGE_EVERY_US = 10_000_000
"""Between two attempts to remove tables whose database is away."""
OVER = ("ended", "failed")
"""What a device says of an instance that gives nothing more there."""
GONE = ("finished", "failed", "out", "")
"""What the host says of an instance that it brings no further."""
_AT_ITS_END = HostReport(state="finished")


class Reconciler:
    """One for a store. `round` is called when something has changed, and every so often."""

    def __init__(self, store: ControlStore, config: PlatformConfig, now_us: Callable[[], int]) -> None:
        """`now_us`: the wall clock, microseconds."""
        self._store, self._config, self._places, self._now_us = store, config, config.places, now_us
        self._purge_us: dict[str, int] = {}
        self._roster = RosterKeeper(config.places, config.fleet)

    def round(self) -> None:
        """One round; raises `StoreError`. What cannot be written is said, and tried again in the next."""
        serial, said = read_hosted(self._places)
        several, waiting = self._store.revisions.with_others(), self._store.cut_changes.waiting()
        for instance in self._store.apps.instances():
            assigned = self._store.desired.assigned(instance.instance)
            report = said.get(instance.instance)
            if instance.state is State.REPLAYING:
                self._replay(instance, report or HostReport(), serial)
            elif instance.wanted is Wanted.RUNNING:
                self._forward(instance, assigned, report or HostReport(), serial)
                if instance.instance in several:
                    self._cross(instance, report or HostReport(), serial)
                if instance.instance in waiting:
                    self._cut(instance, report or HostReport())
            else:
                self._end(instance, assigned, report, serial)
        try:
            self._write()
        except OSError as error:
            _LOG.error("what is wanted cannot be written: %s: make room, or let control write", error)
        except (LedgerError, ConfigError) as error:
            _LOG.error("ingest cannot be told what is wanted: %s", error)

    def _forward(
        self, instance: Instance, assigned: Mapping[str, str], host: HostReport, serial: int
    ) -> None:
        """An instance that is to run: submitted, starting, running; or failed, or at its end."""
        name = instance.instance
        if instance.state is State.SUBMITTED:
            self._store.apps.enter(name, State.STARTING)
        if host.state in ("failed", "out") and self._has_heard(instance, host, serial):
            self._store.apps.enter(name, State.FAILED, host.why or f"the Spark host has put it {host.state}")
            return
        if host.state == "finished" and self._has_heard(instance, host, serial):
            if not self.still_take(instance, assigned):
                self._store.desired.leave(name)
                self._store.apps.enter(name, State.ENDED)
            return
        reports = self._store.reports.of(name)
        living = [device for device, state in assigned.items() if state == "wanted"]
        failed = [one for device, one in reports.items() if device in living and one.state == "failed"]
        if failed and len(failed) == len(living):
            self._store.apps.enter(name, State.FAILED, f"device {failed[0].device}: {failed[0].why}")
        elif host.state in ("running", "held") and self._has_heard(instance, host, serial):
            self._store.apps.enter(name, State.RUNNING, host.why if host.state == "held" else "")
        elif instance.state is State.FAILED:
            self._store.apps.enter(name, State.STARTING)

    def _cross(self, instance: Instance, host: HostReport, serial: int) -> None:
        """An instance that is to go over to another revision: the log is told once the host could."""
        told = self._to_host(instance)
        following = told.following
        if following is None or host.prepared < following.number or host.run != instance.run:
            return
        if not knows_next(self._places, told, serial):
            return
        if 0 < following.outline.follows < host.revision:
            self._store.apps.give_up(instance.name, instance.instance)
            _LOG.warning(
                "revision %d of %s is given up: revision %d, which it was to pass over, came into force "
                "meanwhile: update the app again",
                following.number,
                instance.instance,
                host.revision,
            )
            return
        self._store.apps.cross(instance.instance)

    def _cut(self, instance: Instance, host: HostReport) -> None:
        """Devices that wait for other cuts: they get them once the host runs what takes their records."""
        change = self._store.cut_changes.of(instance.instance)
        if change is not None and min(host.revision, instance.revision) >= change.number:
            self._store.apps.apply_cuts(instance.instance)

    def _to_host(self, instance: Instance, *, drain: bool = False, alone: bool = False) -> ToHost:
        """What the host is to know of an instance; alone: it has no other revision."""
        if alone:
            return ToHost(instance, drain)
        revisions = self._store.revisions
        return ToHost(instance, drain, revisions.former(instance), revisions.next_of(instance))

    def _replay(self, instance: Instance, host: HostReport, serial: int) -> None:
        """An instance that had ended and is run again: until its next run is served, or cannot be."""
        if host.state in ("finished", "failed", "out") and self._has_heard(instance, host, serial):
            self._store.apps.enter(instance.instance, State.ENDED, host.why)

    def _end(
        self, instance: Instance, assigned: Mapping[str, str], host: HostReport | None, serial: int
    ) -> None:
        """An instance that was killed: its devices drain, the host comes to the end, then it has ended."""
        name = instance.instance
        left = all(state == "left" for state in assigned.values())
        if not left:
            if instance.mode is Mode.DRAIN and self.waits_for(instance, assigned, host):
                return
            if host is not None and host.state == "finished" and host.stuck:
                self._store.apps.enter(name, State.DRAINING, host.why)
            self._store.desired.leave(name)
            return
        told = read_report(self._places.spark_wanted)
        if name in told.get("flows", {}) or (host is not None and serial < told.get("serial", 0)):
            return  # the host is told in this round, or has not come to it
        if host is not None and host.state not in GONE:
            return
        if not self._is_unsent(instance):
            return
        if instance.purge:
            if self._purge(instance):
                self._store.apps.forget(name)
        else:
            self._store.apps.enter(
                name, State.ENDED, instance.why if instance.state is State.DRAINING else ""
            )

    def _has_heard(self, instance: Instance, host: HostReport, serial: int) -> bool:
        """Whether what the host says of an instance is said of the run and the attempt that are wanted, or
        knowing of them.
        """
        if instance.attempt == 1 and instance.run <= max(host.run, 1):
            return True
        told = read_report(self._places.spark_wanted)
        flow = told.get("flows", {}).get(instance.instance, {})
        is_told = (flow.get("run"), flow.get("attempt")) == (instance.run, instance.attempt)
        return bool(is_told and serial >= told.get("serial", 0))

    def waits_for(
        self, instance: Instance, assigned: Mapping[str, str], host: HostReport | None
    ) -> list[str]:
        """What an instance that is drained still waits for, a sentence each.

        A device that is offline is not waited for: what it has spooled is given up when it comes back.
        """
        reports = self._store.reports.of(instance.instance)
        waiting = []
        for device, state in assigned.items():
            report = reports.get(device)
            if state == "left" or not self.is_online(self._store.devices.get(device)):
                continue
            if report is None or report.state not in OVER:
                waiting.append(f"device {device} sends what it has spooled")
        has_left = all(state == "left" for state in assigned.values())
        has_host = not has_left if host is None else host.state not in GONE
        if not waiting and has_host:
            waiting.append("the Spark host brings the log's last rows to the tables")
        elif not waiting and has_left and not self._is_unsent(instance):
            waiting.append("the downlink lets go of its outbox")
        return waiting

    def _is_unsent(self, instance: Instance) -> bool:
        """Whether nothing of the instance is sent to devices any more."""
        places = self._places
        return not instance.outline.sends or has_let_go(
            places.downlink_wanted, places.downlink_status, instance.instance
        )

    def still_take(self, instance: Instance, assigned: Mapping[str, str]) -> list[str]:
        """The devices that have not come to their end, where something is sent to devices.

        A device that is offline takes its part when it comes back.
        """
        reports = self._store.reports.of(instance.instance)
        return [
            device
            for device, state in assigned.items()
            if instance.outline.down
            and state == "wanted"
            and (device not in reports or reports[device].state not in OVER)
        ]

    def is_online(self, device: Device) -> bool:
        """Whether something was heard of a device lately."""
        return self._now_us() - device.seen_us <= ONLINE_US

    def _purge(self, instance: Instance) -> bool:
        """Remove the tables of an instance, and what its devices of this machine keep.

        False where the tables cannot be removed now; that is tried again after a while.
        """
        now, first = self._now_us(), self._places.tables(instance.instance)
        if now < self._purge_us.get(instance.instance, 0):
            return False
        try:
            for run in runs_with_tables(first):
                AppTables(first, self._config.tables.store).remove(run)
        except (TableError, OSError) as error:
            _LOG.error("the tables of %s cannot be removed: %s", instance.instance, error)
            self._purge_us[instance.instance] = now + PURGE_EVERY_US
            return False
        self._purge_us.pop(instance.instance, None)
        shutil.rmtree(self._places.app(instance.instance), ignore_errors=True)
        for device in self._store.desired.assigned(instance.instance):
            shutil.rmtree(self._places.agent(device, instance.instance), ignore_errors=True)
        others = (one for one in self._store.apps.every() if one.instance != instance.instance)
        named = {path for one in others for _, path in history_of(one)}
        HistoryFiles(self._places.histories).remove({path for _, path in history_of(instance)} - named)
        return True

    def _write(self) -> None:
        """Write what is wanted: for ingest, for devices of this machine, for the host; in this order, since
        what a device sends must be known when it comes.
        """
        every, desired, reports = self._store.apps.every(), self._store.desired, self._store.reports
        given = {one.instance: desired.assigned(one.instance) for one in every}
        self._roster.write(
            [
                Told(one, given[one.instance])
                if one.state.has_whole_log
                else Told(one, given[one.instance], desired.lacking(one.instance), reports.of(one.instance))
                for one in every
            ]
        )
        local = [one.device for one in self._store.devices.every() if one.local and not one.retired]
        write_local(self._places, local)
        hosted = [one for one in every if is_hosted(one, given[one.instance])]
        several = self._store.revisions.with_others()
        told = [
            self._to_host(one, drain=self._is_drained(one), alone=one.instance not in several)
            for one in hosted
        ]
        write_hosted(self._places, told)
        write_outboxes(self._places, hosted)

    def _is_drained(self, instance: Instance) -> bool:
        """Whether the devices of an instance that is killed have given all, so that the log has its end."""
        if instance.wanted is not Wanted.KILLED:
            return False
        return not self.waits_for(instance, self._store.desired.assigned(instance.instance), _AT_ITS_END)
