"""The groups of a host: those that flows share, and one for each run of a flow that has a query to itself.

Flows without a shuffle share a direct group, whose micro-batches take a fraction of the time. Where a
revision brings the first shuffle, the direct group gets stages, and flows that come have another one. One
group takes what comes with a shuffle. Where a purge has begun it, those before it keep what they have until
it leaves. Groups that take nothing any more go as a whole when they are empty.

Between the host and its groups: it finds each flow's group, makes groups and removes them. Used from one
thread.

Guarantees: what goes wrong with one group stops no query of another. A group that cannot go on is tried again
now and then, and its flows say why. Which group has a flow is known from the groups' own files, so a flow
stays where its state is. Of a group that is removed, nothing is left.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as with_changes
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from geartrain.errors import GeartrainError
from geartrain.printable import printable
from geartrain_cloud.hosting.admission import Admission, Key, Member
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.group import Group, GroupSettings
from geartrain_cloud.hosting.places import DIRECT, HostPlaces
from geartrain_cloud.hosting.versions import Hosted, Versions
from geartrain_cloud.log.queries import Registration
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.spark.compile import HOSTED
from geartrain_cloud.spark.error_texts import root_cause
from geartrain_cloud.spark.errors import QueryError

OWN_MAX = 15
"""Runs that may have a query of their own at a time: each costs a process and threads of Spark's."""
BEGIN_S = 30.0
"""So long the start of a query is waited for at most, before the next one is started."""
TRY_AGAIN_S = 60.0
"""Between two attempts to go on with a group that could not."""

_OWN = "own-"
_GONE = ".gone-"

_log = logging.getLogger("host")


@dataclass(frozen=True, slots=True)
class _Stopped:
    """Why a group does not go on, and since when, monotonic seconds."""

    why: str
    at: float


def own_group(key: Key) -> str:
    """The name of the group that is one run's alone."""
    flow, run = key
    return f"{_OWN}{flow}" if run == 1 else f"{_OWN}{flow}~{run}"


def _key_of(name: str) -> Key:
    flow, _, run = name.removeprefix(_OWN).partition("~")
    return flow, int(run or 1)


class Groups:
    """All groups of one host; `open` them, and call `check` again and again."""

    def __init__(
        self, session: SparkSession, places: HostPlaces, log: Path, settings: GroupSettings | None = None
    ) -> None:
        """log: ingest's folder. Raises `RefusedError` where it cannot be told what the shared group is."""
        self._session, self._places, self._log = session, places, LogReader(log)
        self._settings = settings or GroupSettings()
        *former, newest = places.shared()
        self.shared = self._group(newest, self._settings.stages)
        """The one that takes flows that come with a shuffle."""
        self._former = [self._group(name, self._settings.stages) for name in former]
        """Those that take nothing any more."""
        self._former += [self._group(name, 0) for name in places.direct()]
        self._direct: Group | None = None
        """The one that takes flows that come without a shuffle; made with the first of them."""
        if self._former and not self._former[-1].made.stages:
            self._direct = self._former.pop()
        self._own: dict[Key, Group] = {}
        self._stopped: dict[str, _Stopped] = {}
        self._due: list[Group] = []
        self._begun: tuple[Group, float] = (self.shared, 0.0)

    def _group(self, name: str, stages: int) -> Group:
        settings = with_changes(self._settings, stages=stages)
        places = self._places.group(name)
        return Group(self._session, name, self._places.folder, places, self._log.folder, settings)

    def __iter__(self) -> Iterator[Group]:
        return iter([*self._sharing(), *self._own.values()])

    def _sharing(self) -> list[Group]:
        return [self.shared, *self._former, *([self._direct] if self._direct else [])]

    def _own_names(self) -> list[str]:
        folder = self._places.groups
        return sorted(path.name for path in folder.iterdir() if path.name.startswith(_OWN))

    @property
    def has_flows(self) -> bool:
        """Whether any group has a flow, or had one when the host ended."""
        return any(group.version.flows for group in self._sharing()) or bool(self._own_names())

    def open(self, members: Mapping[str, Member], wanted: frozenset[Key]) -> None:
        """Open the tables of the flows that they have, and start their queries.

        members: by instance; wanted: the runs that shall be here. Raises Spark's errors, and those of
        `Group.open` for the shared groups.
        """
        for path in self._places.groups.glob(f"{_GONE}*"):
            shutil.rmtree(path, ignore_errors=True)  # the host ended while it removed it
        self.shared.open(members)
        self.shared.start()
        self._begun = self.shared, time.monotonic()
        for group in self._sharing()[1:]:
            group.open(members)
            if group.is_empty:
                self._remove_former(group)
            else:
                self._due.append(group)
        for name in self._own_names():
            if _key_of(name) in wanted:
                self._try_to_open(name, members)
            else:
                self._remove(name)

    def _try_to_open(self, name: str, members: Mapping[str, Member]) -> None:
        group = None
        try:
            group = self._group(name, self._settings.stages)
            group.open(members)
        except (GeartrainError, OSError, PySparkException) as error:
            if group is not None:
                group.close()
            self._note_stopped(name, error)
        else:
            self._own[_key_of(name)] = group
            self._stopped.pop(name, None)
            self._due.append(group)

    def _stop(self, group: Group, error: Exception) -> None:
        """Let a group rest that cannot go on."""
        self._note_stopped(group.name, error)
        with suppress(PySparkException):
            group.query.stop()

    def _note_stopped(self, name: str, error: Exception) -> None:
        why = root_cause(str(error)) if isinstance(error, PySparkException) else str(error)
        why = printable(" ".join(why.split()))
        _log.warning("group %s does not go on: %s", name, why)
        self._stopped[name] = _Stopped(why, time.monotonic())

    # The flows

    def of(self, key: Key) -> Group | None:
        """The group that has this run, or to which it belongs alone."""
        return next((one for one in self if one.version.of_flow(*key) is not None), self._own.get(key))

    def hosted(self, key: Key) -> Hosted | None:
        """The generation of a run that is here."""
        group = self.of(key)
        return None if group is None else group.version.of_flow(*key)

    def is_running(self, key: Key) -> bool:
        """Whether a generation of this run is here, and not out."""
        group, hosted = self.of(key), self.hosted(key)
        return group is not None and hosted is not None and hosted.name not in group.out

    def returns(self, key: Key) -> bool:
        """Whether a run is out and comes back by itself, since nothing is wrong with the flow."""
        group, hosted = self.of(key), self.hosted(key)
        return group is not None and hosted is not None and hosted.name in group.returning

    def runs(self) -> set[Key]:
        """Those that are here, or in a group that does not go on."""
        here = {(one.flow, one.run) for group in self._sharing() for one in group.version.flows.values()}
        stopped = {_key_of(name) for name in self._stopped if name.startswith(_OWN)}
        return here | self._own.keys() | stopped

    def kept(self) -> dict[str, Hosted] | None:
        """The generations that a micro-batch of any group may still run, by name; None while one leaves.

        Raises `HostError`.
        """
        found: dict[str, Hosted] = {}
        for group in self:
            kept = group.kept()
            if kept is None:
                return None
            found |= kept
        for name in set(self._own_names()) - {group.name for group in self}:  # those that cannot be opened
            versions = Versions(self._places.group(name).versions).all()
            found |= {name: one for version in versions for name, one in version.flows.items()}
        return found

    def stopped(self, key: Key) -> str:
        """Why the group of a run does not go on, empty where it does."""
        group = self.of(key)
        found = self._stopped.get(own_group(key) if group is None else group.name)
        return "" if found is None else found.why

    def check_crossing(self, admission: Admission) -> None:
        """Raise a `GeartrainError` where a run could not go over to a revision."""
        group = self.of(admission.key)
        if group is not None:
            group.check_crossing(admission)

    def cross(self, admission: Admission) -> bool:
        """As `Group.cross`."""
        group = self.of(admission.key)
        return group is not None and not self.stopped(admission.key) and group.cross(admission)

    def scale(self, key: Key, slots: int, member: Member, broadcasts: tuple[str, ...] = ()) -> bool:
        """As `Group.scale`."""
        group = self.of(key)
        return group is not None and not self.stopped(key) and group.scale(key, slots, member, broadcasts)

    def holds(self, flow: str, run: int) -> bool:
        """Whether a generation of this run is here, or has not quite left."""
        return (flow, run) in self.runs() or any(group.holds(flow, run) for group in self)

    def has_caught_up(self, flow: str, run: int, former: int) -> bool:
        """Whether the tables of `run` hold the log as far as those of `former`, all of it where that one is
        not here; raises `GeartrainError`.
        """
        new, old = self.of((flow, run)), self.of((flow, former))
        if new is None or self.stopped((flow, run)):
            return False
        goal = None if old is None else old.stand(flow, former)
        if goal is None:
            goal = self._log.positions(flow)
        reached = new.reached(flow, run)  # asked after the other, which goes on meanwhile
        return reached is not None and all(reached.get(key, 0) >= place for key, place in goal.items())

    def publish(self, add: list[Admission], remove: set[Key]) -> dict[Key, GeartrainError]:
        """Bring runs in, each into its group, and take others out.

        Returns why runs could not be brought in.
        """
        refused: dict[Key, GeartrainError] = {}
        sharing: dict[str, list[Admission]] = {}
        for admission in add:
            try:
                if self._has_own(admission):
                    self._publish_own(admission)
                else:
                    group = self.of(admission.key) or self._taking(admission)
                    sharing.setdefault(group.name, []).append(admission)
            except GeartrainError as error:
                refused[admission.key] = error
            except (OSError, PySparkException) as error:
                refused[admission.key] = HostError(f"flow {admission.flow}: {root_cause(str(error))}")
        for group in self._sharing():
            gone = {one.name for one in group.version.flows.values() if (one.flow, one.run) in remove}
            if group.name in sharing or gone:
                refused |= group.publish(sharing.get(group.name, []), gone)
        for name in map(own_group, remove):
            if _key_of(name) in self._own or name in self._stopped:
                self._remove(name)
        return refused

    def _taking(self, admission: Admission) -> Group:
        """The group that takes a run which comes and shares a query."""
        if admission.prepared.stages:
            return self.shared
        if self._direct is not None and self._direct.made.stages:
            self._former.append(self._direct)
            self._direct = None
        if self._direct is None:
            self._direct = self._group(self._places.next_name(DIRECT), 0)
            self._due.append(self._direct)
        return self._direct

    def _has_own(self, admission: Admission) -> bool:
        if any(group.version.of_flow(*admission.key) is not None for group in self._sharing()):
            return False
        asked = admission.member.own or admission.prepared.stages > self.shared.made.stages
        return asked or admission.key in self.runs()

    def _publish_own(self, admission: Admission) -> None:
        name, group = own_group(admission.key), self._own.get(admission.key)
        if group is None and name in self._stopped:
            raise HostError(f"the query of flow {admission.flow} does not go on: {self._stopped[name].why}")
        is_new = group is None
        if group is None:
            if len(self._own_names()) + len(self._former) >= OWN_MAX:
                raise HostError(
                    f"flow {admission.flow} is to have a query of its own, and {OWN_MAX} runs have one, all "
                    "that a host takes: kill one of them, or submit it with --isolation shared"
                )
            stages = admission.prepared.stages
            group = self._group(name, stages and max(stages, self._settings.stages))
        try:
            refused = group.publish([admission])
            if refused:
                raise refused[admission.key]
        except BaseException:
            if is_new:
                group.close()
                self._remove(name)
            raise
        self._own[admission.key] = group
        if is_new:
            self._due.append(group)

    def _start(self, group: Group) -> None:
        try:
            group.start()
        except (GeartrainError, OSError, PySparkException) as error:
            self._stop(group, error)
        else:
            self._stopped.pop(group.name, None)

    def put_out(self, why: Mapping[Key, str]) -> None:
        """Put runs out, each in its group."""
        for group in self:
            found = {key: group.version.of_flow(*key) for key in why}
            names = {one.name: why[key] for key, one in found.items() if one is not None}
            if not names:
                continue
            try:
                group.put_out(names)
            except (GeartrainError, OSError, PySparkException) as error:
                self._stop(group, error)
            else:
                self._stopped.pop(group.name, None)

    def _remove(self, name: str) -> None:
        """Take away a group that is one run's alone: its query, its state, and what the log is kept for."""
        group = self._own.get(_key_of(name))
        try:
            if group is not None:
                group.close()
        except PySparkException as error:  # it is tried again in the next step
            _log.warning("group %s cannot be removed yet: %s", name, root_cause(str(error)))
            return
        self._own.pop(_key_of(name), None)
        self._stopped.pop(name, None)
        self._due = [one for one in self._due if one.name != name]
        self._let_log_go(name)
        self._remove_files(name)

    def _let_log_go(self, name: str) -> None:
        places = self._places.group(name)
        try:
            newest = Versions(places.versions).newest()
            for hosted in newest.flows.values() if newest is not None else ():
                Registration(self._log.folder, HOSTED, hosted.identity, hosted.flow).unregister()
        except GeartrainError as error:
            _log.warning("group %s: the log is kept for it on: %s", name, error)

    def _remove_former(self, group: Group) -> None:
        """Take away a group that flows shared, that takes nothing any more and that no flow has."""
        try:
            group.close()
        except PySparkException as error:  # it is tried again in the next step
            _log.warning("group %s cannot be removed yet: %s", group.name, root_cause(str(error)))
            return
        if group is self._direct:
            self._direct = None
        else:
            self._former.remove(group)
        self._stopped.pop(group.name, None)
        self._due = [one for one in self._due if one is not group]
        self._remove_files(group.name)

    def _remove_files(self, name: str) -> None:
        places = self._places.group(name)
        gone = places.folder.with_name(f"{_GONE}{os.urandom(6).hex()}")
        if places.folder.exists():
            places.folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    # The queries

    def check(self, members: Callable[[], Mapping[str, Member]]) -> None:
        """Look after each group; members: as for `open`. Raises `QueryError` where none goes on."""
        for name, stopped in list(self._stopped.items()):
            if time.monotonic() - stopped.at >= TRY_AGAIN_S:
                self._try_again(name, members())
        self._start_next()
        for group in list(self):
            if group.name not in self._stopped and not self._is_to_wait(group):
                try:
                    was_active = group.query.is_active
                    group.check()
                    if not was_active and group.query.is_active:
                        self._begun = group, time.monotonic()
                except (GeartrainError, OSError, PySparkException) as error:
                    self._stop(group, error)
        for group in list(self._former):
            if group.is_empty or (group.name in self._stopped and not group.version.flows):
                self._remove_former(group)
        others = len(self._own_names()) + len(self._sharing()) - 1
        if self.shared.name in self._stopped and len(self._stopped) > others:
            raise QueryError(self._stopped[self.shared.name].why)

    def _try_again(self, name: str, members: Mapping[str, Member]) -> None:
        group = next((one for one in self if one.name == name), None)
        if group is None:
            self._try_to_open(name, members)
            return
        group.query.restarts.clear()
        self._start(group)

    def _start_next(self) -> None:
        """Start a query that is due, one after another.

        Spark gives each Python process 10 s to start, which many of them at once would not keep to.
        """
        if self._due and not self._is_to_wait(self._due[0]):
            self._begun = self._due.pop(0), time.monotonic()
            self._start(self._begun[0])

    def _is_to_wait(self, group: Group) -> bool:
        """Whether a group whose query does not run waits until that of another one has begun."""
        other, began = self._begun
        is_begun = other is group or not other.query.is_beginning or time.monotonic() - began >= BEGIN_S
        return not is_begun and not group.query.is_active

    def close(self) -> None:
        """Stop all queries and let go of all tables."""
        for group in self:
            group.close()
