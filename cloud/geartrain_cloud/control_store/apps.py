"""Apps and their instances: submitted, killed, replayed and updated; and the states that they come to.

Between REST and the reconciler on one side, and what devices are to run on the other. Guarantees: the number
of an instance is never used again. An instance that has ended, or is being killed, does not go back.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from geartrain.fleet.selectors import parse_selector
from geartrain_cloud.control_store.cut_changes import CutChanges
from geartrain_cloud.control_store.database import ControlDatabase, as_text, to_row
from geartrain_cloud.control_store.desired import Desired
from geartrain_cloud.control_store.devices import Devices
from geartrain_cloud.control_store.errors import ConflictError, NotFoundError
from geartrain_cloud.control_store.model import (
    Canary,
    CanaryStage,
    CutChange,
    Instance,
    Mode,
    Options,
    Outline,
    Planned,
    State,
    Submission,
    Wanted,
    merged,
)
from geartrain_cloud.control_store.names import check_app, instance_name
from geartrain_cloud.control_store.reports import Reports
from geartrain_cloud.control_store.revisions import REVISIONS_MAX, Revisions
from geartrain_cloud.control_store.sources import has_cloud_sources, takes_part, with_since
from geartrain_cloud.hosting.wanted import SHARED_STAGES

INSTANCES_MAX = 10_000


def check_is_to_run(instance: Instance) -> None:
    """Raise `ConflictError` for an app whose devices get no other cuts any more."""
    if not instance.is_to_run:
        raise ConflictError(
            f"app {instance.name} is {instance.state}: only an app that is to run gets another cut"
        )


def in_the_way(name: str) -> str:
    """What to say to who would change an app that has a canary."""
    return (
        f"app {name} has a canary: wait until that is over, or end it with gear update {name} --promote or "
        f"gear rollback {name}"
    )


def _as_before(instance: Instance, number: int, now_us: int) -> Planned:
    """What an instance runs, as the revision of another number."""
    outline = replace(instance.outline, crosses=True, follows=0, drain=False, begin="", attached=())
    given = (instance.flow, instance.cut, instance.options, instance.device_options, outline)
    return Planned(instance.instance, number, *given, (), now_us)


class Apps:
    """Those of a platform; `now_us` tells the wall clock, microseconds."""

    def __init__(
        self,
        database: ControlDatabase,
        devices: Devices,
        desired: Desired,
        reports: Reports,
        revisions: Revisions,
        cut_changes: CutChanges,
        now_us: Callable[[], int],
    ) -> None:
        self._database, self._devices, self._desired = database, devices, desired
        self._reports, self._revisions, self._now_us = reports, revisions, now_us
        self._cut_changes = cut_changes

    # Changes

    def submit(self, asked: Submission, outline: Outline) -> Instance:
        """Make the next instance of the app and assign the devices that its selector matches; the platform's
        own, too, where a source is in the cloud.

        Raises `InvalidError`, `SelectorError`, and `ConflictError` where the app runs.
        """
        check_app(asked.name)
        selector, now_us = parse_selector(asked.selector), self._now_us()
        with self._database.change() as database:
            self.check_free(asked.name)
            known = self._database.rows("SELECT numbers FROM apps WHERE name = ?", (asked.name,))
            number = int(known[0][0]) + 1 if known else 1
            instance = instance_name(asked.name, number)
            database.execute("INSERT OR REPLACE INTO apps VALUES (?, ?, ?)", (asked.name, number, instance))
            row = Instance(
                instance,
                asked.name,
                asked.flow,
                asked.cut,
                str(selector),
                asked.options,
                asked.device_options,
                outline,
                Wanted.RUNNING,
                State.SUBMITTED,
                Mode.DRAIN,
                purge=False,
                why="",
                run=1,
                attempt=1,
                submitted_us=now_us,
                changed_us=now_us,
                isolation="own" if outline.shuffles > SHARED_STAGES else asked.isolation,
                made_us=now_us,
                cut_rules=asked.cut_rules,
                retain_s=asked.retain_s,
                retain_bytes=asked.retain_bytes,
                retain_tables_s=asked.retain_tables_s,
            )
            held = to_row(row)
            database.execute(f"INSERT INTO instances VALUES ({', '.join('?' * len(held))})", held)  # noqa: S608
            if has_cloud_sources(outline):
                self._devices.have_cloud()
            taking = [one for one in self._devices.every() if takes_part(outline, selector, one)]
            self._desired.assign(row, taking)
        return self._get(instance)

    def check_free(self, name: str) -> None:
        """Raise `ConflictError` where the app of this name runs, or there is room for no more."""
        known = self._database.rows("SELECT instance FROM apps WHERE name = ?", (name,))
        if not known and self._database.rows("SELECT count(*) FROM apps")[0][0] >= INSTANCES_MAX:
            raise ConflictError(f"the platform has {INSTANCES_MAX:,} apps, which is all that it takes")
        if known:
            former = self.find(known[0][0])
            if former is not None and not former.state.is_over:
                raise ConflictError(
                    f"app {name} is {former.state} as {former.instance}: kill it first, or submit under "
                    "another --name"
                )

    def kill(self, name: str, mode: Mode, *, purge: bool) -> Instance:
        """Note that the app is to end; a second kill may only make it quicker, or purge as well.

        One that has ended may be purged still, and the replay of one that has ended is given up. Raises
        `NotFoundError`, and `ConflictError` where it has ended and is not to be purged.
        """
        with self._database.change() as database:
            instance = self.newest(name)
            self._end_changes(instance)
            if instance.state is State.REPLAYING:
                self.enter(instance.instance, State.ENDED)
                if not purge:
                    return self._get(instance.instance)
            elif instance.state.is_over and not purge:
                raise ConflictError(f"app {name} has ended already, as {instance.instance}")
            if instance.state.has_whole_log:
                self._desired.check_purges(instance.instance)
                database.execute(
                    "UPDATE instances SET wanted = ?, purge = 1, changed_us = ? WHERE instance = ?",
                    (Wanted.KILLED, self._now_us(), instance.instance),
                )
                return self._get(instance.instance)
            if purge:
                self._desired.check_purges(instance.instance)
            if instance.wanted is Wanted.KILLED and instance.mode is Mode.NOW:
                mode = Mode.NOW
            database.execute(
                "UPDATE instances SET wanted = ?, state = ?, mode = ?, purge = ?, changed_us = ?, why = '' "
                "WHERE instance = ?",
                (
                    Wanted.KILLED,
                    State.DRAINING,
                    mode,
                    purge or instance.purge,
                    self._now_us(),
                    instance.instance,
                ),
            )
            if mode is Mode.DRAIN:
                self._desired.drain(instance.instance)
            else:
                self._desired.leave(instance.instance)
        return self._get(instance.instance)

    def enter(self, instance: str, state: State, why: str = "") -> bool:
        """Note a state that the instance has come to; whether that is news. An instance that has ended, or is
        being killed, does not go back.
        """
        with self._database.change() as database:
            found = self.find(instance)
            if found is None or (found.state, found.why) == (state, why) or found.state.is_over:
                return False
            if found.wanted is Wanted.KILLED and state not in (State.DRAINING, State.ENDED):
                return False
            database.execute(
                "UPDATE instances SET state = ?, why = ?, changed_us = ? WHERE instance = ?",
                (state, why, self._now_us(), instance),
            )
            if state is State.ENDED:
                self._end_changes(found)
        return True

    def forget(self, instance: str) -> None:
        """Drop an instance that has ended, with its reports; its number stays used.

        The devices that it was ever given are told to remove what they keep of it, but for those that were
        retired.
        """
        with self._database.change() as database:
            self._desired.purge(instance)
            self._reports.drop(instance)
            self._revisions.drop(instance)
            self._cut_changes.drop(instance)
            self._revisions.canaries.drop(instance)
            database.execute("DELETE FROM instances WHERE instance = ?", (instance,))

    def replay(self, name: str) -> Instance:
        """Begin the app's next run; raises `NotFoundError`, and `ConflictError` where it was killed or sends
        to devices while it runs. One that has ended by itself is run again to its end.
        """
        with self._database.change() as database:
            instance = self.newest(name)
            if instance.wanted is Wanted.KILLED:
                raise ConflictError(f"app {name} is {instance.state}: submit it again instead")
            self._check_whole(instance)
            if instance.outline.down and not instance.state.has_whole_log:
                raise ConflictError(
                    f"app {name} sends to devices, and a replay while it runs would send all of it twice: "
                    "replay it when it has ended, or submit the flow under another name"
                )
            database.execute(
                "UPDATE instances SET run = run + 1, state = ?, why = '', changed_us = ? WHERE instance = ?",
                (
                    State.REPLAYING if instance.state.has_whole_log else instance.state,
                    self._now_us(),
                    instance.instance,
                ),
            )
        return self._get(instance.instance)

    def resume(self, name: str) -> Instance:
        """Have the app go on where the Spark host has put it out, or could not take it up.

        Raises `NotFoundError`, and `ConflictError` where it has not failed.
        """
        with self._database.change() as database:
            instance = self.newest(name)
            if instance.state is not State.FAILED:
                raise ConflictError(f"app {name} is {instance.state}: only one that has failed is resumed")
            database.execute(
                "UPDATE instances SET attempt = attempt + 1, state = ?, why = '', changed_us = ? "
                "WHERE instance = ?",
                (State.STARTING, self._now_us(), instance.instance),
            )
        return self._get(instance.instance)

    def retain(
        self, name: str, age_s: float | None, size: int | None, tables_age_s: float | None = None
    ) -> Instance:
        """Have its rows stay so long in the log, and in tables; None: as before, 0: as long as those of all.

        Raises `NotFoundError`, and `ConflictError` for the log of one that has ended.
        """
        with self._database.change() as database:
            instance = self.newest(name)
            if instance.state.is_over and (age_s, size) != (None, None):
                raise ConflictError(f"app {name} has ended, as {instance.instance}: its log stays as it is")
            kept = (
                instance.retain_s if age_s is None else age_s,
                instance.retain_bytes if size is None else size,
                instance.retain_tables_s if tables_age_s is None else tables_age_s,
            )
            database.execute(
                "UPDATE instances SET retain_s = ?, retain_bytes = ?, retain_tables_s = ? WHERE instance = ?",
                (*kept, instance.instance),
            )
        return self._get(instance.instance)

    def update(self, known: Instance, outline: Outline) -> Instance:
        """Have the app go on with this code, from its state; its devices are told. The outline that it had is
        the former one of `outline` from then on. known: the app as it was when the two were compared.

        Raises `NotFoundError`, and `ConflictError` where the app is another instance or has another revision
        by now, or ends.
        """
        name, instance = known.name, known.instance
        with self._database.change() as database:
            found = self.newest(name)
            if found.instance != instance or not found.is_to_run:
                raise ConflictError(f"app {name} is {found.state}: only an app that is to run is updated")
            self._check_whole(found)
            if found.revision != known.revision:
                raise ConflictError(f"app {name} has had another update meanwhile: look, and ask again")
            held = found.outline
            crossed = {"follows": held.follows, "drain": held.drain, "crosses": held.crosses}
            past = {"begin": held.begin, "attached": held.attached}
            ours = with_since(outline, held, found.revision)
            kept = replace(ours, former=replace(held, former=None), **crossed, **past)
            database.execute(
                "UPDATE instances SET outline = ?, attempt = attempt + 1, state = ?, why = '', "
                "changed_us = ? WHERE instance = ?",
                (as_text(kept), State.STARTING, self._now_us(), instance),
            )
            self._reports.drop(instance)
            self._revisions.canaries.release(instance)
            self._desired.tell_again(instance)
        return self._get(instance)

    def plan(self, name: str, planned: Planned) -> Instance:
        """Have the app go over to another revision, as soon as the host could. It takes the place of one that
        was to come and of which the log was not told.

        Raises `NotFoundError`, and `ConflictError` where the app is another instance by now, does not run, or
        has another revision by now.
        """
        with self._database.change():
            found = self.newest(name)
            self._check_no_canary(found)
            return self._plan(found, planned)

    def _plan(self, found: Instance, planned: Planned) -> Instance:
        """As `plan`, of an app whose canary is not in the way."""
        name = found.name
        with self._database.change():
            is_running = found.wanted is Wanted.RUNNING and found.state is State.RUNNING
            if found.instance != planned.instance or not is_running:
                raise ConflictError(
                    f"app {name} is {found.state}: only one that runs goes over to other steps"
                    + (": gear resume first" if found.state is State.FAILED else "")
                )
            if planned.number != found.revision + 1:
                raise ConflictError(f"app {name} has had another update meanwhile: look, and ask again")
            if planned.number > REVISIONS_MAX:
                raise ConflictError(
                    f"app {name} has had {REVISIONS_MAX:,} revisions, which is all that it can have: "
                    "kill it, and submit the flow"
                )
            waiting = self._cut_changes.of(found.instance)
            if waiting is not None and not planned.outline.follows:
                raise ConflictError(
                    f"app {name} changes what its devices run: wait until that is done, or give it up "
                    "with gear rollback"
                )
            outline = with_since(planned.outline, found.outline, planned.number)
            if has_cloud_sources(outline):
                self._devices.have_cloud()
            self._revisions.plan(replace(planned, outline=outline))
        return found

    def begin_canary(self, known: Instance, canary: Canary) -> Instance:
        """Have the devices of a canary run what it says, as soon as its number is in force. By that number
        the data centre and all other devices stay what they are. known: as for `update`.

        Raises `NotFoundError`, and `ConflictError` as `plan` does.
        """
        with self._database.change():
            found = self.newest(known.name)
            self._check_whole(found)
            held = (known.instance, known.revision, known.outline)
            if (found.instance, found.revision, found.outline) != held:
                raise ConflictError(f"app {known.name} has had another update meanwhile: look, and ask again")
            self._plan(found, _as_before(found, canary.number, self._now_us()))
            outline = with_since(canary.runs.outline, found.outline, canary.number)
            runs = replace(canary.runs, outline=replace(outline, crosses=True))
            if self._revisions.canaries.of(found.instance) is not None:
                self._desired.tell_again(found.instance)  # of the number that its last one has left
            self._revisions.canaries.note(replace(canary, runs=runs))
        return found

    def end_canary(self, name: str, number: int, stage: CanaryStage, why: str) -> int:
        """Have the app go over to what its canary runs, or back to what it ran before: the number by which
        that is to be. number: of the canary. One of which no device was told goes back at once.

        Raises `NotFoundError`, and `ConflictError` where it is over, or no device was told of it.
        """
        with self._database.change():
            found = self.newest(name)
            canary = self._revisions.canary_of(found)
            if canary is None or canary.number != number:
                raise ConflictError(f"the canary of app {name} is over by now: see gear info {name}")
            if canary.stage is stage:
                return number + 1
            if canary.began_us:
                next_us = self._now_us()
                after = _as_before(found, number + 1, next_us)
                if stage is CanaryStage.PROMOTED:
                    after = replace(canary.runs, number=number + 1, made_us=next_us)
                self._plan(found, after)
            elif stage is CanaryStage.PROMOTED:
                raise ConflictError(f"no device runs the canary of app {name} yet: wait until one does")
            else:
                self._give_up(found)
            self._revisions.canaries.decide(found.instance, stage, why)
            return number + 1 if canary.began_us else found.revision

    def cross(self, instance: str) -> None:
        """Let the log be told of the revision that the instance is to go over to: from now on it is the
        instance's own, and its devices are told. Of one that has none, or does not run, nothing changes.
        """
        with self._database.change() as database:
            found = self._get(instance)
            following = self._revisions.next_of(found)
            if following is None or found.wanted is not Wanted.RUNNING or found.state is not State.RUNNING:
                return
            self._revisions.retire(found)
            database.execute(
                "UPDATE instances SET revision = ?, flow = ?, cut = ?, options = ?, device_options = ?, "
                "outline = ?, drops = ?, made_us = ?, changed_us = ? WHERE instance = ?",
                (
                    following.number,
                    following.flow,
                    following.cut,
                    as_text(following.options),
                    as_text(following.device_options),
                    as_text(following.outline),
                    as_text(following.drops),
                    following.made_us,
                    self._now_us(),
                    instance,
                ),
            )
            self._reports.drop(instance)
            came = {source.id for source in following.outline.sources if source.since == following.number}
            if came:
                self._desired.bring_sources(self._get(instance), came, self._devices.every())
            if following.outline.crosses:
                self._cut_changes.note(CutChange(instance, following.number, {}))
            elif (waiting := self._cut_changes.of(instance)) and waiting.number < following.number:
                self._cut_changes.drop(instance)  # of a revision that is passed over
            self._desired.tell_again(instance)

    def give_up(self, name: str, instance: str) -> bool:
        """Give up the revision that the app is to go over to and of which the log was not told; whether there
        was such.
        """
        with self._database.change():
            found = self.newest(name)
            return found.instance == instance and self._give_up(found)

    def _give_up(self, instance: Instance) -> bool:
        """Forget what the instance was to go over to next, and the cuts that devices were to get with it."""
        with self._database.change():
            self._cut_changes.drop(instance.instance, above=instance.revision)
            return self._revisions.give_up(instance)

    def _end_changes(self, instance: Instance) -> None:
        """Give up what the instance was to go over to, and what its canary was to show."""
        with self._database.change():
            self._give_up(instance)
            canary = self._revisions.canary_of(instance)
            if canary is not None and not canary.stage.is_decided:
                why = "the app comes to its end"
                self._revisions.canaries.decide(instance.instance, CanaryStage.BACK, why)

    def recut(self, known: Instance, change: CutChange, planned: Planned | None) -> None:
        """Have devices go on with other cuts: at once, or when the revision `planned`, of which the log is
        told first, is in force. known: the app as it was when the cuts were checked.

        Raises `NotFoundError`, and `ConflictError` where the app is another instance or has another revision
        by now, does not run, or changes already.
        """
        with self._database.change():
            found = self.newest(known.name)
            self._check_whole(found)
            if self._cut_changes.of(found.instance) is not None:
                raise ConflictError(
                    f"app {known.name} changes the cuts of devices already: wait until that is done, see "
                    f"gear info {known.name}"
                )
            if planned is not None:
                self.plan(known.name, planned)
                self._cut_changes.note(change)
                return
            if (found.instance, found.revision) != (known.instance, known.revision):
                raise ConflictError(f"app {known.name} has had an update meanwhile: look, and ask again")
            check_is_to_run(found)
            self._apply(found, change)

    def scale(self, known: Instance, slots: int) -> Instance:
        """Have the keys of the app be dealt over so many slots in the data centre. known: the app as it was
        when that was checked.

        Raises `NotFoundError`, and `ConflictError` where the app is another instance or has another revision
        by now, or ends.
        """
        with self._database.change() as database:
            found = self.newest(known.name)
            self._check_whole(found)
            if (found.instance, found.revision) != (known.instance, known.revision):
                raise ConflictError(f"app {known.name} has had an update meanwhile: look, and ask again")
            if found.wanted is not Wanted.RUNNING or found.state is not State.RUNNING:
                raise ConflictError(f"app {known.name} is {found.state}: only one that runs is scaled")
            database.execute(
                "UPDATE instances SET slots = ?, changed_us = ? WHERE instance = ?",
                (slots, self._now_us(), found.instance),
            )
        return self._get(found.instance)

    def apply_cuts(self, instance: str) -> None:
        """Give devices the cuts for which they wait; the revision that these need is in force."""
        with self._database.change():
            change, found = self._cut_changes.of(instance), self._get(instance)
            if change is not None and found.revision >= change.number:
                self._cut_changes.drop(instance)
                self._revisions.canaries.start(instance, found.revision, self._now_us())
                self._apply(found, change)
                if found.outline.crosses:
                    self._desired.tell_again(instance)

    def _apply(self, instance: Instance, change: CutChange) -> None:
        with self._database.change() as database:
            self._desired.cut(instance.instance, change.cuts)
            named = {rule.devices for rule in change.rules}
            rules = [one for one in instance.cut_rules if one.devices not in named] + list(change.rules)
            database.execute(
                "UPDATE instances SET cut_rules = ?, changed_us = ? WHERE instance = ?",
                (as_text(rules), self._now_us(), instance.instance),
            )

    def _check_no_canary(self, instance: Instance) -> None:
        """Raise `ConflictError` where devices of the instance run something before the others do."""
        if self._revisions.canary_of(instance) is not None:
            raise ConflictError(in_the_way(instance.name))

    def _check_whole(self, instance: Instance) -> None:
        """Raise `ConflictError` where the instance has a canary, or is to go over to another revision."""
        self._check_no_canary(instance)
        following = self._revisions.next_of(instance)
        if following is not None:
            raise ConflictError(
                f"app {instance.name} is to go over to revision {following.number}: wait until that is in "
                "force, or give it up with gear rollback"
            )

    def give_history(self, known: Instance, device: str, options: Options) -> None:
        """Have a device that never had the app begin with these options, by which its history comes first.

        known: as for `update`. Raises `NotFoundError`, and `ConflictError` where that is not so any more.
        """
        with self._database.change() as database:
            found = self.newest(known.name)
            self._check_whole(found)
            is_other = (found.instance, found.device_options) != (known.instance, known.device_options)
            if is_other or self._desired.is_assigned(found.instance, device):
                raise ConflictError(f"app {known.name} or device {device} has changed meanwhile: ask again")
            own = {**found.device_options, device: merged(found.device_options.get(device, {}), options)}
            database.execute(
                "UPDATE instances SET device_options = ?, changed_us = ? WHERE instance = ?",
                (as_text(own), self._now_us(), found.instance),
            )

    # Questions

    def codes(self, *, living: bool) -> set[str]:
        """The signed code of all apps, that of former revisions and before their last updates included;
        living: of those alone that have not ended, and without that before updates.
        """
        every = [one for one in self.every() if not (living and one.state.is_over)]
        outlines = [one.outline for one in every]
        former = () if living else (one.former for one in outlines if one.former)
        found = {one.code for one in (*outlines, *former) if one.bundled}
        return found | self._revisions.codes() | self._revisions.canaries.codes()

    def newest(self, name: str) -> Instance:
        """The app's newest instance; raises `NotFoundError`."""
        question = "SELECT instances.* FROM apps JOIN instances USING (instance) WHERE apps.name = ?"
        found = self._database.read(Instance, question, (name,))
        if not found:
            raise NotFoundError(f"there is no app {name}: see gear list")
        return found[0]

    def _get(self, instance: str) -> Instance:
        """The instance of this name; raises `NotFoundError`."""
        found = self.find(instance)
        if found is None:
            raise NotFoundError(f"there is no instance {instance}: see gear list")
        return found

    def find(self, instance: str) -> Instance | None:
        """The instance of this name, which may have ended; none where there is none."""
        question = "SELECT * FROM instances WHERE instance = ?"
        return next(iter(self._database.read(Instance, question, (instance,))), None)

    def instances(self) -> list[Instance]:
        """All instances that have not ended or are to be purged, by name."""
        question = "SELECT * FROM instances WHERE state != 'ended' OR purge ORDER BY instance"
        return self._database.read(Instance, question)

    def every(self) -> list[Instance]:
        """All instances, those that have ended among them, by name."""
        return self._database.read(Instance, "SELECT * FROM instances ORDER BY instance")

    def page(self, limit: int, after: str, only: str = "") -> tuple[list[Instance], str | None]:
        """The newest instance of each app, by the app's name, from behind `after`; and where to go on. only:
        of this app, "" for all.
        """
        found = self._database.read(
            Instance,
            "SELECT instances.* FROM apps JOIN instances USING (instance) WHERE apps.name > ? "
            "AND (? = '' OR apps.name = ?) ORDER BY apps.name LIMIT ?",
            (after, only, only, limit + 1),
        )
        return found[:limit], found[limit - 1].name if len(found) > limit else None
