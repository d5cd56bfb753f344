"""The host of a platform's flows: it follows wanted.json, and says in status.json how each flow is.

It stands around the groups: it has flows prepared, brings them in, takes them out. `step` is called again and
again, from one thread.

Guarantees: what can go wrong with one flow is said of that flow, and the others go on. With control gone, the
host goes on with what was wanted last, after a restart too.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from geartrain.errors import GeartrainError, LedgerError
from geartrain_cloud.hosting.admission import Admission, Key, Member, is_locked
from geartrain_cloud.hosting.asking import Asking
from geartrain_cloud.hosting.errors import HostError, PreparationError
from geartrain_cloud.hosting.group import GroupSettings
from geartrain_cloud.hosting.groups import Groups
from geartrain_cloud.hosting.leftovers import release_log, remove_unused_code, remove_unused_state
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.hosting.preparing import Preparing
from geartrain_cloud.hosting.scaling import Scaling
from geartrain_cloud.hosting.status import FlowStatus, StatusFile, describe
from geartrain_cloud.hosting.succession import Succession
from geartrain_cloud.hosting.wanted import Wanted, WantedFile, WantedFlow
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.platform.runs import runs_with_tables, serve_run, served_run
from geartrain_cloud.sinks.app_tables import AppTables

STATUS_EVERY_S = 0.5
CLEAN_EVERY_S = 60.0
"""How often it is looked for what flows have left behind; also each time when one has left."""

REMOVE_EVERY_S = 10.0
"""Between two attempts to remove tables that could not be removed."""

_log = logging.getLogger("host")


@dataclass(frozen=True, slots=True)
class _Failed:
    """A flow that could not be brought in, as long as the same is asked for."""

    request: str
    why: str


@dataclass(frozen=True, slots=True)
class _Coming:
    """A run on its way in, or back: what was wanted, which revision of it, and when that is prepared."""

    wanted: WantedFlow
    revision: int
    prepared: Future[Prepared]

    @property
    def request(self) -> str:
        """The hash of what was asked for."""
        return self.wanted.request_of(self.revision)


def _too_new(flow: str, runs: int, wanted: int) -> str:
    return (
        f"flow {flow} runs revision {runs}, and control knows of {wanted} alone: its store was restored from "
        "an older copy; bring back a newer one, or kill the app and submit it again"
    )


class Host:
    """The host; `open` it, then call `step` again and again."""

    def __init__(
        self,
        session: SparkSession,
        folder: Path,
        log: Path,
        settings: GroupSettings | None = None,
        store: str = "",
    ) -> None:
        """folder: its own; log: ingest's, which is there; store: the PostgreSQL for tables, "" for files.

        Raises `HostError` and `QueryError`.
        """
        self._store = store
        self._places = HostPlaces(folder.absolute())
        self._log = LogReader(log)
        self._wanted_file = WantedFile(self._places.wanted)
        self._wanted = Wanted()
        self._known = False
        self._preparing = Preparing(self._places)
        self._coming: dict[Key, _Coming] = {}
        self._failed: dict[Key, _Failed] = {}
        self._served: dict[str, int] = {}
        self._locked: dict[Key, str] = {}  # flows whose tables another program writes just now
        self._removing: dict[tuple[Path, int], tuple[float, str]] = {}
        self._status = StatusFile(self._places.status)
        self._complaint = ""
        self.groups = Groups(session, self._places, log.absolute(), settings)
        self._succession = Succession(self.groups, self._preparing, self._log, self._member)
        self._scaling = Scaling(self.groups, self._member)
        self._asking = Asking(self._places, self.groups)
        self._shown_s = 0.0
        self._cleaned: tuple[float, frozenset[str]] = (0.0, frozenset())

    def open(self) -> None:
        """Open the tables of the flows that it has, and start the queries.

        Raises `HostError` where it has flows and nobody says what is wanted: none of them may be forgotten.
        """
        self._follow()
        if not self._known and self.groups.has_flows:
            why = self._complaint or f"{self._places.wanted} is missing"
            raise HostError(f"{why}: start gear-control, which writes it, and this program again")
        self.groups.open(self._members(), frozenset(self._runs()))

    def step(self) -> None:
        """Do what there is to do now; raises `QueryError` where the host cannot go on."""
        self._follow()
        self._swap()
        self._prepare()
        self._admit()
        self._succession.step(self._runs())
        self._scaling.step(self._runs())
        self.groups.check(self._members)
        self._asking.step(self._run_asked)
        if time.monotonic() - self._shown_s >= STATUS_EVERY_S:
            self.show()

    def _members(self) -> dict[str, Member]:
        return {flow: self._member(wanted) for flow, wanted in self._wanted.flows.items()}

    def _follow(self) -> None:
        try:
            wanted = self._wanted_file.changed()
            if wanted is not None:
                self._wanted, self._known, self._complaint = wanted, True, ""
        except HostError as error:
            self._complaint = str(error)

    def _run_served(self, flow: str, wanted: WantedFlow) -> int:
        if flow not in self._served:
            self._served[flow] = served_run(Path(wanted.tables))
        return self._served[flow]

    def _run_asked(self, flow: str) -> int | None:
        """The run of a flow that answers questions, None for a flow that is not wanted."""
        wanted = self._wanted.flows.get(flow)
        return None if wanted is None else self._run_served(flow, wanted)

    def _runs(self) -> dict[Key, WantedFlow]:
        """What shall be here: of each flow the run that is served, unless it had finished before, and one
        that is to take its place.
        """
        found: dict[Key, WantedFlow] = {}
        for flow, wanted in self._wanted.flows.items():
            served = self._run_served(flow, wanted)
            if wanted.replays(served):
                found[flow, wanted.run] = wanted
            if wanted.end != "ended" or wanted.run <= served:
                found[flow, served] = wanted
        return found

    def _swap(self) -> None:
        """Serve a run that has caught up with the former one, which leaves then.

        The file that names the run that is served is the one step of it: a host that ends before or after
        goes on from what it says.
        """
        for (flow, run), wanted in self._runs().items():
            served = self._run_served(flow, wanted)
            try:
                if run > served and self.groups.has_caught_up(flow, run, served):
                    serve_run(Path(wanted.tables), run)
                    self._served[flow] = run
            except GeartrainError as error:
                self._failed[flow, run] = _Failed(self._request((flow, run), wanted), str(error))

    def _remove_former(self) -> set[str]:
        """Remove the tables of runs that are not served, not coming and not here any more.

        Returns the flows of which a run is still to leave.
        """
        runs, leaving = self._runs(), set[str]()
        for flow, wanted in self._wanted.flows.items():
            path, served = Path(wanted.tables), self._run_served(flow, wanted)
            for run in runs_with_tables(path) if wanted.run > 1 else ():
                if run == served or (flow, run) in runs:
                    continue
                if self.groups.holds(flow, run):
                    leaving.add(flow)
                else:
                    self._remove(self._tables(wanted), run)
        return leaving

    def _remove(self, tables: AppTables, run: int) -> str:
        """Remove the tables of a run; why that is not done yet, "" where it is."""
        due_s, why = self._removing.get((tables.first, run), (0.0, ""))
        now = time.monotonic()
        if now < due_s:
            return why
        try:
            tables.remove(run)
        except (GeartrainError, OSError) as error:
            _log.warning("the tables of run %d of %s stay: %s", run, tables.first.parent.name, error)
            self._removing[tables.first, run] = now + REMOVE_EVERY_S, str(error)
            return str(error)
        self._removing.pop((tables.first, run), None)
        return ""

    def _revision(self, key: Key) -> int:
        """The revision that a run stands in: a run begins with the first."""
        hosted = self.groups.hosted(key)
        return 1 if hosted is None else hosted.revision

    def _request(self, key: Key, wanted: WantedFlow) -> str:
        return wanted.request_of(self._revision(key))

    def _prepare(self) -> None:
        """Begin with what is wanted and not there, or not as it is wanted."""
        runs = self._runs()
        for key, wanted in runs.items():
            hosted, failed = self.groups.hosted(key), self._failed.get(key)
            request = self._request(key, wanted)
            if hosted is not None and hosted.revision > wanted.revision:
                self._failed[key] = _Failed("", _too_new(key[0], hosted.revision, wanted.revision))
                continue
            is_due = hosted is None or hosted.request != request or self.groups.returns(key)
            if not is_due:
                self._failed.pop(key, None)
            elif key not in self._coming and (failed is None or failed.request != request):
                revision = self._revision(key)
                kept = hosted.code if hosted is not None and hosted.request == request else None
                prepared = self._preparing.begin(key[0], wanted.plan_of(revision), kept)
                self._coming[key] = _Coming(wanted, revision, prepared)
        for key in self._failed.keys() - runs.keys():
            del self._failed[key]

    def _admit(self) -> None:
        """Bring in what is prepared, and take out what is not wanted any more, in one version."""
        ready: list[Admission] = []
        coming: dict[Key, _Coming] = {}
        runs = self._runs()
        for key, one in list(self._coming.items()):
            if not one.prepared.done():
                continue
            del self._coming[key]
            if key not in runs:
                continue
            try:
                prepared, member = one.prepared.result(), self._member(one.wanted)
            except PreparationError as error:
                self._failed[key] = _Failed(one.request, str(error))
            else:
                coming[key] = one
                ready.append(Admission(key[0], one.request, prepared, member, key[1], one.revision))
        self._locked = self._put_out_for(ready)
        ready = [admission for admission in ready if admission.key not in self._locked]
        gone = self.groups.runs() - runs.keys()
        if ready or gone:
            refused = self.groups.publish(ready, gone)
            for key, refusal in refused.items():
                if is_locked(refusal):
                    self._locked[key] = str(refusal)
                else:
                    self._failed[key] = _Failed(coming[key].request, str(refusal))
        for key in self._locked:
            self._coming[key] = coming[key]  # tried again in the next step

    def _put_out_for(self, ready: list[Admission]) -> dict[Key, str]:
        """A flow that runs comes back only after it is out, at the last committed micro-batch.

        A run that begins finds no tables of its own, unless a host ended while it let that run in. Returns
        the runs that have to wait, since such tables cannot be removed, with the reason.
        """
        waiting: dict[Key, str] = {}
        running = [admission.key for admission in ready if self.groups.is_running(admission.key)]
        if running:
            self.groups.put_out(dict.fromkeys(running, "it is brought in anew"))
        for admission in ready:
            is_new = not self.groups.holds(*admission.key)
            if is_new and admission.run > self._served[admission.flow]:
                why = self._remove(admission.member.tables, admission.run)
                waiting |= {admission.key: why} if why else {}
        return waiting

    def show(self) -> None:
        """Write status.json."""
        self._shown_s = time.monotonic()
        leaving = self._remove_former()
        self._clean()
        newest = self._log.newest(self._wanted.flows)
        flows: dict[str, FlowStatus] = {}
        for flow, wanted in self._wanted.flows.items():
            flows[flow] = self._said(flow, wanted, newest.get(flow, {}))
            if flow in leaving and flows[flow].state == "finished":
                flows[flow].state = "running"  # who hears of its end wants it no longer
        self._status.write(self._wanted.serial, flows, self._complaint)

    def _clean(self) -> None:
        """Remove what flows that have left have left behind."""
        is_idle = not self._coming and self._succession.is_idle
        kept = self.groups.kept() if is_idle else None
        if kept is None:
            return
        now, names = time.monotonic(), frozenset(kept)
        if names == self._cleaned[1] and now - self._cleaned[0] < CLEAN_EVERY_S:
            return
        self._cleaned = now, names
        try:
            remove_unused_code(self._places, kept.values())
            for group in self.groups:
                remove_unused_state(self._places.group(group.name), kept.values())
            release_log(self._log.folder, {self.groups.shared.registered_as(one) for one in kept.values()})
        except (OSError, LedgerError) as error:
            _log.warning("what flows have left behind stays until the next look: %s", error)

    def _said(self, flow: str, wanted: WantedFlow, newest: dict[str, int]) -> FlowStatus:
        served = self._run_served(flow, wanted)
        if wanted.replays(served):
            found = self._said_of_replay(flow, wanted, served, newest)
        else:
            found = self._said_of_run((flow, served), newest)
        found.run = served
        if wanted.end == "drain" and found.state in ("running", "starting"):
            if found.stuck:
                found.why = (
                    f"{found.lag:,} entries of the log are in no table, since they stand behind a revision "
                    f"that never came into force: {found.why}"
                )
            if found.stuck or not found.lag:
                found.state = "finished"
        return found

    def _said_of_replay(
        self, flow: str, wanted: WantedFlow, served: int, newest: dict[str, int]
    ) -> FlowStatus:
        """How a flow is whose next run is not served yet: it has an end when that one is, or cannot be."""
        coming = self._said_of_run((flow, wanted.run), newest)
        found = coming if wanted.end == "ended" else self._said_of_run((flow, served), newest)
        why = coming.why or f"it has {coming.lag} entries of the log before it"
        why = f"run {wanted.run} is {coming.state}: {why}"
        found.why = why if found is coming else "; ".join(filter(None, [found.why, why]))
        if found.state == "finished" and coming.state not in ("failed", "out"):
            found.state = "running"
        return found

    def _said_of_run(self, key: Key, newest: dict[str, int]) -> FlowStatus:
        group, failed = self.groups.of(key), self._failed.get(key)
        hosted = None if group is None else group.version.of_flow(*key)
        if group is None or hosted is None:
            waits = FlowStatus("starting", self._locked.get(key, ""))
            return waits if failed is None else FlowStatus("failed", failed.why)
        found = describe(group, self._log, hosted, newest)
        self._succession.say(hosted, found)
        self._scaling.say(hosted, found)
        if found.state == "out" and (key in self._locked or hosted.name in group.returning):
            found.state, found.why = "held", self._locked.get(key, found.why)
        elif found.state in ("out", "running") and key in self._coming:
            found.state, found.why = "starting", ""
        if stopped := self.groups.stopped(key):
            found.state, found.why = "failed", stopped
        if failed is not None and failed.why != found.why:
            found.why = "; ".join(filter(None, [found.why, failed.why]))
        return found

    def _tables(self, wanted: WantedFlow) -> AppTables:
        return AppTables(Path(wanted.tables), self._store)

    def _member(self, wanted: WantedFlow) -> Member:
        return Member(
            *(self._tables(wanted), wanted.letters_percent, wanted.slots, wanted.buckets, wanted.rows_max),
            sends=wanted.end != "ended",
            own=wanted.isolation == "own",
        )

    def close(self) -> None:
        """Stop the queries and let go of all tables."""
        self._preparing.close()
        self.groups.close()
