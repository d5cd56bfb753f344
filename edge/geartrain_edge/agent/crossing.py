"""Whether a spool may go over to another cut or revision of its flow, and what it leaves behind.

Read as the agent starts, before anything of the new plan is written. Guarantees: a device goes over to
another cut only where the steps, their code, the sources and what the channels hold are as they were. It goes
over to a revision only where the platform names one behind the spool's. What a step keeps stays where the
step is the same, and goes only with the step or by a person's word. It is never begun anew beside what the
cloud has of it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec
from msgspec.structs import replace

from geartrain.errors import SchemaError
from geartrain.graph.graph import Graph
from geartrain.planning import Plan, make_plan
from geartrain.revision import Revision, differences, revision_of
from geartrain.revision.change import lost_state
from geartrain.revision.differences import is_named
from geartrain.revision.revision import ChannelForm, StepForm
from geartrain.runtime.fragment import Fragment, Output
from geartrain.runtime.moving import PARTIAL, Moves, given, of_steps
from geartrain.state.keyed import DictBackend
from geartrain.state.moving import Cells, check_size
from geartrain.wire.crossing import Crossing
from geartrain.wire.envelope import BatchKind, Header
from geartrain_edge.settings import AgentSettings

NUMBERS = ("_agent", b"crossing")
"""Where the spool keeps `Numbers`."""
REVISION = ("_agent", b"revision")
"""Where the spool keeps the revision that it was begun with; no step's id begins with `_`."""
CLAIM = ("_agent", b"claim")
"""Where the spool keeps `LastClaim`."""
Cell = tuple[str, bytes]
"""The step and the key of what a spool keeps."""


class LastClaim(msgspec.Struct, frozen=True):
    """The last claim of a device to the state of `steps`, and what it has said of it last, "" for none yet.
    With `HAS` it is not said yet: the cells are there, and the crossing will say it. began: with `HAS`, by
    step the last revision with which it had begun empty where the cells come from.
    """

    number: int = 0
    steps: tuple[str, ...] = ()
    says: str = ""
    began: dict[str, int] = {}

    @classmethod
    def of(cls, stored: bytes | None) -> LastClaim:
        """As it is kept under `CLAIM`."""
        return cls() if stored is None else msgspec.json.decode(stored, type=cls)

    def stored(self) -> bytes:
        """What a commit writes."""
        return msgspec.json.encode(self)

    @property
    def settled(self) -> LastClaim:
        """Once nothing is open of it."""
        return LastClaim(self.number)


class Numbers(msgspec.Struct, frozen=True):
    """How often a device has gone over to another cut or revision of a flow.

    number: of the last crossing, 0 for none; first: the same before the first batch of the spool's epoch;
    unsaid: what stands for 0 in the headers of this spool, whose first batches were made before it knew;
    is_known: ingest has said what the number is, before which the device does not go over; revision: the
    number of the revision that the spool is of, 0 where nobody has said; has_moved: state has left the device
    in this spool.
    """

    number: int = 0
    first: int = 0
    unsaid: int = 0
    is_known: bool = True
    revision: int = 0
    has_moved: bool = False

    @classmethod
    def of(cls, stored: bytes | None, *, is_fresh: bool) -> Numbers:
        """As it is kept under `NUMBERS`; a spool without it has never gone over."""
        return cls(is_known=not is_fresh) if stored is None else msgspec.json.decode(stored, type=cls)

    def stored(self) -> dict[tuple[str, bytes], bytes | None]:
        """What a commit writes."""
        return {NUMBERS: msgspec.json.encode(self)}

    def heard(self, crossing: int) -> Numbers:
        """After ingest has opened the epoch, and named the newest crossing that it has."""
        if self.is_known:
            return self
        return Numbers(crossing, crossing, crossing, revision=self.revision, has_moved=self.has_moved)

    def before(self, header: Header) -> int:
        """The number before a batch of the spool."""
        return (header.crossing or self.unsaid) - (header.kind is BatchKind.CROSSING)


def runs(revision: Revision, base_cut: tuple[str, ...], number: int = 0) -> Crossing:
    """What a device runs, as a crossing says it; number: of the revision, 0 where nobody has said."""
    return Crossing(tuple(sorted(revision.cut)), tuple(sorted(base_cut)), revision.hash, number)


def is_next(held: Revision, ours: Revision, numbers: Numbers, settings: AgentSettings) -> bool:
    """Whether a spool of `held` is to go over to `ours`. The platform has named that as a later revision, and
    what the device runs or sends differs by it, or what a step keeps goes.
    """
    if settings.revision <= numbers.revision:
        return False
    held, ours = held.on("edge"), ours.on("edge")
    goes = _told(numbers, settings) & {step.id for step in held.steps}
    return bool(goes or differences(replace(held, code=ours.code), ours))


def forgotten(
    state: Mapping[Cell, bytes], plan: Plan, settings: AgentSettings, *, is_fresh: bool
) -> frozenset[Cell]:
    """The cells that a spool leaves behind as it goes over to the revision of `plan`: those of steps that are
    gone, and of those that are to begin anew. Cells stay that have come from where these had begun anew.
    """
    numbers = Numbers.of(state.get(NUMBERS), is_fresh=is_fresh)
    if REVISION not in state or settings.revision <= numbers.revision:
        return frozenset()
    held = Revision.from_json(state[REVISION]).steps
    here, merged = {step.id for step in plan.graph.steps}, _merged(held)
    gone = {step.id for step in held if merged.get(step.id, step.id) not in here}
    began = LastClaim.of(state.get(CLAIM)).began
    leaves = gone | {s for s in _told(numbers, settings) if settings.drops[s] > began.get(s, 0)}
    return frozenset(cell for cell in state if cell[0] in leaves)


def migrated(
    state: Mapping[Cell, bytes], plan: Plan, settings: AgentSettings, *, is_fresh: bool
) -> dict[Cell, bytes | None]:
    """The cells that become others. At any start these are those of tasks that have timers now, or none any
    more. As a spool goes over to the revision of `plan`, so are those of tasks that keep another type of
    state, or have another time to live. None stands for one of which none could be made.
    """
    if REVISION not in state:
        return {}
    numbers = Numbers.of(state.get(NUMBERS), is_fresh=is_fresh)
    goes_over = settings.revision > numbers.revision
    from geartrain.operators.process import Process  # only who goes over needs these
    from geartrain.schema.logical import type_text
    from geartrain.tasks.migration import UNKNOWN_TTL, form_of_text, former_states

    found: dict[Cell, bytes | None] = {}
    was = {step.id: step.state for step in Revision.from_json(state[REVISION]).steps}
    for name in was.keys() & set(plan.edge):
        task = plan.graph[name].operator
        if not isinstance(task, Process):
            continue
        kind = task.task.state
        is_same = was[name] == ("" if kind is None else type_text(kind))
        if not is_same and not (goes_over and was[name] in former_states(task.task)):
            continue
        form = form_of_text(was[name], timed=task.timed)  # of cells with other timers that says itself
        if task.timed:
            form = f"{form}{UNKNOWN_TTL}" if goes_over else task.due_form
        for cell in [cell for cell in state if cell[0] == name]:
            try:
                made = task.migrated(name, form, state[cell])
            except SchemaError:
                found[cell] = None
            else:
                if made != state[cell]:
                    found[cell] = made
    return found


def _told(numbers: Numbers, settings: AgentSettings) -> set[str]:
    """The steps that have lost what they kept by a revision behind the spool's."""
    return {step for step, number in settings.drops.items() if number > numbers.revision}


def is_other_cut(held: Revision, ours: Revision, mended: str) -> bool:
    """Whether two revisions differ in the cut alone, or in it and in files that a person has said may differ
    (`mended`).
    """
    if set(held.cut) == set(ours.cut):
        return False
    if is_named(ours.code, mended):
        held = replace(held, code=ours.code)
    ids = {step.id for one in (held, ours) for step in one.steps if step.tier == "edge"}
    return not differences(_uncut(held, ours, ids), _uncut(ours, held, ids))


def obstacle(
    held: Revision,
    ours: Revision,
    plan: Plan,
    state: Collection[Cell],
    claimed: Collection[str] = (),
    *,
    may_leave: bool,
) -> str:
    """Why a device cannot go over from one cut or revision to another, as a clause; "" where it can.

    plan: of `ours`; state: the cells that the spool is to keep; claimed: steps whose state has come;
    may_leave: what a step keeps may leave with it, because the two differ in the cut alone.
    """
    gone, comes = moved(held, ours)
    cells = Counter(step for step, _ in state)
    if lost := lost_state(held, ours, sorted(frozenset(held.cut) & frozenset(ours.cut) & cells.keys())):
        return lost[0]
    for step in () if may_leave else sorted(gone):
        if cells[step]:
            return (
                f"step {step} keeps state for {cells[step]} keys in the spool, and would leave the device as "
                "the flow becomes another: give it another cut first, or let the update drop what it keeps"
            )
    for step in sorted(comes.difference(claimed)):
        if cells[step]:
            return f"step {step} keeps state for {cells[step]} keys in the spool and would come to the device"
        operator = plan.graph[step].operator
        if operator.stateful and operator.kind != PARTIAL:
            return f"step {step} would come to the device, and what it keeps is in the cloud"
    return ""


class Leaves(msgspec.Struct, frozen=True):
    """What leaves a device with the steps that it does without: their cells, and what partial aggregates put
    out of their open windows; plan: under which that was made; gone: all cells that the spool keeps no more;
    forms: by step, what stands for the layout of its cells.
    """

    plan: Plan
    cells: Cells
    output: Output
    gone: tuple[Cell, ...]
    forms: dict[str, str] = {}


class Change(msgspec.Struct, frozen=True):
    """What a device does to go over.

    revision: the one that its spool is of then; runs: the same as the log says it; number: of the revision, 0
    where nobody has said; left: what leaves the device; claim: the one whose cells have come, the first for
    none; said: all of it for people; is_next: the platform has named the revision as a later one.
    """

    revision: Revision
    runs: Crossing
    number: int
    left: Leaves
    claim: LastClaim
    said: str
    is_next: bool


def leaves(
    plan: Plan,
    held: Revision,
    ours: Revision,
    base: Collection[str],
    state: Mapping[Cell, bytes],
) -> Leaves:
    """What leaves a device that goes over to `ours`.

    plan: of `ours`; base: the steps of the cut that the flow was submitted with; state: what the spool keeps.
    Raises `StepError` where that is more than may move at once.
    """
    gone, _ = moved(held, ours)
    cells = of_steps(state, gone)
    if not cells or plan.whole is None:
        return Leaves(plan, {}, Output(), ())
    before = make_plan(plan.whole, held.cut, base=as_cut(base))
    moves = Moves.of(before.graph, before.cut.edge, plan.cut.edge)
    fragment = Fragment(before.graph, moves.put_out, DictBackend(dict(cells)), names=before.names)
    left = given(fragment, cells, moves)
    check_size(left.cells)
    from geartrain.operators.process import forms_of  # only who goes over needs it

    forms = forms_of(before.graph, {step for step, _ in left.cells})
    return Leaves(before, left.cells, left.output, tuple(cells), forms)


def as_cut(base: Collection[str]) -> str | tuple[str, ...]:
    """A cut as `make_plan` takes it: its one word, or its steps."""
    word = next(iter(base)) if len(base) == 1 else ""
    return word if word in ("auto", "edge", "cloud") else tuple(base)


def moved(held: Revision, ours: Revision) -> tuple[frozenset[str], frozenset[str]]:
    """The steps that leave the device for the cloud, and those that come to it from there; of a revision
    those alone that both have.
    """
    was, now = frozenset(held.cut), frozenset(ours.cut)
    old, new = ({step.id for step in one.steps} for one in (held, ours))
    merged = _merged((*held.steps, *ours.steps))
    leaves = {step for step in was - now if merged.get(step, step) in new}
    return frozenset(leaves), frozenset(step for step in now - was if merged.get(step, step) in old)


def _merged(steps: Collection[StepForm]) -> dict[str, str]:
    """By partial aggregate, the step of the user's that merges it."""
    parts = {step.id for step in steps if step.kind == PARTIAL}
    read = ((one.partition(":")[0], step.id) for step in steps for one in step.inputs)
    return {part: step for part, step in read if part in parts}


def first_of_two(
    state: Mapping[Cell, bytes], plan: Plan, ours: Revision, settings: AgentSettings, *, is_fresh: bool
) -> tuple[Plan, Revision] | None:
    """What a device goes over to before it goes over to `ours`, None where one crossing does.

    The device was away while its app got another revision, and it another cut by which a step with state
    moves. It goes over to the revision under the cut that it has. The steps are then those that the data
    centre has, and what they keep can move. plan: of `ours`; state: what the spool keeps. None as
    well where the former cut does not say whether a new step runs on the device.
    """
    numbers = Numbers.of(state.get(NUMBERS), is_fresh=is_fresh)
    if REVISION not in state or plan.whole is None or settings.revision <= numbers.revision:
        return None
    held = Revision.from_json(state[REVISION])
    if not is_next(held, ours, numbers, settings) or is_other_cut(held, ours, settings.mended):
        return None
    moves = frozenset[str]().union(*moved(held, ours))
    if not any(step.operator.stateful for step in plan.whole.steps if step.id in moves):
        return None
    first = _under_its_cut(held, plan.whole, as_cut(settings.base_cut or ours.cut))
    if first is None:
        return None
    made = revision_of(ours.flow, first, ours.settings, ours.code, ours.geartrain)
    return (first, made) if is_other_cut(made, ours, settings.mended) else None


def _under_its_cut(held: Revision, whole: Graph, base: str | tuple[str, ...]) -> Plan | None:
    """The plan of a graph under the cut of a former revision, None where that does not say it. base: the cut
    that the flow was submitted with.
    """
    known, former = {step.id for step in held.steps}, {step.id for step in whole.steps} & set(held.cut)
    begun = make_plan(whole, base, base=base)
    if begun.cut.edge & known == former:
        return begun
    parts = {step.id for step in whole.steps if step.operator.kind == PARTIAL}
    new = {
        step
        for step in make_plan(whole, "edge", base=base).cut.edge - known
        if step not in parts or not any(reader.id in known for reader in whole.consumers(step))
    }
    if any({one.step for one in whole[step].inputs} <= former for step in new):
        return None
    return make_plan(whole, sorted(former), base=base)


def _uncut(revision: Revision, other: Revision, ids: Collection[str]) -> Revision:
    """What of a revision concerns the devices under either cut, as if no cut had been made."""
    forms, others = ({step.id: step for step in one.steps} for one in (revision, other))
    steps = [
        replace(step, tier="edge", inputs=tuple(_made_by(forms, name) for name in step.inputs))
        for step in revision.steps
        if step.id in ids and not (step.kind == PARTIAL and step.id not in others)
    ]
    both = {(channel.id, channel.down) for channel in other.channels}
    channels = [one for one in revision.channels if one.down or (one.id, one.down) in both]
    return replace(revision, steps=tuple(steps), channels=tuple(sorted(channels, key=_place)))


def _place(channel: ChannelForm) -> tuple[str, bool]:
    return channel.id, channel.down


def _made_by(forms: Mapping[str, StepForm], name: str) -> str:
    """An input as the user wrote it: of a `key_by` that the planner repeats in the cloud, the first one."""
    step, colon, grouping = name.partition(":")
    form = forms.get(step)
    if form is None or not form.options.get("again"):
        return name
    first = [
        one.id
        for one in forms.values()
        if one.kind == form.kind and not one.options.get("again") and step.startswith(f"{one.id[:52]}_again")
    ]
    return f"{max(first, key=len, default=step)}{colon}{grouping}"
