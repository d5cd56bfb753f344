"""A group of flows: one streaming query, its checkpoint, and the tables of each flow.

It stands around a group's micro-batches: it publishes versions of the plan, watches the query, and puts a
flow out that harms the others. Used from one thread.

Guarantees: flows come and go without a restart of the query. A flow whose code ends its worker, hangs or
raises is named and put out. Its state stays at the last committed micro-batch, and that micro-batch is run
again without it. No other flow loses a row by that.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace
from pyspark.sql import SparkSession

from geartrain.adapters.files import make_private_folder, whole_files, write_private
from geartrain.declarations.sink import Table
from geartrain.errors import GeartrainError, LedgerError
from geartrain.printable import printable
from geartrain_cloud.hosting.admission import Admission, Key, Member, is_locked
from geartrain_cloud.hosting.crossing import boundary, check_successor, dropped_state, has_written, stands_at
from geartrain_cloud.hosting.durable import Committed, DurableCheckpoint
from geartrain_cloud.hosting.errors import HostError, OtherProgramError, ParkedError
from geartrain_cloud.hosting.flow_store import BUSY_S, RETRY_S, FlowStore
from geartrain_cloud.hosting.group_file import note_stages, open_group
from geartrain_cloud.hosting.group_query import GroupQuery
from geartrain_cloud.hosting.mending import begun_anew, cut_back, damage_of, forget_aside, set_aside, staying
from geartrain_cloud.hosting.offsets import PLAN, count_name, generation_name, positions_by_name
from geartrain_cloud.hosting.outbox import down_places, outbox_of
from geartrain_cloud.hosting.past import beginning, check_log, first_in_past, in_past, next_in_past
from geartrain_cloud.hosting.places import GroupPlaces, HostPlaces
from geartrain_cloud.hosting.prepared import Prepared, read_prepared
from geartrain_cloud.hosting.program import program
from geartrain_cloud.hosting.questions import QuestionFolder
from geartrain_cloud.hosting.sizes import SizesFile
from geartrain_cloud.hosting.steering import Out, Steering, SteeringFile
from geartrain_cloud.hosting.unread import UnreadRows, unread_since
from geartrain_cloud.hosting.versions import (
    FIRST,
    ROWS_MAX,
    Hosted,
    Version,
    Versions,
    dealt_anew,
    new_labels,
)
from geartrain_cloud.hosting.wanted import SHARED_STAGES
from geartrain_cloud.hosting.watch import STRIKES, Watch
from geartrain_cloud.hosting.writer import HostWriter
from geartrain_cloud.log.queries import Registration
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.opening import is_anew, open_places
from geartrain_cloud.sinks.secrets import SinkSecrets
from geartrain_cloud.spark.compile import HOSTED
from geartrain_cloud.spark.errors import QueryError
from geartrain_cloud.spark.whole import numbers

_log = logging.getLogger("host")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """stages: those behind a shuffle, of a new group; hang_s: how long a flow's code may take for one pack of
    rows, with `CALL_S` more for each row, before it counts as hung; retry_s: between two attempts to write
    what is parked; rows_max: of each key of a flow in one micro-batch at the most, where nobody says less.
    """

    stages: int = SHARED_STAGES
    hang_s: float = 4.0
    retry_s: float = RETRY_S
    rows_max: int = ROWS_MAX


class Group:
    """One group; `open` it, `start` it, and call `check` again and again."""

    def __init__(
        self,
        session: SparkSession,
        name: str,
        host: Path,
        places: GroupPlaces,
        log: Path,
        settings: GroupSettings | None = None,
    ) -> None:
        """host: the host's folder; log: ingest's. A checkpoint that is not whole is mended.

        Raises `RefusedError` where that cannot be, `GeartrainError` and `OSError`.
        """
        self.name, self._places = name, places
        self._settings = settings or GroupSettings()
        self._log = LogReader(log)
        make_private_folder(places.folder)
        partitions = int(str(session.conf.get("spark.sql.shuffle.partitions")))
        self.made, self._checkpoint = open_group(places, name, self._settings.stages, partitions)
        self._versions = Versions(places.versions)
        newest = self._versions.newest()
        if newest is None:
            newest = Version(FIRST)
            self._versions.publish(newest)
        self.version = newest
        """The newest version of its plan."""
        self._steering_file = SteeringFile(places.steering)
        said = self._steering_file.read()
        self._steering = Steering(out=dict(said.out), stops=dict(said.stops))
        self._saving = threading.Lock()
        self._stores: dict[str, FlowStore] = {}
        self._registrations: dict[str, Registration] = {}
        self._watch = Watch(places, self._settings.hang_s)
        answers = QuestionFolder(HostPlaces(host).questions)
        self.unread = UnreadRows(self._log)
        sizes = SizesFile(places.sizes)
        self.writer = HostWriter(
            self._checkpoint, self._log, self._versions.read, self._stores.get, answers, sizes
        )
        self.query = GroupQuery(session, name, self.made, self._checkpoint, host, places, log)
        self._durable = DurableCheckpoint(places.folder)
        self._lost_at: int | None = None
        """The last micro-batch that was committed when Spark could not load the state after it."""
        self._mend()

    # The flows

    @property
    def out(self) -> Mapping[str, Out]:
        """Those that were put out, by generation."""
        return self._steering.out

    @property
    def returning(self) -> set[str]:
        """Generations that are out and come back. Their tables were locked, another version of the program
        had prepared them, or rows that are parked could not be read.
        """
        return {name for name, one in self._steering.out.items() if one.returns}

    @property
    def is_empty(self) -> bool:
        """Whether it has no flow, and none is leaving."""
        return not self.version.flows and not self._leaving()

    def kept(self) -> dict[str, Hosted] | None:
        """The generations that a micro-batch may still run, by name; None while one of them leaves.

        Raises `HostError`.
        """
        if self._leaving():
            return None
        return {name: one for version in self._versions.all() for name, one in version.flows.items()}

    def registered_as(self, hosted: Hosted) -> str:
        """The name under which the log is kept for a generation."""
        return self._registration(hosted).name

    def committed(self) -> dict[str, int]:
        """The offsets at the end of the last micro-batch that Spark has committed; empty for none."""
        found = numbers(self._checkpoint.location / "commits")
        return self._checkpoint.positions(found[-1]) if found else {}

    def open(self, members: Mapping[str, Member]) -> None:
        """Open the tables of the flows that it has; one whose tables cannot be opened is put out.

        members: by instance; one that has gone from them is kept until it is removed.
        """
        offsets = self.committed()
        for hosted in self._present(offsets).values():
            suspect = self._places.suspect(hosted.name)
            if (
                suspect.exists() and hosted.name not in self._steering.out
            ):  # the host ended while it put it out
                self._registrations[hosted.name] = self._registration(hosted)
                self._note_out(hosted, suspect.read_text(encoding="utf-8"), offsets)
            elif hosted.name in self._steering.out:
                self._registrations[hosted.name] = self._registration(hosted)
            elif self._is_last(hosted):
                self._open_or_put_out(hosted, members.get(hosted.flow), offsets)
        self._save_steering()
        self._forget_suspects()
        self._set_budgets(members)

    def _is_last(self, hosted: Hosted) -> bool:
        """Whether no later generation has its tables: that comes in after a generation that has read all."""
        later = self.version.of_flow(hosted.flow, hosted.run)
        return later is None or later.generation <= hosted.generation

    def _set_budgets(self, members: Mapping[str, Member]) -> None:
        """What is wanted, or the configuration, may have changed since the flows came."""
        flows = dict(self.version.flows)
        for name, hosted in flows.items():
            if (member := members.get(hosted.flow)) is not None:
                flows[name] = replace(hosted, rows_max=member.rows_max or self._settings.rows_max)
        self._publish(self.version.slots, flows)

    def _publish(self, slots: int, flows: dict[str, Hosted]) -> None:
        if flows != self.version.flows:
            version = Version(self.version.number + 1, slots, flows)
            self._versions.publish(version)
            self.version = version

    def _open_or_put_out(self, hosted: Hosted, member: Member | None, offsets: Mapping[str, int]) -> None:
        try:
            if member is None:
                raise HostError(f"flow {hosted.flow} is not wanted any more")
            self._open_store(hosted, member, offsets)
        except GeartrainError as error:
            returns = is_locked(error) or isinstance(error, OtherProgramError | ParkedError)
            self._note_out(hosted, str(error), offsets, returns=returns)

    def _forget_suspects(self) -> None:
        """They are out now, durably."""
        folder = self._places.suspects
        for path in folder.iterdir() if folder.is_dir() else ():
            path.unlink(missing_ok=True)

    def _registration(self, hosted: Hosted) -> Registration:
        identity = hosted.identity[12:] if hosted.past else hosted.identity  # what it reads is kept apart
        return Registration(self._log.folder, HOSTED, identity, hosted.flow)

    def _present(self, offsets: Mapping[str, int]) -> dict[str, Hosted]:
        """The generations that the next micro-batch may have: of the version under way, and the newest."""
        found = dict(self._versions.read(offsets[PLAN]).flows) if offsets else {}
        return found | self.version.flows

    def _open_store(self, hosted: Hosted, member: Member, offsets: Mapping[str, int]) -> None:
        self._registrations[hosted.name] = self._registration(hosted)
        if not member.tables.first.is_absolute():
            raise HostError(
                f"flow {hosted.flow}: its tables are to be in {member.tables.first}: name an SQLite file by "
                "its whole path, and the platform's PostgreSQL in [tables] store of platform.toml"
            )
        prepared = read_prepared(self._places.plans, hosted.plan, hosted.code)
        if prepared.program != program():
            raise OtherProgramError(
                f"flow {hosted.flow}: another version of Geartrain, Python or Spark has prepared it than "
                "runs here, and it is prepared again"
            )
        places = [sink.place() for sink in prepared.sinks] + down_places(prepared)
        outbox = outbox_of(
            *(self._log, hosted, prepared, member.tables.first.with_name("outbox.sqlite"), BUSY_S),
            sends=member.sends,
        )
        own = member.tables.open(hosted.flow, hosted.run, BUSY_S)
        folder = member.tables.files(hosted.run)
        begins = hosted.revision > 1 and not has_written(hosted, own)
        held = SinkSecrets(self._places.secrets / (hosted.flow.rpartition(".")[0] or hosted.flow))
        tables = open_places(hosted.flow, places, own, folder, outbox, evolving=begins, secrets=held)
        try:
            if begins:  # what cannot be evolved is refused before the first micro-batch
                tables.planned([place.layout for place in places])
            has_run = offsets.get(count_name(hosted.name), hosted.begin_count) >= 0
            tables.attach(HOSTED, hosted.identity, has_run=has_run)
            self._stores[hosted.name] = FlowStore(
                hosted.name,
                tables,
                self._places.flow(hosted.name),
                member.letters_percent,
                self._save_steering,
                parked=self._places.parked(hosted.flow, hosted.run),
                retry_s=self._settings.retry_s,
            )
            self._note_stops(hosted, offsets)
        except BaseException:
            (self._stores.pop(hosted.name, None) or tables).close()
            raise
        self._registrations[hosted.name].register(hosted.keys)

    def publish(self, add: Iterable[Admission], remove: Iterable[str] = ()) -> dict[Key, GeartrainError]:
        """Have the next micro-batches run under a new version: with these flows, without the generations
        `remove`. Each takes the place of an earlier generation of its run, which is out.

        Returns why flows could not be added.
        """
        flows, slots = dict(self.version.flows), self.version.slots
        refused: dict[Key, GeartrainError] = {}
        for name in remove:
            flows.pop(name, None)
        for admission in add:
            earlier, hosted = self.version.of_flow(admission.flow, admission.run), None
            try:
                hosted = self._admitted(admission, earlier, slots)
                self._open_store(hosted, admission.member, {})
            except GeartrainError as error:
                refused[admission.key] = error
                if hosted is not None and earlier is None and hosted.run > 1:
                    with suppress(LedgerError):  # it goes with what flows have left behind
                        self._registrations.pop(hosted.name).unregister()
                continue
            if earlier is None:
                slots += len(hosted.labels)
            else:
                flows.pop(earlier.name, None)
            flows[hosted.name] = hosted
        if flows != self.version.flows:  # they begin and end where Spark stands
            self._durable.sync()
        self._publish(slots, flows)
        return refused

    def check_crossing(self, admission: Admission) -> None:
        """Raise a `GeartrainError` where a flow that runs here could not go over to a revision."""
        earlier = self.version.of_flow(*admission.key)
        if earlier is None or earlier.past:
            return
        self._check_stages(admission, self.made.stages or SHARED_STAGES)
        self._dropped(admission, earlier)
        if (store := self._stores.get(earlier.name)) is not None:
            store.check([sink.place().layout for sink in admission.prepared.sinks])

    def _dropped(self, admission: Admission, earlier: Hosted) -> dict[int, tuple[str, ...]]:
        old = read_prepared(self._places.plans, earlier.plan, earlier.code)
        check_successor(admission.flow, old, admission.prepared)
        return dropped_state(admission.flow, old, admission.prepared, admission.drops)

    def cross(self, admission: Admission) -> bool:
        """Have a flow that runs go over to its next revision, in the next micro-batch; whether it runs that.

        False until all of the log before it is in the tables, and all that steps are to put out, and what new
        steps make of the log of before. False, too, until the query has stages for it. Where this raises, a
        `GeartrainError`, the flow stays where it is, before the first entry of the next revision; it is out
        where its tables cannot be opened again.
        """
        earlier = self.version.of_flow(*admission.key)
        store = None if earlier is None else self._stores.get(earlier.name)
        if earlier is None or store is None or store.held or earlier.leaves_for:
            return False
        if earlier.past:
            return self._go_on_in_past(admission, earlier, store)
        places, offsets = boundary(self._log, earlier, admission.revision), self.committed()
        positions = positions_by_name(offsets).get(earlier.name, {})
        if places is None or not (stands_at(positions, places) and stands_at(store.positions(), places)):
            return False
        drops = self._dropped(admission, earlier)
        steps = tuple(step for several in drops.values() for step in several)
        if admission.drain and not self._has_drained(earlier, steps, offsets[count_name(earlier.name)]):
            return False
        if admission.prepared.stages > self.made.stages:
            if not any(one.past for one in self.version.flows.values()):  # what these have read would be lost
                self._add_stages()
            return False
        hosted = replace(
            self._succeeding(self._new(admission, ()), earlier),
            begin=places,
            begin_count=offsets[count_name(earlier.name)],
            drops=drops,
            forms=read_prepared(self._places.plans, earlier.plan, earlier.code).forms,
            unread=unread_since(earlier, admission.prepared.channels, places),
        )
        said = admission.prepared.past
        begin = {}
        if said is not None:
            begin = beginning(self._log, hosted.flow, said.begin, said.sources, places)
        hosted = first_in_past(hosted, said, begin)
        if hosted.past:  # kept first, so that nothing of it goes meanwhile
            self._registration(hosted).register(hosted.keys)
            check_log(self._log, hosted)
        self._hand_over(earlier, hosted, admission.member, offsets)
        return not hosted.past

    def _go_on_in_past(self, admission: Admission, earlier: Hosted, store: FlowStore) -> bool:
        """As `cross`, of a flow whose new steps read the log of before."""
        offsets, said = self.committed(), admission.prepared.past
        positions = positions_by_name(offsets).get(earlier.name, {})
        count = offsets.get(count_name(earlier.name), earlier.begin_count)
        if said is None or not positions or not stands_at(positions, earlier.upto) or store.count() < count:
            return False
        hosted = self._succeeding(self._new(admission, ()), earlier)
        hosted = replace(
            hosted, begin_count=count, drops=earlier.drops, forms=earlier.forms, unread=earlier.unread
        )
        hosted = next_in_past(hosted, said, earlier)
        self._hand_over(earlier, hosted, admission.member, offsets)
        return not hosted.past

    def _hand_over(
        self, earlier: Hosted, hosted: Hosted, member: Member, offsets: Mapping[str, int], slots: int = 0
    ) -> None:
        """Have `hosted` go on in the place of `earlier`, which runs; slots: how many are new.

        Where it begins must be durable before the version that says so.
        """
        self._durable.sync()
        self._stores.pop(earlier.name).close()
        try:
            self._open_store(hosted, member, {})
        except GeartrainError:
            self._open_or_put_out(earlier, member, offsets)
            self._save_steering()
            raise
        self._registrations.pop(earlier.name)
        self.unread.forget(earlier.name)
        flows = {name: one for name, one in self.version.flows.items() if name != earlier.name}
        self._publish(self.version.slots + slots, flows | {hosted.name: hosted})

    def scale(self, key: Key, slots: int, member: Member, broadcasts: tuple[str, ...] = ()) -> bool:
        """Have the keys of a flow that runs be dealt over `slots` slots, in two micro-batches more; whether
        that is done. broadcasts: its steps whose table every slot has whole.

        In the first one the flow reads nothing and its slots write what they keep; in the second one new
        slots take that, and it reads on. Where this raises, a `GeartrainError`, it is out: its tables cannot
        be opened again.
        """
        earlier = self.version.of_flow(*key)
        store = None if earlier is None else self._stores.get(earlier.name)
        if earlier is None or store is None or earlier.name in self.out or not earlier.stages:
            return False
        offsets = self.committed()
        count = offsets.get(count_name(earlier.name), earlier.begin_count)
        if not earlier.leaves_for:
            if len(earlier.labels) == slots:
                return True
            repeats = self.behind(earlier.name, count) or (earlier.stop and count == earlier.begin_count)
            if not earlier.drains and not repeats:
                leaving = replace(earlier, leaves_for=slots, broadcasts=broadcasts)
                self._publish(self.version.slots, self.version.flows | {earlier.name: leaving})
            return False
        under = self._versions.read(offsets[PLAN]).flows.get(earlier.name) if offsets else None
        positions = positions_by_name(offsets).get(earlier.name, {})
        if under is None or not under.leaves_for or store.held or not stands_at(store.positions(), positions):
            return False
        hosted = dealt_anew(
            earlier,
            positions,
            count,
            new_labels(self.version.slots, earlier.leaves_for, self.made.partitions),
        )
        self._hand_over(earlier, hosted, member, offsets, len(hosted.labels))
        return len(hosted.labels) == slots

    def _has_drained(self, hosted: Hosted, steps: tuple[str, ...], count: int) -> bool:
        """Whether the steps have put out what they hold; the next micro-batch has them do that, if none did.

        count: of the generation's own micro-batches that Spark has committed.
        """
        if steps and not hosted.drains:
            flows = self.version.flows | {hosted.name: replace(hosted, drains=steps, drain_count=count)}
            self._publish(self.version.slots, flows)
            return False
        return not hosted.drains_after(count) and self._stores[hosted.name].count() >= count

    def _note_stops(self, hosted: Hosted, offsets: Mapping[str, int]) -> None:
        """Have what its tables hold, and Spark has not committed, be made again up to where they stand.

        Spark may have planned that micro-batch, or have lost its plan. Raises `TableError` and `OSError`.
        """
        count = offsets.get(count_name(hosted.name), hosted.begin_count)
        stops = tuple(stop for stop in self._stores[hosted.name].stops() if stop.count > count)
        if stops != self._steering.stops.get(hosted.name, ()):
            with self._saving:
                self._steering.stops[hosted.name] = stops
            self._save_steering()

    def behind(self, name: str, count: int) -> dict[str, int]:
        """Up to where a generation makes again what its tables hold; empty where it does not.

        count: of its micro-batches that Spark has committed.
        """
        stops = self._steering.stops.get(name, ())
        return dict(stops[-1].positions) if stops and stops[-1].count > count else {}

    def _admitted(self, admission: Admission, earlier: Hosted | None, slots: int) -> Hosted:
        self._check_stages(admission, self.made.stages)
        member = admission.member
        if earlier is None:
            hosted = self._new(admission, new_labels(slots, member.slots, self.made.partitions))
            if hosted.run > 1:
                self._check_replay(hosted, admission.prepared, sends=member.sends)
            return hosted
        out = self._steering.out.get(earlier.name)
        if out is None:
            raise HostError(f"flow {admission.flow} runs already: put it out first")
        if out.is_lost:
            raise HostError(out.why)
        hosted = self._succeeding(self._new(admission, ()), earlier)
        if earlier.past and admission.prepared.past is not None:
            ends = earlier.upto, earlier.resumes
            hosted = in_past(hosted, admission.prepared.past, earlier.past, earlier.begin, *ends)
            hosted = replace(hosted, drops=earlier.drops)
        drains = {"drains": earlier.drains, "drain_count": earlier.drain_count}
        return replace(hosted, begin=out.positions, begin_count=out.count, stop=out.stop, **drains)

    def _check_stages(self, admission: Admission, most: int) -> None:
        if admission.prepared.stages > most:
            anew = "submit it under another name, whose query has as many"
            if admission.revision == 1:
                anew = "gear replay begins it anew, in a query that has as many"
            raise HostError(
                f"flow {admission.flow} has {admission.prepared.stages} shuffles one after another now, and "
                f"its query was made for {most}: {anew}"
            )

    def _new(self, admission: Admission, labels: tuple[int, ...]) -> Hosted:
        """The first generation of a run."""
        prepared, member = admission.prepared, admission.member
        return Hosted(
            admission.flow,
            1,
            prepared.plan,
            admission.request,
            prepared.code,
            prepared.stages,
            labels,
            member.buckets,
            tuple(self._log.keys()),
            prepared.channels,
            prepared.sources,
            secrets.token_hex(16),
            rows_max=member.rows_max or self._settings.rows_max,
            run=admission.run,
            revision=admission.revision,
        )

    def _succeeding(self, hosted: Hosted, earlier: Hosted) -> Hosted:
        """The generation that goes on with the state and the tables of `earlier`."""
        return replace(
            hosted,
            generation=earlier.generation + 1,
            labels=earlier.labels,
            buckets=earlier.buckets,
            identity=earlier.identity,
        )

    def _check_replay(self, hosted: Hosted, prepared: Prepared, *, sends: bool) -> None:
        """Whether a run can begin at the log's beginning; raises `HostError`.

        The log is kept for it first, so that nothing of it goes meanwhile.
        """
        what = f"run {hosted.run} of {hosted.flow} cannot begin"
        if prepared.dealt and sends:
            raise HostError(
                f"{what}: what step {prepared.dealt[0].id!r} has sent to devices would be sent twice: replay "
                "the app when it has ended"
            )
        sinks = (sink for sink in prepared.sinks if sink.kind != Table.__name__)
        other = next((sink for sink in sinks if not is_anew(sink.place().sink)), None)
        if other is not None:
            raise HostError(
                f"{what}: sink {other.id!r} is a {other.kind}, which already has what the former run wrote: "
                "submit the app anew under another name"
            )
        registration = self._registration(hosted)
        registration.register(hosted.keys)
        if self._log.removed(hosted.flow):
            registration.unregister()
            raise HostError(
                f"{what}: retention has removed the beginning of its log: keep the log for longer with "
                "[log] retain_s or retain_bytes before you count on a replay"
            )

    def holds(self, flow: str, run: int) -> bool:
        """Whether a generation of this run is here, or has not quite left."""
        before = generation_name(flow, 0, run).removesuffix("0")
        return any(
            name.startswith(before) and name.removeprefix(before).isdecimal()
            for name in (*self.version.flows, *self._stores)
        )

    def reached(self, flow: str, run: int) -> Mapping[str, int] | None:
        """Where the tables of a run stand; None for one that is out, not here, or has new steps that read the
        log of before. Raises `TableError`.
        """
        hosted = self.version.of_flow(flow, run)
        if (
            hosted is None
            or hosted.past
            or hosted.name in self.out
            or (store := self._stores.get(hosted.name)) is None
        ):
            return None
        return store.positions()

    def stand(self, flow: str, run: int) -> Mapping[str, int] | None:
        """As `reached`; of one that is out, where it went."""
        hosted = self.version.of_flow(flow, run)
        out = None if hosted is None else self.out.get(hosted.name)
        return self.reached(flow, run) if out is None else out.stop or out.positions

    def dropped(self, name: str) -> dict[str, int]:
        """By step, how many keys' state went when a generation came in."""
        found = Counter[str]()
        for path in whole_files(self._places.dropped(name)):
            found.update(msgspec.json.decode(path.read_bytes(), type=dict[str, int]))
        return dict(found)

    def store(self, name: str) -> FlowStore | None:
        """The tables of a generation."""
        return self._stores.get(name)

    def _save_steering(self) -> None:
        """Called from the threads of stores as well."""
        with self._saving:
            self._steering.held = {
                name: store.held for name, store in list(self._stores.items()) if store.held
            }
            self._steering_file.save(self._steering)

    # The checkpoint

    def _mend(self) -> None:
        """Have a checkpoint that Spark can go on from; raises `GeartrainError` and `OSError`."""
        damage = damage_of(self._checkpoint, self._versions, stages=self.made.stages)
        if damage is not None and damage.whole is None:
            self._begin_anew(damage.where)
        elif damage is not None and damage.whole is not None:
            _log.warning(
                "group %s: its checkpoint is not whole, %s: it goes on from micro-batch %d",
                *(self.name, printable(damage.where), damage.whole),
            )
            cut_back(self._checkpoint, damage.whole)
            offsets = self.committed()
            flows = staying(self.version, self._versions.read(offsets[PLAN]))
            self._publish(self.version.slots, flows)
            self._stand_back(offsets)

    def _stand_back(self, offsets: Mapping[str, int]) -> None:
        """Have all generations stand where a checkpoint stands that was cut back, whatever they held."""
        positions, present = positions_by_name(offsets), self._present(offsets)
        with self._saving:
            for name, out in self._steering.out.items():
                if name in positions and not out.is_lost:
                    count = offsets[count_name(name)]
                    self._steering.out[name] = replace(out, positions=positions[name], count=count)
        self._save_steering()
        for name in self._stores.keys() & present.keys():  # others are leaving
            self._note_stops(present[name], offsets)

    def _begin_anew(self, where: str) -> None:
        """Have flows make their state again from the log; where: what was lost."""
        _log.warning(
            "group %s: its checkpoint is lost, %s: flows make their state again from the log",
            *(self.name, printable(where)),
        )
        self._empty_checkpoint()

    def _empty_checkpoint(self) -> None:
        """Have an empty checkpoint, in which flows make their state again; one that cannot is out."""
        set_aside(self._checkpoint)
        flows = dict(self.version.flows)
        for name, hosted in self.version.flows.items():
            registration, out = self._registration(hosted), self._steering.out.get(name)
            places = registration.positions()
            if hosted.stages:
                registration.unregister()  # or it stays where it has come to
                registration.register(hosted.keys)
            try:
                flows[name] = again = begun_anew(hosted, self._log, places)
            except HostError as error:
                self._note_lost(hosted, str(error), places)
            else:
                begin = {key: again.begin_at(key) for key in again.keys}
                if out is not None:
                    with self._saving:
                        self._steering.out[name] = replace(out, positions=begin, count=again.begin_count)
        self._save_steering()
        self.version = Version(self.version.number + 1, self.version.slots, flows)
        self._versions.publish(self.version)
        self._versions.forget_before(self.version.number)
        self._stand_back({})

    def _add_stages(self) -> None:
        """Have the query of flows without a shuffle begin anew as one with shuffles, where all stand.

        Spark adds no state to a query that had none. Raises what `start` does, `GeartrainError`, `OSError`.
        """
        self.query.stop()
        self._durable.sync()
        for name, positions in positions_by_name(self.committed()).items():
            if name in self._stores:
                self._registrations[name].commit(positions)
        self.made = self.query.made = note_stages(self._places, self.made, SHARED_STAGES)
        self._empty_checkpoint()
        self.start()

    def _note_lost(self, hosted: Hosted, why: str, places: dict[str, int]) -> None:
        """Its state cannot be made again."""
        _log.warning("%s", printable(why))
        store = self._stores.pop(hosted.name, None)
        stop = {} if store is None or hosted.past else store.stand()
        if store is not None:
            store.close()
        with self._saving:
            self._steering.out[hosted.name] = Out(why, places, hosted.begin_count, stop, is_lost=True)

    def _start_again(self) -> None:
        """Start the query after it has failed. Where Spark could not load the state, the checkpoint is mended
        first, and begins anew where that did not help; raises `QueryError` where that did not help either.
        """
        if self.query.has_lost_state:
            why, newest = self.query.why(self.writer), self._newest_commit()
            if newest != self._lost_at:
                self._mend()
                self._lost_at = self._newest_commit()
            elif newest >= 0:
                self._begin_anew(why)
            else:
                raise QueryError(
                    f"group {self.name}: Spark cannot load state that was just made again from the log "
                    f"({why}): look whether the disk below {self._places.folder} is sound and has room, or "
                    "bring the platform back from a backup with gear restore"
                )
        self.query.start_again(self.writer)

    def _newest_commit(self) -> int:
        found = numbers(self._checkpoint.location / "commits")
        return found[-1] if found else -1

    def _forget_stops(self, offsets: Mapping[str, int]) -> None:
        """Forget up to where tables stood, once flows have come to it, and then what was set aside."""
        reached = [
            name
            for name, stops in self._steering.stops.items()
            if not stops or offsets.get(count_name(name), -1) >= stops[-1].count
        ]
        if reached:
            with self._saving:
                for name in reached:
                    del self._steering.stops[name]
            self._save_steering()
        if not self._steering.stops and not any(out.is_lost for out in self._steering.out.values()):
            forget_aside(self._checkpoint)

    # The query

    def start(self) -> None:
        """Start the query; raises Spark's errors and `QueryError`."""
        self.query.start(self.writer)

    def check(self) -> None:
        """Put out what harms the group, start its query again where it failed, and let go of what has left.

        Raises `QueryError` where the query cannot go on.
        """
        if not self.query.is_started:
            return
        self._watch.look(self.writer.last.batch_id)
        guilty = self._watch.guilty(STRIKES if self.query.is_active else 1)
        if guilty:
            self.put_out(guilty)
        elif not self.query.is_active:
            self._start_again()
        self._sweep()

    def put_out(self, why: Mapping[str, str]) -> None:
        """Put generations out, by name with the reason, and run the micro-batch under way without them."""
        present = self._present(self.committed())
        for name, reason in why.items():
            write_private(self._places.suspect(name), reason)
        self._watch.kill(why)
        self.query.stop()
        offsets = self.committed()
        for name, reason in why.items():
            if name in present:
                _log.warning("flow %s is put out: %s", present[name].flow, printable(reason))
                self._note_out(present[name], reason, offsets)
        self._save_steering()
        self._forget_suspects()
        self._watch.forget()
        self.start()

    def _note_out(
        self, hosted: Hosted, why: str, offsets: Mapping[str, int], *, returns: bool = False
    ) -> None:
        """Its state stays where the last committed micro-batch ended, whatever its tables hold."""
        begin = {key: hosted.begin_at(key) for key in hosted.keys}
        positions = positions_by_name(offsets).get(hosted.name, begin)
        count = offsets.get(count_name(hosted.name), hosted.begin_count)
        store = self._stores.pop(hosted.name, None)
        stop: dict[str, int] = {}
        if store is not None:
            if store.count() > count and not hosted.past:
                stop = store.stand()
            store.close()
        if hosted.past:  # its tables do not say where the micro-batch under way ends
            stop = self._under_way(hosted, count)
        with self._saving:
            self._steering.out[hosted.name] = Out(why, positions, count, stop, returns)

    def _under_way(self, hosted: Hosted, count: int) -> dict[str, int]:
        """Where the micro-batch ends that comes after its number `count`, if Spark has begun with it."""
        found = numbers(self._checkpoint.location / "offsets")
        offsets = self._checkpoint.positions(found[-1]) if found else {}
        if offsets.get(count_name(hosted.name), count) <= count:
            return {}
        return positions_by_name(offsets).get(hosted.name, {})

    def _sweep(self) -> None:
        """Let go of the log, of the tables of flows that have left, and of versions of long ago: of what no
        micro-batch needs from which Spark could go on after a loss of power.
        """
        durable = self._durable.take()
        if durable is not None:
            self._release(durable)
        last = self.writer.last
        gone = tuple(self._leaving()) if last.offsets.get(PLAN, 0) >= self.version.number else ()
        if self._durable.is_due(last.batch_id, soon=bool(gone)) and (offsets := self.committed()):
            self._durable.begin(last.batch_id, Committed(offsets, gone))

    def _release(self, durable: Committed) -> None:
        for name, positions in positions_by_name(durable.offsets).items():
            if name in self._stores:  # the log stays for one that is out
                self._registrations[name].commit(positions)
        for name in set(durable.gone).intersection(self._leaving()):
            self._let_go(name)
        self._versions.forget_before(durable.offsets[PLAN])
        self._forget_stops(durable.offsets)

    def _leaving(self) -> list[str]:
        flows = self.version.flows
        return [name for name in (*self._stores, *self._steering.out) if name not in flows]

    def _let_go(self, name: str) -> None:
        store = self._stores.pop(name, None)
        if store is not None:
            store.close()
        registration = self._registrations.pop(name, None)
        if registration is not None and registration.name not in self._names_registered():
            registration.unregister()
        with self._saving:
            was_told = self._steering.out.pop(name, None) is not None
            was_told |= self._steering.stops.pop(name, None) is not None
        if was_told:
            self._save_steering()

    def _names_registered(self) -> set[str]:
        """Those of the generations of the newest version; generations of one run share one."""
        return {self._registration(hosted).name for hosted in self.version.flows.values()}

    def close(self) -> None:
        """Stop the query and let go of all tables."""
        self.query.close()
        self._durable.close()
        for store in self._stores.values():
            store.close()
        self._stores.clear()
