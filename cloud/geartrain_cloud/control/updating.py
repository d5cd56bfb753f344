"""Which code an app runs, its exchange by other code of an equal flow, and its way to another revision.

Between REST, the bundles and the control store. Guarantees: code whose flow has the same steps, types,
options and channels takes the place of an app's code at once. Any other flow is the app's next revision. The
app keeps its instance, its log, its tables and the state of each step that fits. Where devices get other
steps, each goes over to them by itself, once that revision is in force. Anything else is refused in one
sentence that names what differs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from msgspec.structs import replace

from geartrain.errors import GeartrainError
from geartrain.fleet.selectors import parse_selector
from geartrain.revision import Change, Revision, differences, in_short, tables_of
from geartrain.revision.change import TableForm
from geartrain_cloud.changes.editing import unasked, unchanged
from geartrain_cloud.control.abilities import check_able
from geartrain_cloud.control.canary import canaries_of, unfit
from geartrain_cloud.control.checking import Answer as Checked
from geartrain_cloud.control.checking import Question, ran_by
from geartrain_cloud.control.crossed import laggards
from geartrain_cloud.control.hosting import HostReport
from geartrain_cloud.control.moving_state import StateSizes
from geartrain_cloud.control.past import PastLog, begin_of
from geartrain_cloud.control.purging import other_sinks
from geartrain_cloud.control.resting import at_end, under_way
from geartrain_cloud.control.spool_policies import SpoolPolicies
from geartrain_cloud.control.trust import Trust
from geartrain_cloud.control_store.apps import in_the_way
from geartrain_cloud.control_store.errors import ConflictError, InvalidError
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.model import (
    Canary,
    CanaryStage,
    Device,
    Instance,
    Options,
    Outline,
    Planned,
)
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import LocalSection
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.requests import (
    PromoteBody,
    RevisionsQuery,
    RollbackBody,
    UpdateBody,
    body_of,
    key_of,
    query_of,
)
from geartrain_cloud.rest.routes import route

HASH_CHARS = 64
NAMED_MAX = 100
"""Devices that an answer names; it counts all."""
_BY_HAND = "a person has said so"
GONE = (
    "source {} has gone from the app, and does not come again: give it another id, or kill the app and "
    "submit the flow"
)
NOTHING_NEW = "from {}: this flow has no step that is new: leave it out"


class Target(msgspec.Struct, frozen=True):
    """What an app is to run: which flow, with which code and options, which of its steps not, and which new
    ones on devices, by a cut; "" for none.
    """

    flow: str
    code: str
    options: Options
    device_options: dict[str, Options]
    without: tuple[str, ...] = ()
    cut: str = ""

    @staticmethod
    def of(one: Instance | Planned) -> Target:
        """What an app runs by one of its revisions."""
        outline = one.outline
        return Target(
            one.flow, outline.code, one.options, one.device_options, outline.without, outline.base or one.cut
        )


class Updates:
    """Those of one platform."""

    def __init__(
        self,
        store: ControlStore,
        load: Callable[[Question], Awaitable[Checked]],
        trust: Trust,
        changed: Callable[[], None],
        host: Callable[[str], HostReport],
        now_us: Callable[[], int],
        has_joined: Callable[[str], bool] | None = None,
        log: Path | None = None,
        policies: SpoolPolicies | None = None,
    ) -> None:
        """`load`: checks a flow in a process of its own; `changed`: called after each change; `host`: what
        the Spark host says of an instance; `now_us`: the wall clock, microseconds; `has_joined`: whether a
        device runs signed bundles alone, None where none does; log: ingest's folder; policies: of the spools
        of devices.
        """
        self._past_log = PastLog(log)
        self.load, self._store, self._trust, self._changed = load, store, trust, changed
        self._host, self._now_us, self._has_joined = host, now_us, has_joined
        self._policies = policies or SpoolPolicies(store, LocalSection())

    def bundle_of(self, revision: str) -> str:
        """The folder of the code that a revision names, "" where no author has signed it."""
        try:
            code = Revision.from_json(revision).code if revision else None
        except GeartrainError:
            return ""  # who loads the flow says what is wrong with it
        return self._trust.folder_of(code.hash) if code is not None and code.files else ""

    def check_replays(self, instance: Instance) -> None:
        """Raises `ConflictError` where a new run of the app could not make its tables again."""
        self._past_log.check_whole(instance)
        ran: list[Instance | Planned] = [*self._store.revisions.in_force_before(instance), instance]
        others = [] if instance.outline.sends else other_sinks(ran)
        if others:
            sink, kind = others[0]
            raise ConflictError(
                f"app {instance.name} cannot be replayed: sink {sink!r} is a {kind}, which has what the "
                "former run wrote: submit the flow under another name"
            )

    def check_waits(
        self, app: str, outline: Outline, devices: Iterable[Device], target: Checked | Target
    ) -> None:
        """Raise `ConflictError` where a device has a source wait that cannot; target: with options."""
        self._policies.check(app, outline, devices, target.options, target.device_options)

    def check_reaches(self, flow: str, outline: Outline, devices: Iterable[str]) -> None:
        """Raise `ConflictError` where one of the devices could not get this code, or not import it."""
        devices = list(devices)
        check_able(self._store, devices)
        if outline.bundled or self._has_joined is None:
            return
        if missing := next((one for one in devices if self._has_joined(one)), None):
            raise ConflictError(
                f"device {missing} runs signed bundles alone, and the code of {flow} is not signed: make "
                "keys with gear key new, and submit it again"
            )

    @route("POST", "/apps/{name}/update", "operator", answers.Updated, statuses=(200, 202), body=UpdateBody)
    async def update(self, request: web.Request) -> Answer:
        """Have an app go on with other code, or as another revision, or say what would change."""
        body, asked = await body_of(request, UpdateBody)
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        if len(body.code) != HASH_CHARS:
            raise InvalidError("code: give the hash of the flow's files")
        instance = self._store.apps.newest(request.match_info["name"])
        if body.flow != instance.flow:
            raise ConflictError(
                f"app {instance.name} runs {instance.flow}, not {body.flow}: submit that under another name"
            )
        begin = begin_of(body.from_)
        target = Target(body.flow, body.code, instance.options, instance.device_options, (), body.cut)
        if body.without:
            if body.code != instance.outline.code:
                raise ConflictError(
                    f"app {instance.name} has had another update meanwhile: look, and ask again"
                )
            left = dict.fromkeys((*instance.outline.without, *body.without))
            target = replace(target, without=tuple(left))
        outline, checked = await self._load(instance, target, body, begin=begin)
        return self._go_over(instance, outline, checked, body, key, asked)

    @route(
        "POST", "/apps/{name}/rollback", "operator", answers.Updated, statuses=(200, 202), body=RollbackBody
    )
    async def rollback(self, request: web.Request) -> Answer:
        """Give up the next revision where the log was not told of it; else go back to the code before, or to
        the revision before. One that cannot come into force is passed over, whatever it would have changed.
        """
        body, asked = await body_of(request, RollbackBody)
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        instance = self._store.apps.newest(request.match_info["name"])
        if (canary := self._store.revisions.canary_of(instance)) is not None:
            return self._end_canary(instance, canary, CanaryStage.BACK, body, (key, asked))
        following = self._store.revisions.next_of(instance)
        if following is not None:
            return self._give_up(instance, following, body, key, asked)
        ran = Target.of(instance)
        before = [Target.of(one) for one in self._store.revisions.in_force_before(instance)]
        others = [one for one in before if replace(one, cut=ran.cut) != ran]  # not by cuts alone
        passed = self._passed(instance)
        if passed is not None:
            target = Target.of(passed)
        elif instance.outline.former is not None:
            former = instance.outline.former
            target = replace(ran, code=former.code, without=former.without)
        elif others:
            target = others[-1]
        else:
            raise ConflictError(f"app {instance.name} was not updated, so there is no code to go back to")
        outline, checked = await self._load(instance, target, body, passes=passed is not None, is_back=True)
        return self._go_over(instance, outline, checked, body, key, asked)

    @route("POST", "/apps/{name}/promote", "operator", answers.Updated, statuses=(200, 202), body=PromoteBody)
    async def promote(self, request: web.Request) -> Answer:
        """Have all devices of an app follow its canary now."""
        body, asked = await body_of(request, PromoteBody)
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        instance = self._store.apps.newest(request.match_info["name"])
        canary = self._store.revisions.canary_of(instance)
        if canary is None:
            raise ConflictError(f"app {instance.name} has no canary: see gear info {instance.name}")
        return self._end_canary(instance, canary, CanaryStage.PROMOTED, body, (key, asked))

    @route("GET", "/apps/{name}/revisions", "viewer", answers.Revisions, query=RevisionsQuery)
    async def revisions(self, request: web.Request) -> Answer:
        """The revisions of an app's newest instance, the newest first."""
        instance = self._store.apps.newest(request.match_info["name"])
        in_force = min(self._host(instance.instance).revision, instance.revision)
        following = self._store.revisions.next_of(instance)
        behind = laggards(self._store, instance)
        ran = {one.number for one in self._store.revisions.in_force_before(instance)}
        items = [
            _item(one, one.number, "former" if one.number in ran else "passed over")
            for one in self._store.revisions.former(instance)
        ]
        items.append(_item(instance, instance.revision, "being logged"))
        items += [] if following is None else [_item(following, following.number, "being prepared")]
        for one in items:
            if one["number"] == in_force:
                one["state"] = "in force"
                one["behind"] = behind[:NAMED_MAX]
                one["behind_count"] = len(behind)
        page = query_of(request, RevisionsQuery)
        items = [one for one in items[::-1] if one["number"] < page.after]
        more = len(items) > page.limit
        return 200, {
            "items": items[: page.limit],
            "next": items[page.limit - 1]["number"] if more else None,
        }

    def _passed(self, instance: Instance) -> Planned | None:
        """What the app runs, where its own revision stands in the log and cannot come into force, so that the
        next one passes over it; else None.
        """
        host = self._host(instance.instance)
        if not host.revision < host.stuck == instance.revision or instance.outline.drain:
            return None  # what was put out for it stands in the tables
        former = self._store.revisions.former(instance)
        return next((one for one in former if one.number == host.revision), None)

    async def _load(
        self,
        instance: Instance,
        target: Target,
        body: UpdateBody | RollbackBody,
        *,
        passes: bool = False,
        is_back: bool = False,
        begin: str = "",
    ) -> tuple[Outline, Checked]:
        """What the flow is, cut as the app that runs; raises `ControlError`. passes: the app goes back over a
        revision that never came into force, which may have the same code; is_back: to what it ran; begin:
        from where new steps read the log.
        """
        bundle = self._trust.folder_of(target.code)
        is_signed_now = bool(bundle) and not instance.outline.bundled
        has_it = (target.code, target.without) == (instance.outline.code, instance.outline.without)
        is_cut_anew = bool(target.cut) and not is_back
        if has_it and not body.drop_state and not is_signed_now and not passes and not is_cut_anew:
            raise ConflictError(f"app {instance.name} runs this code already: {target.code[:12]}")
        former, passed = self._store.revisions.former(instance), self._passed(instance)
        ran = (instance if passed is None else passed).outline
        question = Question(
            target.flow,
            instance.cut,
            target.options,
            target.device_options,
            bundle=bundle,
            running=ran.document,
            drop=tuple(body.drop_state),
            laid=_laid(former),
            base=ran.base,
            cuts=instance.outline.cuts,
            without=target.without,
            sent=tuple(instance.outline.channels),
            wider=target.cut,
            is_back=is_back,
            reads_past=bool(begin),
            gives_up=body.dead_letter_old,
            parts=ran.parts,
        )
        checked = await self.load(question)
        outline = checked.outline
        if outline is None or outline.code != target.code:
            raise ConflictError(
                f"code {target.code[:12]} of {target.flow} is neither signed nor installed on the platform's "
                "machine: make keys with gear key new, or install it there"
            )
        names = self._store.desired.running(instance.instance)
        self.check_reaches(target.flow, outline, names)
        self.check_waits(instance.name, outline, map(self._store.devices.get, names), target)
        return replace(outline, begin=begin), checked

    def _go_over(
        self,
        instance: Instance,
        outline: Outline,
        checked: Checked,
        body: UpdateBody | RollbackBody,
        key: str,
        asked: str,
    ) -> Answer:
        """Exchange the code where the flow is equal; else make this the app's next revision."""
        passed = self._passed(instance)
        was, now = Revision.from_json(instance.outline.document), Revision.from_json(outline.document)
        change = checked.change or Change()
        passes = passed is not None and isinstance(body, RollbackBody)
        canary = self._canary_of(instance, body)
        is_equal = not (passes or differences(replace(was, code=now.code), now) or body.drop_state or canary)
        if passed is not None and not is_equal:
            outline = replace(outline, follows=passed.number)
        if not is_equal:
            drains = isinstance(body, UpdateBody) and body.drain
            new = tuple(one.step for one in change.steps if one.what == "attached") if outline.begin else ()
            outline = replace(outline, drain=drains, crosses=change.crosses, attached=new)
        elif outline.begin and isinstance(body, UpdateBody):
            raise ConflictError(NOTHING_NEW.format(body.from_))
        number = instance.revision + (not is_equal)
        said = {
            "name": instance.name,
            "instance": instance.instance,
            "revision": outline.revision,
            "number": number,
            "code": outline.code,
            "former": instance.outline.code,
            "devices": self._store.desired.running(instance.instance),
            "change": msgspec.to_builtins(change),
            "state": self._state_of(instance, change, was),
        }
        if canary:
            said["canary"] = list(canary)
        refusals = at_end(instance) if is_equal else self._in_the_way(instance, outline, change, (was, now))
        refusals += unfit((instance.outline, outline), (was, now), change) if canary else []
        former = self._store.revisions.in_force_before(instance)
        refusals += self._past_log.lacks(instance, former, outline.begin, checked.past)
        refusals += _not_asked_for(change, body, now)
        if body.dry_run:
            return 200, {**said, "refusals": refusals}
        if refusals:
            raise ConflictError(f"app {instance.name} cannot go over to this flow: {in_short(refusals)}")

        def work() -> Answer:
            if is_equal:
                self._store.apps.update(instance, outline)
            else:
                given = (checked.cut, checked.options, checked.device_options, outline, change.drops)
                planned = Planned(instance.instance, number, now.flow, *given, self._now_us())
                self._plan(instance, planned, body, canary)
            return 202, said

        answer = self._store.answers.once(key, asked, work)
        self._changed()
        return answer

    def _plan(
        self,
        instance: Instance,
        planned: Planned,
        body: UpdateBody | RollbackBody,
        canary: tuple[str, ...],
    ) -> None:
        """Have an app go over to a revision, or the devices of a canary alone."""
        if canary and isinstance(body, UpdateBody):
            asked = (CanaryStage.WAITS, str(parse_selector(body.canary)), canary, body.for_s)
            begun = Canary(planned.instance, planned.number, *asked, 0, {}, "", True, planned)
            self._store.apps.begin_canary(instance, begun)
        else:
            self._store.apps.plan(instance.name, planned)

    def _canary_of(self, instance: Instance, body: UpdateBody | RollbackBody) -> tuple[str, ...]:
        """The devices that are to run an update first, none where all do; raises `ConflictError`."""
        if not isinstance(body, UpdateBody) or not body.canary:
            return ()
        if self._store.revisions.canary_of(instance) is not None:
            raise ConflictError(in_the_way(instance.name))
        if self._store.revisions.next_of(instance) is not None:
            raise ConflictError(
                f"app {instance.name} is to go over to another revision: wait until that is in force"
            )
        return canaries_of(self._store, instance, body.canary)

    def _end_canary(
        self,
        instance: Instance,
        canary: Canary,
        stage: CanaryStage,
        body: PromoteBody | RollbackBody,
        key: tuple[str, str],
    ) -> Answer:
        """Have all devices follow a canary, or the canary go back, by a person's word."""
        ours, its = instance.outline, canary.runs.outline
        after, before = (its, ours) if stage is CanaryStage.PROMOTED else (ours, its)
        said = {
            "name": instance.name,
            "instance": instance.instance,
            "revision": after.revision,
            "number": canary.number + 1 if canary.began_us else instance.revision,
            "code": after.code,
            "former": before.code,
            "devices": self._store.desired.running(instance.instance),
            "change": msgspec.to_builtins(Change()),
            "state": [],
            "canary": list(canary.devices),
        }
        if body.dry_run:
            return 200, {**said, "refusals": []}

        def work() -> Answer:
            self._store.apps.end_canary(instance.name, canary.number, stage, _BY_HAND)
            return 202, said

        answer = self._store.answers.once(*key, work)
        self._changed()
        return answer

    def _state_of(self, instance: Instance, change: Change, was: Revision) -> Any:
        """How much is kept of the steps that change, as an answer."""
        sizes = StateSizes(self._store, instance.instance, self._host(instance.instance))
        running = self._store.desired.running(instance.instance)
        return msgspec.to_builtins(sizes.changed(change, {one.id: one.tier for one in was.steps}, running))

    def _in_the_way(
        self, instance: Instance, outline: Outline, change: Change, revisions: tuple[Revision, Revision]
    ) -> list[str]:
        """What keeps an app from another revision now, a sentence each."""
        found = list(change.refusals)
        found += [GONE.format(one.id) for one in outline.sources if one.id in instance.outline.gone]
        found += under_way(instance, self._host(instance.instance), passes=bool(outline.follows))
        if not (outline.bundled and instance.outline.bundled):
            which = "that it runs" if outline.bundled else "of this flow"
            found.append(
                f"the code {which} is not signed, and a log rests on the code of each of its revisions: "
                "make keys with gear key new, and submit or update it from there"
            )
        return found + (self._held_back(instance, outline, change, revisions) if outline.crosses else [])

    def _held_back(
        self, instance: Instance, outline: Outline, change: Change, revisions: tuple[Revision, Revision]
    ) -> list[str]:
        """Why devices cannot go over to other steps now, a sentence each."""
        found, (was, now) = list[str](), revisions
        behind = laggards(self._store, instance)
        if behind and (moved := self._moved_under(instance, outline, now)):
            found.append(
                f"devices have not gone over to revision {instance.revision} ({in_short(behind)}), and run "
                f"steps that would be in the data centre ({in_short(moved)}): wait until they have, or "
                "retire them"
            )
        on_devices = {step.id for step in was.steps if step.tier == "edge"}
        if outline.drain and (held := sorted(on_devices & set(change.drops))):
            found.append(
                f"--drain: what steps hold on devices is not put out ({in_short(held)}): leave it out, and "
                "it is dropped"
            )
        return found

    def _moved_under(self, instance: Instance, outline: Outline, now: Revision) -> list[str]:
        """The steps that devices run by a former revision, and that this one has in the data centre: it would
        make again what such a device sends.
        """
        there = {step.id for step in now.steps if step.kind != "key_by"}
        formers = [one.outline for one in self._store.revisions.in_force_before(instance)]
        if (canary := self._store.revisions.canaries.of(instance.instance)) is not None:
            formers.append(canary.runs.outline)
        ran = [ran_by(Revision.from_json(one.document), one.base) for one in formers if one.document]
        return sorted(frozenset[str]().union(*ran) & there - ran_by(now, outline.base))

    def _give_up(
        self, instance: Instance, following: Planned, body: RollbackBody, key: str, asked: str
    ) -> Answer:
        """Leave the app as it is, in place of the revision that it was to go over to."""
        said = {
            "name": instance.name,
            "instance": instance.instance,
            "revision": instance.outline.revision,
            "number": instance.revision,
            "code": instance.outline.code,
            "former": following.outline.code,
            "devices": self._store.desired.running(instance.instance),
            "change": msgspec.to_builtins(Change()),
            "state": [],
            "given_up": following.number,
        }
        if body.dry_run:
            return 200, {**said, "refusals": []}

        def work() -> Answer:
            if not self._store.apps.give_up(instance.name, instance.instance):
                raise ConflictError(
                    f"revision {following.number} of app {instance.name} is being logged by now: wait until "
                    "it is in force, and go back then"
                )
            return 202, said

        answer = self._store.answers.once(key, asked, work)
        self._changed()
        return answer


def _not_asked_for(change: Change, body: UpdateBody | RollbackBody, now: Revision) -> list[str]:
    """In what a change is another than who asks has said, a sentence each; now: to what it goes."""
    if isinstance(body, RollbackBody):
        return []
    there = {step.id for step in now.steps}
    return [
        *unasked(change, body.only, body.steps),
        *unchanged(change, body.only, body.steps, there),
    ]


def _laid(former: Iterable[Planned]) -> dict[str, TableForm]:
    """The tables of former revisions, each as it was written last."""
    found: dict[str, TableForm] = {}
    for one in former:
        found |= tables_of(Revision.from_json(one.outline.document))
    return found


def _item(one: Instance | Planned, number: int, state: str) -> dict[str, Any]:
    """A revision, as a list has it."""
    return {
        "number": number,
        "made_us": one.made_us,
        "flow": one.flow,
        "revision": one.outline.revision,
        "code": one.outline.code,
        "code_before": one.outline.former.code if one.outline.former else "",
        "bundled": one.outline.bundled,
        "drops": list(one.drops),
        "without": list(one.outline.without),
        "state": state,
    }
