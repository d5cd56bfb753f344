"""Whether a spool may go over to another cut of the flow that it was begun with, and how often it has.

Read as the agent starts, before anything of the new plan is written. Guarantees: a device goes over only
where the steps, their code, the sources and what the channels hold are as they were. What a step keeps is
never left behind, and never begun anew beside what the cloud has of it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec
from msgspec.structs import replace

from geartrain.planning import Plan
from geartrain.revision import Revision, differences
from geartrain.revision.differences import is_named
from geartrain.revision.revision import ChannelForm, StepForm
from geartrain.wire.crossing import Crossing
from geartrain.wire.envelope import BatchKind, Header

_PARTIAL = "partial_aggregate"
"""A step that the planner adds where a cut splits an aggregate; the cloud merges what it has left open."""


NUMBERS = ("_agent", b"crossing")
"""Where the spool keeps `Numbers`."""


class Numbers(msgspec.Struct, frozen=True):
    """How often a device has gone over to another cut or revision of a flow.

    number: of the last crossing, 0 for none; first: the same before the first batch of the spool's epoch;
    unsaid: what stands for 0 in the headers of this spool, whose first batches were made before it knew;
    is_known: ingest has said what the number is; owes: it went over before that, and has to say so then.
    """

    number: int = 0
    first: int = 0
    unsaid: int = 0
    is_known: bool = True
    owes: bool = False

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
        return Numbers(crossing, crossing, crossing)

    def before(self, header: Header) -> int:
        """The number before a batch of the spool."""
        return (header.crossing or self.unsaid) - (header.kind is BatchKind.CROSSING)


def runs(revision: Revision, base_cut: tuple[str, ...]) -> Crossing:
    """What a device runs, as a crossing says it."""
    return Crossing(tuple(sorted(revision.cut)), tuple(sorted(base_cut)), revision.hash)


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


def obstacle(held: Revision, ours: Revision, plan: Plan, state: Collection[tuple[str, bytes]]) -> str:
    """Why a device cannot go over from one cut to another, as a clause; "" where it can.

    plan: of `ours`; state: the cells that the spool holds, by step and key.
    """
    leaves, comes = moved(held, ours)
    cells = Counter(step for step, _ in state)
    for step in sorted(leaves | comes):
        if cells[step]:
            where = (
                "stands on the device and would leave it" if step in leaves else "would come to the device"
            )
            return f"step {step} keeps state for {cells[step]} keys in the spool and {where}"
    for step in sorted(comes):
        operator = plan.graph[step].operator
        if operator.stateful and operator.kind != _PARTIAL:
            return f"step {step} would come to the device, and what it keeps is in the cloud"
    return ""


def moved(held: Revision, ours: Revision) -> tuple[frozenset[str], frozenset[str]]:
    """The steps that leave the device, and those that come to it."""
    was, now = frozenset(held.cut), frozenset(ours.cut)
    return was - now, now - was


def _uncut(revision: Revision, other: Revision, ids: Collection[str]) -> Revision:
    """What of a revision concerns the devices under either cut, as if no cut had been made."""
    forms, others = ({step.id: step for step in one.steps} for one in (revision, other))
    steps = [
        replace(step, tier="edge", inputs=tuple(_made_by(forms, name) for name in step.inputs))
        for step in revision.steps
        if step.id in ids and not (step.kind == _PARTIAL and step.id not in others)
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
