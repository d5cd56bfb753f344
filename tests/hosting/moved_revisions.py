"""A hosted flow that goes through revisions while its devices go from cut to cut, each in its own time.

The real source, stages and versions run without Spark. Devices answer to what comes down to them. They go
over to a revision some time after the data centre, as agents do, and to other cuts meanwhile: with what their
steps have kept. Moves begin only under the revision that the log has brought last. The next one may come
before the log has a claim or the cells that leave a device, or while one waits for what it has claimed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from geartrain.errors import GeartrainError
from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, LATE, STATE
from geartrain.planning import Plan, choose_cut, make_plan
from geartrain.planning.mixed import claimable, make_mixed_plan
from geartrain.records.batch import Batch
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.revision import Change, Revision, change_of, revision_of
from geartrain.runtime.moving import Moves
from geartrain.state.claims import ASKS, HAS, Taking
from geartrain.state.moving import Cells, StateCell, said_of
from geartrain_cloud.control.canary import unfit
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.ports import LedgerChange
from geartrain_edge.agent.crossing import NUMBERS, REVISION, Numbers, forgotten, migrated
from tests.hosting.test_claimed_state import Claiming, LiveLog
from tests.reference.comparison import check_equal, drawn_cuts
from tests.reference.moved_revisions import (
    NEVER,
    Asked,
    Boundaries,
    GoneOver,
    Part,
    Place,
    Retired,
    Stands,
    interpret_moved,
)
from tests.reference.revised_flows import Revised, Stage, revised, with_canary
from tests.reference.rows import Letter
from tests.reference.two_tiers import Device, Sent, Splits, World, coming
from tests.spark.case_log import Logged

REVISIONS, DEVICES, CUTS_MAX, CUTS_DRAWN = 3, 3, 5, 60
MOVES_MAX = 6
"""Of one device."""
_GOES_OVER, _MOVES = 0.25, 0.2
"""How likely a device does so before a read, once it may."""
_COMES, _COMES_AMID = 0.1, 0.6
"""How likely a partition brings the next revision, rather than what a device sends; the latter while one of
its devices waits.
"""
_DOOMED, _RETIRED, _RETIRED_AMID = 0.25, 0.01, 0.3
"""How likely a device is to be retired at all, and then before any of what the log gets; amid a move."""
_IS_CANARY, _TRIES, _AHEAD = 0.6, 0.8, 0.1
"""Of flows that have a canary: how likely a device is one of it, and then goes over to what that runs, and
back; devices go on before the data centre has what the log has brought.
"""
_COMES_SOON, _COMES_UNTRIED = 0.3, 0.01
"""There, how likely a partition brings the canary, or what is before it; the way back while none has gone."""
FLOW = "random:flow"
Edge = frozenset[str]


@dataclass
class Standing(Sent):
    """Nothing that is sent: from this place in the log on, a device stands so; left: the steps that went."""

    stands: Stands = field(default_factory=lambda: Stands(frozenset()))
    left: Collection[str] = ()


@dataclass(frozen=True)
class Versions:
    """What devices may run, by revision: the plans of its cuts, and their documents; drops: the newest
    revision by which each step has lost what it kept; claims: the steps that may be claimed; canary: which of
    them some devices alone run, 0 for none: the next one is that before it.
    """

    plans: Sequence[Mapping[Edge, Plan]]
    documents: Sequence[Mapping[Edge, str]]
    drops: Sequence[Mapping[str, int]]
    claims: Sequence[Collection[str]]
    canary: int


class Follower(Device):
    """A device that follows the revisions of its app."""

    def __init__(self, versions: Versions, first: Edge, log: MovedLog, partition: int, *args: Any) -> None:
        super().__init__(versions.plans[0][first], *args)
        self._versions, self._log, self._partition, self._moves = versions, log, partition, MOVES_MAX
        self.gone_over: list[GoneOver] = []
        self._ahead: dict[str, int] = {}
        self._wanted, self._asked = self._plan, Asked(frozenset())
        self.moved = Counter[str]()
        self.is_canary = False

    @property
    def stands(self) -> Stands:
        """As it stands now, with no claim open."""
        return Stands(self._plan.cut.edge, None, dict(self._ahead), len(self.gone_over))

    def _change(self, waiting: list[Plan], how_likely: float) -> Iterator[list[Sent]]:
        due = self._log.in_force
        due -= due == self._versions.canary and not self.is_canary
        goes = _TRIES if self._versions.canary in (self.revision, due) else _GOES_OVER
        if self.revision < due and self._rng.random() < goes:
            self._follow(due)
        is_told = self._log.in_force == self._log.brought[self._partition]
        may = self._moves and self.revision == due and is_told
        if not may or self._rng.random() >= _MOVES:
            return
        plans = self._versions.plans[self.revision - 1]
        wanted = plans[self._rng.choice(list(plans))]
        known = self._versions.claims[self.revision - 1]
        if wanted is self._plan or any(step not in known for step in coming(self._plan, wanted)):
            return
        self._moves -= 1
        before = self._plan
        self._wanted, self._asked = wanted, Asked(frozenset())
        yield from self._cross(wanted)
        if self._plan is not before:
            self._note_move(before, wanted)
        yield self._sent  # before it reads on

    def _note_move(self, before: Plan, wanted: Plan) -> None:
        moves = Moves.of(wanted.graph, before.cut.edge, wanted.cut.edge)
        self._note_ahead(moves.up)
        self.moved.update(f"up {wanted.graph[step].operator.kind}" for step in moves.up)
        self.moved.update(f"down {wanted.graph[step].operator.kind}" for step in moves.down)
        self._asked.kept = True
        left = before.cut.edge - wanted.cut.edge
        self.gone_over.append(GoneOver(self.revision, self._positions(), dict(self._marks), left))
        self._sent.append(Standing(stands=self.stands, left=left))

    def _note_ahead(self, steps: Collection[str]) -> None:
        above = self._plan.graph.sources_above()
        for step in steps:
            self._ahead[step] = min(self._marks.get(source, START_OF_TIME) for source in above[step])

    def _claim(self, steps: Sequence[str], says: str) -> None:
        super()._claim(steps, says)
        if says == ASKS:
            after = self._wanted.cut.edge
            self._asked = Asked(after, self._plan.cut.edge - after)
            self._note_ahead(steps)
            self._sent.append(Standing(stands=replace(self.stands, asked=self._asked)))

    def _forget(self, steps: Sequence[str]) -> None:
        super()._forget(steps)
        self._sent.append(Standing(stands=self.stands))

    def _refuses(self, taking: Taking, steps: Collection[str]) -> bool:
        return super()._refuses(taking, steps) or self._has_other_code(steps)

    def _has_other_code(self, steps: Collection[str]) -> bool:
        """Whether the log has brought other code of steps that would come, or of what reads them here. A real
        device takes them, and runs the code that it has; the reference would go on with the later one.
        """
        edge, graph = self._wanted.cut.edge, self._wanted.graph
        below = {step for step in edge if not graph.ancestors(step).isdisjoint(steps)}
        behind = self._versions.documents[self.revision - 1 : self._log.brought[self._partition]]
        forms = [
            {one.id: one for one in Revision.from_json(several[edge]).steps if one.id in below}
            for several in behind
        ]
        return any(one != forms[0] for one in forms)

    def _follow(self, revision: int) -> None:
        """Go over to a revision, under the cut that it has, by what an agent does with its spool."""
        edge, before = self._plan.cut.edge, self.revision
        plan: Plan = self._versions.plans[revision - 1][edge]
        settings: Any = SimpleNamespace(revision=revision, drops=self._versions.drops[revision - 1])
        said = {
            REVISION: self._versions.documents[before - 1][edge].encode(),
            **Numbers(revision=before).stored(),
        }

        def made(cells: Cells) -> Cells:
            state: Any = {**cells, **said}
            for at in forgotten(state, plan, settings, is_fresh=False):
                del state[at]
            for at, cell in migrated(state, plan, settings, is_fresh=False).items():
                if cell is None:
                    del state[at]
                else:
                    state[at] = cell
            return {at: cell for at, cell in state.items() if at not in (REVISION, NUMBERS)}

        self._node.become(plan, made)
        self.gone_over.append(GoneOver(revision, self._positions(), dict(self._marks)))
        self._plan, self.revision = plan, revision
        self._sent.append(Standing(stands=self.stands))

    def retired(self, stands: Stands, lost: Collection[tuple[str, bytes]]) -> Retired:
        """What is gone with it where the log has it stand so, and hears no more of it; lost: the cells that
        have left it and never come.
        """
        del self.gone_over[stands.done :]
        self.taking = None
        return Retired(stands.edge, dict(self._marks), frozenset(lost))

    def splits(self) -> Splits:
        """Its splits as far as it has read them."""
        found: dict[str, dict[str, Sequence[Any]]] = {}
        for tracker, items in self._readers:
            found.setdefault(tracker.step, {})[tracker.name] = items[: tracker.progress.position]
        return found

    def _positions(self) -> dict[tuple[str, str], int]:
        return {(t.step, t.name): t.progress.position for t, _ in self._readers}


class MovedLog(LiveLog):
    """The log of such devices; each partition brings the next revision where chance has it."""

    loses_spools = True
    turns = (1, 3, 9)

    def __init__(
        self, folder: Path, flow: Revised, rng: random.Random, versions: Versions, befalls: random.Random
    ) -> None:
        """befalls: draws what befalls devices."""
        self.in_force, self._canary, self._befalls = 1, versions.canary, befalls
        plan = next(iter(versions.plans[0].values()))
        super().__init__(folder, flow, rng, [[plan] for _ in flow.world.devices])
        self._last, self.brought = len(flow.stages), [1] * self.partitions
        self.clocks = [[] for _ in range(self.partitions)]
        for sender in self.senders:
            first = rng.choice(list(versions.plans[0]))
            splits, bounds = flow.world.devices[sender.name], flow.world.bounds_us
            sender.become(Follower(versions, first, self, sender.partition, splits, bounds, rng))
            sender.device.loses_spools = self.loses_spools
        self._stands = {sender.name: sender.device.stands for sender in self.senders}  # type: ignore[attr-defined]
        self.stands: list[dict[str, Stands]] = [{} for _ in range(self._last - 1)]
        self.logged: dict[str, dict[Any, tuple[int, frozenset[str]]]] = {}
        for sender in self.senders if versions.canary else ():
            sender.device.is_canary = befalls.random() < _IS_CANARY  # type: ignore[attr-defined]
        self._doomed = {sender.name for sender in self.senders if befalls.random() < _DOOMED}
        self._has = set[str]()
        """Devices whose newest claim the log has as taken."""
        self.retired: dict[str, Retired] = {}
        self.lost: Counter[tuple[str, Letter]] = Counter()
        """Letters of retired devices that never came, by channel."""
        self.befallen = Counter[str]()
        of_devices = [plan for plans in versions.plans for plan in plans.values()]
        self._streams = {c.id: (c.stream, frozenset(c.left_out)) for p in of_devices for c in p.channels}

    @property
    def is_whole(self) -> bool:
        """Whether all devices have ended, and all revisions were brought."""
        return super().is_whole and min(self.brought) == self._last

    def grow(self, rng: random.Random) -> None:
        """Have some device go on, a partition bring the next revision, or a device be retired."""
        for sender in self.senders:
            self._befall(sender)
        if self._canary and min(self.brought) > self.in_force and rng.random() >= _AHEAD:
            return
        due = [at for at in range(self.partitions) if self.brought[at] == self.in_force < self._last]
        due = [at for at in due if self._is_calm(at)]
        if due and (super().is_whole or rng.random() < self._comes(due)):
            self._bring(rng.choice(due))
        elif not super().is_whole:
            super().grow(rng)

    def _comes(self, due: Collection[int]) -> float:
        """How likely one of some partitions brings the next revision."""
        if self.in_force == self._canary and all(one.device.revision < self._canary for one in self.senders):
            return _COMES_UNTRIED
        if any(self._stands[one.name].asked for one in self.senders if one.partition in due):
            return _COMES_AMID
        return _COMES_SOON if self.in_force < self._canary else _COMES

    def _is_calm(self, partition: int) -> bool:
        """Whether the log has of no claim its rows alone, and not yet how its device stands by it."""
        for sender in self.senders:
            if sender.partition != partition:
                continue
            for one in sender.queued:
                if one.channel == CLAIMS:
                    break
                if isinstance(one, Standing) and one.stands.asked:
                    return False
        return True

    def _bring(self, partition: int) -> None:
        self.brought[partition] += 1
        number = self.brought[partition]
        self.clocks[partition].append(dict(self._now[partition]))
        for sender in self.senders:
            if sender.partition == partition:
                self.stands[number - 2][sender.name] = self._stands[sender.name]
        entry = self._entry(partition, number)
        self._loop.run_until_complete(self._ledger.commit(self._term, LedgerChange(entries=[entry])))

    def _befall(self, sender: Any) -> None:
        """Retire a device now and then, rather amid a claim or a crossing."""
        name, queued = sender.name, sender.queued
        if sender.has_ended or name not in self._doomed:
            return
        amid = self._stands[name].asked or (queued and queued[0].channel in (STATE, CLAIMS))
        if self._befalls.random() < (_RETIRED_AMID if amid else _RETIRED):
            self._retire(sender)

    def _retire(self, sender: Any) -> None:
        """As control and ingest do. What the device has sent and the log has not is lost."""
        name = sender.name
        while sender.queued and isinstance(sender.queued[0], Standing):
            self._logged(sender, sender.queued.pop(0))
        cells: list[StateCell] = []
        if not any(one.channel == CLAIMS for one in sender.queued):  # the log has the beginning of its move
            for one in sender.queued:
                if isinstance(one, Standing):
                    self._logged(sender, one)
                elif one.channel == STATE:
                    cells += one.rows.values
        stands, when = self._stands[name], "before a move"
        if stands.asked is not None and name not in self._has:
            stands.asked.kept, when = False, "amid a claim"
        elif cells:
            when = "amid cells"
        elif stands.done:
            when = "after a move"
        self.befallen[f"retired {when}"] += 1
        stands = self._stands[name] = replace(stands, edge=stands.runs, asked=None)
        lost = {(said_of(cell.step)[0], cell.key) for cell in cells}
        self.retired[name] = sender.device.retired(stands, lost)
        for sent in sender.queued:
            self._lose(sent)
        sender.queued, sender.has_ended = [], True
        self._give_back(sender)
        self._append(sender, Sent(marks=dict.fromkeys(self._sources, END_OF_TIME)))

    def _give_back(self, sender: Any) -> None:
        self._append(sender, Sent(CLAIMS, is_fresh=True))

    def _append(self, sender: Any, sent: Sent) -> None:
        logged = self._logged(sender, sent)
        entries = [] if logged is None else [self._entry(sender.partition, logged)]
        self._loop.run_until_complete(self._ledger.commit(self._term, LedgerChange(entries=entries)))

    def _lose(self, sent: Sent) -> None:
        """Note what never comes."""
        if sent.channel in (DEAD_LETTERS, LATE) and sent.rows is not None:
            for row, place in enumerate(_places(sent.rows)):
                self.lost[sent.channel, (sent.rows.values[row].step, *place)] += 1
        else:
            self._note(sent, NEVER)

    def _note(self, sent: Sent, revision: int) -> None:
        """Note by which revision the rows of a stream come."""
        if sent.rows is None or sent.channel in (STATE, CLAIMS, DEAD_LETTERS, LATE):
            return
        stream, left_out = self._streams[sent.channel]
        at = self.logged.setdefault(stream, {})
        for place in _places(sent.rows):
            assert place not in at, "a row was sent twice"
            at[place] = revision, left_out

    def _logged(self, sender: Any, sent: Sent) -> Logged | None:
        if isinstance(sent, Standing):
            self._stands[sender.name] = sent.stands
            return None
        if sent.channel == CLAIMS:
            has = sent.rows is not None and sent.rows.values[0].says == HAS
            (self._has.add if has else self._has.discard)(sender.name)
        self._note(sent, self.brought[sender.partition])
        return super()._logged(sender, sent)

    def world(self) -> World:
        """What devices have read: of those that were retired, up to there."""
        devices = {**self._flow.world.devices}
        for sender in self.senders:
            if sender.name in self.retired:
                follower: Any = sender.device
                devices[sender.name] = follower.splits()
        return World(devices, self._flow.world.bounds_us)

    def boundaries(self) -> Boundaries:
        """What the reference is given."""
        sources = self._flow.sources
        clocks = [
            {s: min(each[number].get(s, START_OF_TIME) for each in self.clocks) for s in sources}
            for number in range(self._last - 1)
        ]
        devices: Any = {sender.name: sender.device for sender in self.senders}
        gone_over = {name: device.gone_over for name, device in devices.items()}
        return Boundaries([*clocks, {}], self.stands, gone_over, self.logged, self.retired)


def _places(rows: Batch) -> Iterator[Place]:
    """Those of rows in canonical order."""
    for row in range(len(rows)):
        origin = rows.origin(row)
        yield rows.times[row], origin.name, origin.number, origin.path


class MovedRun(Claiming):
    """The group of a flow that goes through revisions meanwhile."""

    log: MovedLog

    def _publish(self, hosted: Hosted) -> None:
        super()._publish(hosted)
        self.log.in_force = hosted.revision


@dataclass
class Drawn:
    """A flow with the cuts of its devices. plain: its stages with all steps in the cloud."""

    flow: Revised
    plain: list[Stage]
    versions: Versions
    movable: Edge


def draw(number: int) -> Drawn | None:
    """Flow `number`; None where too little of it moves, or where an update would be refused."""
    rng = random.Random(f"{number}/moved")
    flow = revised(rng, REVISIONS, DEVICES, local=True)
    beside = random.Random(f"{number}/canary")
    if (tried := with_canary(flow, beside)) is not None and (drawn := _drawn(*tried, beside)) is not None:
        return drawn
    return _drawn(flow, 0, "", rng)


def _drawn(flow: Revised, canary: int, step: str, rng: random.Random) -> Drawn | None:
    """A flow in which a canary, where that is not 0, runs another code of a step that is on every device."""
    graphs = [stage.plan.graph for stage in flow.stages]
    try:
        base = choose_cut(graphs[0], [step] if step else "cloud").edge
    except GeartrainError:
        return None
    cuts = _cuts(flow.stages, base, rng)
    if len(flow.stages) < 2 or len(cuts) < 2:
        return None
    texts = [sorted(cut) for cut in cuts]
    try:
        mixed = [make_mixed_plan(graph, sorted(base), texts) for graph in graphs]
    except GeartrainError:
        return None
    stages, movable = list[Stage](), frozenset[str]().union(*cuts)
    for at, (stage, plan) in enumerate(zip(flow.stages, mixed, strict=True), 1):
        if _state_of(plan) != _state_of(stage.plan):
            return None  # an `order` that only the data centre has
        document = revision_of(FLOW, plan)
        if stages:
            change = change_of(stages[-1].document, document, stage.change.drops, on_devices=movable)
            if change.refusals or _unread(stages[-1].plan, plan):
                return None
            if at == canary:
                outline: Any = SimpleNamespace(begin="", cuts=())
                if unfit((outline, outline), (stages[-1].document, document), change):
                    return None
                stages.append(replace(stages[-1], change=Change(), drop=()))  # the data centre stays as it is
                continue
        stages.append(replace(stage, plan=plan, document=document))
    plans = [{cut: make_plan(g, sorted(cut), base=sorted(base)) for cut in cuts} for g in graphs]
    documents = [{cut: revision_of(FLOW, one).to_json() for cut, one in several.items()} for several in plans]
    drops = [dict[str, int]()]
    for at, stage in enumerate(stages[1:], 2):
        drops.append({**drops[-1], **dict.fromkeys(stage.change.drops, at)})
    versions = Versions(plans, documents, drops, [claimable(plan.graph) for plan in mixed], canary)
    return Drawn(replace(flow, stages=stages), flow.stages, versions, movable)


def _cuts(stages: Sequence[Stage], base: Edge, rng: random.Random) -> list[Edge]:
    """Cuts that all revisions have alike, with the steps of `base`; most have steps that keep something."""
    first, found = stages[0].plan.graph, list[Edge]()
    for cut in drawn_cuts(first, rng, CUTS_DRAWN):
        if base <= cut.edge and all(_has(stage, cut.edge, stages[0]) for stage in stages):
            found.append(cut.edge)
    keeps = [cut for cut in found if any(first[step].operator.stateful for step in cut)]
    if not keeps:
        return []
    chosen = [rng.choice(found), *rng.sample(keeps, min(CUTS_MAX - 1, len(keeps)))]
    return list(dict.fromkeys(chosen))


def _has(stage: Stage, edge: Edge, first: Stage) -> bool:
    """Whether a revision can have a cut: of the same steps, keyed alike, each `order` beside its reader."""
    graph = stage.plan.graph
    known = {step.id for step in graph.steps}
    if not edge <= known:
        return False
    try:
        cut = choose_cut(graph, sorted(edge))
    except GeartrainError:
        return False
    if cut.edge != edge:
        return False
    for step in graph.steps:
        if step.id not in edge:
            continue
        kind = step.operator.kind
        if kind == "key_by" and _key_of(stage, step.id) != _key_of(first, step.id):
            return False
        if kind == "order" and any(reader.id not in edge for reader in graph.consumers(step.id)):
            return False
    return True


def _key_of(stage: Stage, step: str) -> Any:
    """By what a step of a node gives keys; of a broadcast, it is always the same."""
    return next((node.key for node in stage.nodes if step.rpartition("_by")[0] == node.name), None)


def _state_of(plan: Plan) -> set[str]:
    return {step.id for step in plan.graph.steps if step.operator.stateful}


def _unread(old: Plan, new: Plan) -> bool:
    """Whether devices with cuts of their own would send what the data centre does not know any more."""
    there = {channel.id for channel in new.channels}
    return any("-" in channel.id and channel.id not in there for channel in old.channels)


def check_flow(folder: Path, number: int, schedules: int, seen: Counter[str]) -> None:
    """Assert that flow `number` gives what the reference gives, under several schedules; seen: takes what
    happened, as often as it did.
    """
    drawn = draw(number)
    if drawn is None:
        return
    for schedule in range(schedules):
        _check(folder / str(schedule), drawn, f"{number}/{schedule}", seen)


def _began_anew(flow: Revised) -> set[str]:
    """The steps of which a revision may drop cells: all, or those of which its `migrate` makes no state."""
    steps = [one for stage in flow.stages[1:] for one in stage.change.steps]
    migrated = {one.step for one in steps if any("state type" in text for text in one.says)}
    return migrated.union(*(stage.change.drops for stage in flow.stages[1:]))


def _claims_of(revision: int, log: MovedLog) -> int:
    """How many devices of a revision wait for what they have claimed, where the log brings the next one."""
    found = 0
    for sender in log.senders:
        device: Any = sender.device
        stands, ran = log.stands[revision - 1][sender.name], [1, *(one.revision for one in device.gone_over)]
        found += stands.asked is not None and ran[stands.done] == revision
    return found


def _check(folder: Path, drawn: Drawn, called: str, seen: Counter[str]) -> None:
    flow = drawn.flow
    run = MovedRun(
        folder,
        flow,
        random.Random(called),
        lambda at, f, chance: MovedLog(at, f, chance, drawn.versions, random.Random(f"{called}/befalls")),
    )
    try:
        if not run.fits():
            seen["does not fit"] += 1
            return
        run.losses = 0  # with what is drawn for these, too few cells would be refused
        kills = run.kills
        found = run.run()
        parts = [Part(stage.plan.graph, stage.kept()) for stage in drawn.plain]
        want = interpret_moved(parts, drawn.movable, run.log.world(), run.log.boundaries())
        for (channel, letter), count in run.log.lost.items():
            (want.dead if channel == DEAD_LETTERS else want.late)[letter] -= count
        want.dead, want.late = +want.dead, +want.late
        # Of these the reference says only that they are gone: their keys begin empty.
        refused = Counter({one: n for one, n in found.dead.items() if one[2] == STATE})
        assert {one[0] for one in refused} <= _began_anew(flow), f"cells refused: {refused}"
        seen["cells refused"] += refused.total()
        found.dead -= refused
        check_equal(found, want)
    except Exception as error:
        raise AssertionError(f"flow {called}: {error}\n{flow}") from error
    finally:
        run.log.close()
    seen["flows"] += 1
    seen["killed"] += kills - run.kills
    seen["scaled"] += run.scaled
    seen += run.log.befallen
    for sender in run.log.senders:
        device: Any = sender.device
        seen["taken"] += device.taken
        seen["left"] += device.cells
        seen["gone over"] += len(device.gone_over)
        seen.update(device.moved)
        ran = [one.revision for one in device.gone_over]
        went_back = bool(drawn.versions.canary in ran and ran[-1] > drawn.versions.canary)
        seen["canary went back"] += went_back
    if drawn.versions.canary:
        seen["canary back amid a claim"] += _claims_of(drawn.versions.canary, run.log)
    if any(s.operator.kind == "broadcast" for stage in flow.stages for s in stage.plan.graph.steps):
        seen["broadcast scaled"] += run.scaled
    for at in run.log.stands:
        seen["amid a claim"] += sum(one.asked is not None for one in at.values())
        seen["on devices"] += sum(len(one.runs) > len(flow.sources) for one in at.values())
    seen.update(f"{one.what} {one.state}".strip() for stage in flow.stages[1:] for one in stage.change.steps)
