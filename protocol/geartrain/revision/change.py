"""What becomes of each step where an app that runs goes over to another revision, and of what it has kept.

Asked by control before such a change, and by a device that goes over; pure. Guarantees: state stays only with
a step whose id, kind and key are as they were. Its types of state are, too, or its task makes them of the
former ones. Whatever forbids the change is a sentence, and so is all that is lost by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from geartrain.errors import GeartrainError
from geartrain.fleet.selectors import IN_CLOUD
from geartrain.graph.graph import DEAD_LETTERS, LATE, is_of_system
from geartrain.revision.differences import (
    channel_clauses,
    differences,
    file_clauses,
    in_short,
    record_fields,
    step_clauses,
)
from geartrain.revision.parts import Parts, part_clauses
from geartrain.revision.revision import ChannelForm, Revision, StepForm

TASKS = frozenset({"process"})
"""Kinds whose state is what a user's class says, whatever else is set of them."""
REST_ON_RECORDS = frozenset(
    {
        "aggregate",
        "broadcast",
        "fold",
        "interval_join",
        "merge_partials",
        "order",
        "partial_aggregate",
        "reduce",
        "window_aggregate",
        "window_fold",
        "window_join",
        "window_reduce",
    }
)
"""Kinds whose state follows from their options and the records that they read."""
STATEFUL = TASKS | REST_ON_RECORDS
_TIERS = frozenset({"edge", "cloud"})
_OF_UPDATES = "keep that as it was, give the step another id, or have it begin anew with --drop-state {}"
_OF_CUTS = "give devices a cut that leaves {} as it is, or submit the flow anew with all cuts it is to have"
"""What to do where only cuts change, which cannot drop anything."""
SOURCES = (
    "what the devices read would change ({}), and a source of a running app stays as it is, or goes: leave "
    "it as it is, give the new one another id, or kill the app and submit the flow"
)
NEW_SOURCE = "source {} cannot come to an app that runs, since {}"
_LEAVE = "leave it, or kill the app and submit the flow"
GONE_SOURCE = "source {} cannot go from an app that runs, since {}"
DOWN = (
    "what comes down to the devices, or runs behind it there, would change ({}), and stays while an app "
    "runs: kill it, and submit the flow"
)
CHANNELS = (
    "devices would send other records under a known name ({}), and those that have not gone over send it as "
    "before: name the former type in the new one's upgrade, or give the step another id, or have what they "
    "send become dead letters with --dead-letter-old"
)

UNKNOWN = "whether its code differs is not known, since the app was submitted to an earlier release"

What = Literal["attached", "replaced", "removed", "moved", "same"]
Kept = Literal["", "kept", "dropped", "refused"]


class StepChange(msgspec.Struct, frozen=True):
    """A step of either revision: what becomes of it, what differs (a clause each), and whether it keeps its
    state: "" where it had none.
    """

    step: str
    what: What
    says: tuple[str, ...] = ()
    state: Kept = ""


class TableForm(msgspec.Struct, frozen=True):
    """A table as a revision writes it: the class of its sink, its key, and the schema of its records."""

    sink: str
    key: tuple[str, ...]
    record: str


class TableChange(msgspec.Struct, frozen=True):
    """A table that is `new`, that `stays` as it is when its sink is removed, or whose columns `change`."""

    table: str
    what: Literal["new", "stays", "changes"]
    says: tuple[str, ...] = ()


class Change(msgspec.Struct, frozen=True):
    """From one revision to another. steps: those that differ or keep state; code: a clause for each file that
    differs; drops: the steps that lose what they have kept; refusals: why it is not to be, a sentence each;
    crosses: what devices run or send differs, so that each of them goes over at a commit of its own;
    upgrades: by channel, how its records differ from those that devices send before that, which are upgraded;
    letters: likewise where those become dead letters.
    """

    steps: tuple[StepChange, ...] = ()
    tables: tuple[TableChange, ...] = ()
    code: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    crosses: bool = False
    upgrades: dict[str, str] = {}
    letters: dict[str, str] = {}


Evolution = Callable[[str, TableForm, TableForm], tuple[str, ...]]
"""The clauses that say how the columns of the table of this name change; raises `GeartrainError` where they
cannot.
"""


def change_of(
    old: Revision,
    new: Revision,
    drop: Collection[str] = (),
    laid: Mapping[str, TableForm] | None = None,
    evolution: Evolution | None = None,
    on_devices: Collection[str] | None = None,
    *,
    gives_up: bool = False,
) -> Change:
    """What a change does. The two revisions are of the same cuts, or have the same steps.

    drop: the steps whose state is to be dropped, by a person's word; laid: tables of earlier revisions, which
    are still there; evolution: None where no column may change; on_devices: the steps that some device runs
    or ran, None for those that all do. Without any, only cuts change, and what devices keep is not judged.
    gives_up: records of which none of the present type can be made become dead letters.
    """
    differ = _on_devices(old, new, on_devices)
    refusals = _fixed(old, new, gives_up=gives_up) if differ else []
    tiers = _TIERS if on_devices is None or on_devices else _TIERS - {"edge"}
    was, now = ({step.id: step for step in one.steps} for one in (old, new))
    steps = [_judged(step, was, now, drop, tiers) for step in _in_order(old, new)]
    advice = _OF_UPDATES if tiers == _TIERS else _OF_CUTS
    refusals += [_sentence(one.step, was, now, advice) for one in steps if one.state == "refused"]
    refusals += [
        f"--drop-state {name}: no step of this name keeps anything"
        for name in drop
        if name not in was or not _keeps(was[name], tiers)
    ]
    tables, troubles = _tables({**(laid or {}), **tables_of(old)}, tables_of(old), tables_of(new), evolution)
    return Change(
        tuple(one for one in steps if one.what != "same" or one.state),
        tables,
        tuple(file_clauses(old.code.files, new.code.files)),
        tuple(one.step for one in steps if one.state == "dropped"),
        (*refusals, *troubles),
        bool(differ) or any(one.state == "dropped" and _runs_on_devices(one.step, was) for one in steps),
        _upgrades(old, new, taken=True) if differ else {},
        _upgrades(old, new, taken=False) if differ and gives_up else {},
    )


def with_parts(change: Change, old: Revision, new: Revision, was: Parts | None, now: Parts) -> Change:
    """A change that tells of steps whose code rests on other parts, too; was, now: the parts of both, None
    where nobody has noted them. Where files differ, that is said of each step.
    """
    known = {one.step: one for one in change.steps}
    here = {step.id: step for step in old.steps}
    found = []
    for name in _in_order(old, new):
        one = known.get(name)
        if name in here and any(step.id == name for step in new.steps):
            clauses = () if was is None else tuple(part_clauses(was.get(name, {}), now.get(name, {})))
            if clauses:
                one = one or StepChange(name, "same")
                what = "replaced" if one.what == "same" else one.what
                one = replace(one, what=what, says=(*one.says, *clauses))
            elif one is not None and was is None and change.code:
                one = replace(one, says=(*one.says, UNKNOWN))
        found += [one] if one is not None else []
    return replace(change, steps=tuple(found))


def lost_state(old: Revision, new: Revision, steps: Iterable[str]) -> list[str]:
    """Which of the steps, in both revisions, cannot keep their state, a sentence each."""
    was, now = ({step.id: step for step in one.steps} for one in (old, new))
    lost = [name for name in steps if name in was and name in now and _lost(name, was, now)]
    return [_sentence(name, was, now, _OF_UPDATES) for name in lost]


def tables_of(revision: Revision) -> dict[str, TableForm]:
    """The tables that a revision writes in the cloud, by name."""
    records = {step.id: step.record for step in revision.steps}
    return {
        step.options["name"]: TableForm(
            step.options["sink"], tuple(step.options["key"]), records[_id(step.inputs[0])]
        )
        for step in revision.steps
        if step.kind == "sink" and step.tier == "cloud"
    }


def _on_devices(old: Revision, new: Revision, on_devices: Collection[str] | None) -> list[str]:
    """What differs of what devices run and send, a clause each; code and its versions are no difference."""
    if on_devices is not None and not on_devices:
        return []
    of_devices = [replace(one, code=new.code).on("edge") for one in (old, new)]
    if on_devices:
        mine = [tuple(step for step in one.steps if step.id in on_devices) for one in (old, new)]
        of_devices = [replace(one, steps=steps) for one, steps in zip(of_devices, mine, strict=True)]
    return differences(of_devices[0], of_devices[1])


def _fixed(old: Revision, new: Revision, *, gives_up: bool) -> list[str]:
    """Why what devices run cannot become this while the app runs, a sentence each."""
    common = {source.id for source in old.sources} & {source.id for source in new.sources}
    kept = [tuple(source for source in one.sources if source.id in common) for one in (old, new)]
    both = [
        replace(one, code=new.code, steps=(), channels=(), sources=sources)
        for one, sources in zip((old, new), kept, strict=True)
    ]
    down = [
        replace(one, channels=_downward(was), steps=_below_deals(was))
        for one, was in zip(both, (old, new), strict=True)
    ]
    bare = [replace(one, sources=()) for one in down]
    now = {one.id: one for one in _upward(new)}
    known = tuple(_of_kept(channel, common) for channel in _upward(old) if channel.id in now)
    later = tuple(_of_kept(_as_taken(now[one.id], one, gives_up=gives_up), common) for one in known)
    up = [
        replace(one, sources=(), channels=channels)
        for one, channels in zip(both, (known, later), strict=True)
    ]
    found = ((SOURCES, differences(*both)), (DOWN, differences(*bare)), (CHANNELS, differences(*up)))
    refusals = [sentence.format(in_short(clauses)) for sentence, clauses in found if clauses]
    return [*refusals, *_unfit_sources(old, new), *_unfit_to_go(old, new)]


def _of_kept(channel: ChannelForm, sources: Collection[str]) -> ChannelForm:
    """A channel of the system above which are these sources alone: it is below all of a flow."""
    if channel.id not in (DEAD_LETTERS, LATE):
        return channel
    return replace(channel, sources=tuple(one for one in channel.sources if one in sources))


def _as_taken(channel: ChannelForm, former: ChannelForm, *, gives_up: bool) -> ChannelForm:
    """A channel with the schema of a former form of it, where it takes rows of that, or may do without."""
    takes = channel.takes(former.schema) or (gives_up and not is_of_system(channel.id))
    return replace(channel, schema=former.schema) if takes else channel


def _upgrades(old: Revision, new: Revision, *, taken: bool) -> dict[str, str]:
    """By channel, how its records differ, where those of before are made into such, or cannot be."""
    now = {channel.id: channel for channel in _upward(new)}
    both = ((one, now[one.id]) for one in _upward(old) if one.id in now)
    return {
        was.id: next(channel_clauses(was, later))
        for was, later in both
        if was.schema != later.schema and later.takes(was.schema) == taken
    }


def _unfit_sources(old: Revision, new: Revision) -> list[str]:
    """Why sources that are new cannot come while the app runs, a sentence each."""
    has, found = {source.id for source in old.sources}, []
    for source in new.sources:
        if source.id in has:
            continue
        waits, why = _readers_in_both(source.id, new, old), ""
        if source.bounded or all(one.bounded for one in old.sources):
            why = "it or all others come to an end: submit a flow with this source as an app of its own"
        elif _downward(new):
            why = "the flow sends to devices: kill it, and submit the flow"
        elif waits:
            why = f"step {waits[0]}, which runs, would wait for it: let new steps alone read it"
        found += [NEW_SOURCE.format(source.id, why)] if why else []
    return found


def _unfit_to_go(old: Revision, new: Revision) -> list[str]:
    """Why sources cannot go while the app runs, a sentence each."""
    stays, found = {source.id for source in new.sources}, []
    for source in old.sources:
        if source.id in stays:
            continue
        reads, why = _readers_in_both(source.id, old, new), ""
        if all(one.bounded for one in new.sources):
            why = f"all that would stay come to an end: {_LEAVE}"
        elif source.devices == IN_CLOUD and all(one.devices != IN_CLOUD for one in new.sources):
            why = f"it is the last one in the data centre: {_LEAVE}"
        elif _downward(old):
            why = f"the flow sends to devices: {_LEAVE}"
        elif reads:
            why = f"step {reads[0]}, which stays, reads it: remove that too, or give it another id"
        found += [GONE_SOURCE.format(source.id, why)] if why else []
    return found


def _readers_in_both(source: str, revision: Revision, other: Revision) -> list[str]:
    """The steps of both whose records come from a source in the first of them, in the order of the other."""
    above = _sources_above(revision)
    return [step.id for step in other.steps if source in above.get(step.id, ())]


def _sources_above(revision: Revision) -> dict[str, frozenset[str]]:
    """By step, the sources that its records come from."""
    sources, above = {source.id for source in revision.sources}, dict[str, frozenset[str]]()
    for step in revision.steps:  # in topological order
        ours = frozenset((step.id,)) & sources
        above[step.id] = ours.union(*(above[_id(one)] for one in step.inputs))
    return above


def _upward(revision: Revision) -> tuple[ChannelForm, ...]:
    return tuple(channel for channel in revision.channels if not channel.down)


def _downward(revision: Revision) -> tuple[ChannelForm, ...]:
    return tuple(channel for channel in revision.channels if channel.down)


def _below_deals(revision: Revision) -> tuple[StepForm, ...]:
    """The steps that deal a stream to devices, and all behind them."""
    below: dict[str, StepForm] = {}
    for step in revision.steps:  # in topological order
        if step.kind == "deal" or any(_id(one) in below for one in step.inputs):
            below[step.id] = step
    return tuple(below.values())


def _in_order(old: Revision, new: Revision) -> Iterable[str]:
    """The steps of both, those of the new one first."""
    return dict.fromkeys(step.id for step in (*new.steps, *old.steps))


def _judged(
    name: str,
    was: Mapping[str, StepForm],
    now: Mapping[str, StepForm],
    drop: Collection[str],
    tiers: Collection[str],
) -> StepChange:
    """What becomes of one step."""
    if name not in was:
        return StepChange(name, "attached")
    old = was[name]
    if name not in now:
        return StepChange(name, "removed", state="dropped" if _keeps(old, tiers) else "")
    says = tuple(step_clauses(old, now[name]))
    what: What = "moved" if old.tier != now[name].tier else "replaced" if says else "same"
    if not _keeps(old, tiers):
        return StepChange(name, what, says)
    if name in drop:
        return StepChange(name, "replaced", says, "dropped")
    return StepChange(name, what, says, "refused" if _lost(name, was, now) else "kept")


def _runs_on_devices(name: str, steps: Mapping[str, StepForm]) -> bool:
    return name in steps and steps[name].tier == "edge"


def _keeps(step: StepForm, tiers: Collection[str]) -> bool:
    return step.kind in STATEFUL and step.tier in tiers


def _lost(name: str, was: Mapping[str, StepForm], now: Mapping[str, StepForm]) -> str:
    """Why a step cannot keep its state, as a clause; "" where it does."""
    old, new = was[name], now[name]
    if old.kind != new.kind:
        return "it is of another kind"
    if old.tier != new.tier:
        return "it is elsewhere"
    if _keys(old, was) != _keys(new, now):
        return "its key is another one"
    if old.state != new.state and old.state not in new.migrates:
        return "its state type is another one"
    if old.kind in TASKS:
        return ""
    if old.options != new.options:
        return "its options are others"
    if [was[_id(one)].record for one in old.inputs] != [now[_id(one)].record for one in new.inputs]:
        return "the records that it reads are of another type"
    return ""


def _keys(step: StepForm, steps: Mapping[str, StepForm]) -> list[Any]:
    """What the records are keyed by that a step reads, and the type of that, where it is a field."""
    above = [steps[_id(one)] for one in step.inputs]
    return [(step.key, [(one.key, record_fields(one.record).get(one.key, "")) for one in above])]


def _sentence(step: str, was: Mapping[str, StepForm], now: Mapping[str, StepForm], advice: str) -> str:
    return f"step {step} cannot keep its state, since {_lost(step, was, now)}: {advice.format(step)}"


def _tables(
    there: Mapping[str, TableForm],
    old: Mapping[str, TableForm],
    new: Mapping[str, TableForm],
    evolution: Evolution | None,
) -> tuple[tuple[TableChange, ...], list[str]]:
    """What becomes of the tables, and why it is not to be; there: also those that no step writes any more."""
    found: list[TableChange] = [TableChange(name, "stays") for name in old if name not in new]
    troubles: list[str] = []
    for name, form in new.items():
        former = there.get(name)
        if former is None:
            found.append(TableChange(name, "new"))
        elif former != form:
            trouble, says = _trouble(former, form, evolution), tuple[str, ...]()
            if evolution is not None and not trouble:
                try:
                    says = evolution(name, former, form)
                except GeartrainError as error:
                    trouble = str(error)
            troubles += [f"table {name}: {trouble}"] if trouble else []
            found.append(TableChange(name, "changes", says))
    return tuple(found), troubles


def _trouble(old: TableForm, new: TableForm, evolution: Evolution | None) -> str:
    """What no evolution of columns can do; "" for nothing."""
    another = "give the table another name, and it begins anew beside this one"
    if old.sink != new.sink:
        return f"it was written by a {old.sink}, and would be by a {new.sink}: {another}"
    if old.key != new.key:
        was, now = (", ".join(one.key) or "nothing" for one in (old, new))
        return f"its key was {was}, and would be {now}: {another}"
    if evolution is None:
        return f"its columns would be others: {another}"
    return ""


def _id(source: str) -> str:
    """The step that an input names, without its grouping."""
    return source.partition(":")[0]
