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
from geartrain.records.event_time import START_OF_TIME
from geartrain.revision import change_of, revision_of
from geartrain.runtime.moving import Moves
from geartrain.state.claims import ASKS
from geartrain.state.moving import Cells
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.ports import LedgerChange
from geartrain_edge.agent.crossing import NUMBERS, REVISION, Numbers, forgotten, migrated
from tests.hosting.test_claimed_state import Claiming, LiveLog
from tests.reference.comparison import check_equal, drawn_cuts
from tests.reference.moved_revisions import (
    Asked,
    Boundaries,
    GoneOver,
    Part,
    Stands,
    interpret_moved,
)
from tests.reference.revised_flows import Revised, Stage, revised
from tests.reference.two_tiers import Device, Sent, coming
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
BASE = "cloud"
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
    revision by which each step has lost what it kept; claims: the steps that may be claimed.
    """

    plans: Sequence[Mapping[Edge, Plan]]
    documents: Sequence[Mapping[Edge, str]]
    drops: Sequence[Mapping[str, int]]
    claims: Sequence[Collection[str]]


class Follower(Device):
    """A device that follows the revisions of its app."""

    def __init__(self, versions: Versions, first: Edge, log: MovedLog, partition: int, *args: Any) -> None:
        super().__init__(versions.plans[0][first], *args)
        self._versions, self._log, self._partition, self._moves = versions, log, partition, MOVES_MAX
        self.gone_over: list[GoneOver] = []
        self._ahead: dict[str, int] = {}
        self._wanted, self._asked = self._plan, Asked(frozenset())
        self.moved = Counter[str]()

    @property
    def stands(self) -> Stands:
        """As it stands now, with no claim open."""
        return Stands(self._plan.cut.edge, None, dict(self._ahead), len(self.gone_over))

    def _change(self, waiting: list[Plan], how_likely: float) -> Iterator[list[Sent]]:
        if self.revision < self._log.in_force and self._rng.random() < _GOES_OVER:
            self._follow(self._log.in_force)
        may = self._moves and self.revision == self._log.in_force == self._log.brought[self._partition]
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
        if self._plan is before:
            return
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

    def _positions(self) -> dict[tuple[str, str], int]:
        return {(t.step, t.name): t.progress.position for t, _ in self._readers}


class MovedLog(LiveLog):
    """The log of such devices; each partition brings the next revision where chance has it."""

    loses_spools = True
    turns = (1, 3, 9)

    def __init__(self, folder: Path, flow: Revised, rng: random.Random, versions: Versions) -> None:
        self.in_force = 1
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
        of_devices = [plan for plans in versions.plans for plan in plans.values()]
        self._streams = {c.id: (c.stream, frozenset(c.left_out)) for p in of_devices for c in p.channels}

    @property
    def is_whole(self) -> bool:
        """Whether all devices have ended, and all revisions were brought."""
        return super().is_whole and min(self.brought) == self._last

    def grow(self, rng: random.Random) -> None:
        """Have some device go on, or a partition bring the next revision."""
        due = [at for at in range(self.partitions) if self.brought[at] == self.in_force < self._last]
        due = [at for at in due if self._is_calm(at)]
        amid = any(self._stands[one.name].asked for one in self.senders if one.partition in due)
        if due and (super().is_whole or rng.random() < (_COMES_AMID if amid else _COMES)):
            self._bring(rng.choice(due))
        elif not super().is_whole:
            super().grow(rng)

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

    def _logged(self, sender: Any, sent: Sent) -> Logged | None:
        if isinstance(sent, Standing):
            self._stands[sender.name] = sent.stands
            return None
        if sent.rows is not None and sent.channel not in (STATE, CLAIMS, DEAD_LETTERS, LATE):
            stream, left_out = self._streams[sent.channel]
            at = self.logged.setdefault(stream, {})
            for row in range(len(sent.rows)):
                origin = sent.rows.origin(row)
                place = (sent.rows.times[row], origin.name, origin.number, origin.path)
                assert place not in at, "a row was sent twice"
                at[place] = self.brought[sender.partition], left_out
        return super()._logged(sender, sent)

    def boundaries(self) -> Boundaries:
        """What the reference is given."""
        sources = self._flow.sources
        clocks = [
            {s: min(each[number].get(s, START_OF_TIME) for each in self.clocks) for s in sources}
            for number in range(self._last - 1)
        ]
        devices: Any = {sender.name: sender.device for sender in self.senders}
        gone_over = {name: device.gone_over for name, device in devices.items()}
        return Boundaries([*clocks, {}], self.stands, gone_over, self.logged)


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
    cuts = _cuts(flow.stages, rng)
    if len(flow.stages) < 2 or len(cuts) < 2:
        return None
    graphs = [stage.plan.graph for stage in flow.stages]
    texts = [sorted(cut) for cut in cuts]
    try:
        mixed = [make_mixed_plan(graph, BASE, texts) for graph in graphs]
    except GeartrainError:
        return None
    stages, movable = list[Stage](), frozenset[str]().union(*cuts)
    for stage, plan in zip(flow.stages, mixed, strict=True):
        if _state_of(plan) != _state_of(stage.plan):
            return None  # an `order` that only the data centre has
        document = revision_of(FLOW, plan)
        if stages:
            change = change_of(stages[-1].document, document, stage.change.drops, on_devices=movable)
            if change.refusals or _unread(stages[-1].plan, plan):
                return None
        stages.append(replace(stage, plan=plan, document=document))
    plans = [{cut: make_plan(g, sorted(cut), base=BASE) for cut in cuts} for g in graphs]
    documents = [{cut: revision_of(FLOW, one).to_json() for cut, one in several.items()} for several in plans]
    drops = [dict[str, int]()]
    for at, stage in enumerate(stages[1:], 2):
        drops.append({**drops[-1], **dict.fromkeys(stage.change.drops, at)})
    versions = Versions(plans, documents, drops, [claimable(plan.graph) for plan in mixed])
    return Drawn(replace(flow, stages=stages), flow.stages, versions, movable)


def _cuts(stages: Sequence[Stage], rng: random.Random) -> list[Edge]:
    """Cuts that all revisions have alike, most of them with steps that keep something."""
    first, found = stages[0].plan.graph, list[Edge]()
    for cut in drawn_cuts(first, rng, CUTS_DRAWN):
        if all(_has(stage, cut.edge, stages[0]) for stage in stages):
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


def _check(folder: Path, drawn: Drawn, called: str, seen: Counter[str]) -> None:
    flow = drawn.flow
    run = MovedRun(
        folder, flow, random.Random(called), lambda at, f, chance: MovedLog(at, f, chance, drawn.versions)
    )
    if any(s.operator.kind == "broadcast" for stage in flow.stages for s in stage.plan.graph.steps):
        run.scales = 0  # its table is in every slot, and is not dealt anew
    try:
        if not run.fits():
            seen["does not fit"] += 1
            return
        kills = run.kills
        found = run.run()
        parts = [Part(stage.plan.graph, stage.kept()) for stage in drawn.plain]
        want = interpret_moved(parts, drawn.movable, flow.world, run.log.boundaries())
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
    for sender in run.log.senders:
        device: Any = sender.device
        seen["taken"] += device.taken
        seen["left"] += device.cells
        seen["gone over"] += len(device.gone_over)
        seen.update(device.moved)
    for at in run.log.stands:
        seen["amid a claim"] += sum(one.asked is not None for one in at.values())
        seen["on devices"] += sum(len(one.runs) > len(flow.sources) for one in at.values())
    seen.update(f"{one.what} {one.state}".strip() for stage in flow.stages[1:] for one in stage.change.steps)
