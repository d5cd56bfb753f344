"""How an agent gets what the cloud keeps of steps that are to come to its device.

It runs the former steps until it has that. Once it is in contact, it commits a claim and reads nothing more
until the cells are there. Then they are committed, and the session ends; the next one goes over to the new
steps with them. Where they do not come in time, it says that it goes on without, and claims again later. If
more comes than moves at once, it claims no more in this life.

Guarantees: between a claim and what the device says next of it, nothing that it has read enters its spool. A
claim that a former life has left open is given back before anything else is sent. Cells are committed wholly,
or not at all. A fresh spool may be that of a device that has lost its disk, so it claims like any other. It
never gives a claim a number that the device has used.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection

from msgspec import structs

from geartrain.errors import StepError
from geartrain.planning import Plan
from geartrain.ports import Clock, SpoolCommit, SpoolImage
from geartrain.records.event_time import END_OF_TIME
from geartrain.revision import Revision, revision_of
from geartrain.state.claims import ASKS, BACK, HAS, GivenCell, Taking, claims
from geartrain_edge.agent.crossing import (
    CLAIM,
    REVISION,
    Cell,
    LastClaim,
    as_cut,
    is_other_cut,
    moved,
)
from geartrain_edge.agent.session import Session
from geartrain_edge.settings import AgentSettings
from geartrain_edge.uplink.uplink import Effects

_LOG = logging.getLogger("geartrain.agent")

AGAIN_S, AGAIN_S_MAX = 30.0, 1_800.0
"""After so long a claim that was given up is made again, and twice as long after each."""
NEVER_S = math.inf
"""When one is made again for which more came than moves at once."""
BEHIND_MAX = 16
"""Batches that may wait for their acks when a claim is made."""
_NUMBER_BYTES = 6
"""Of a claim's number, which is drawn: a spool that was lost or set back does not know which were used, and
the device would take what it was given before for an answer to its next claim.
"""


class Claiming:
    """What one session has to claim."""

    def __init__(
        self, former: Plan, held: Revision, steps: tuple[str, ...], clock: Clock, settings: AgentSettings
    ) -> None:
        """former: the plan that runs until then; held: its revision; steps: those that come with state."""
        self.former, self.held, self.steps = former, held, steps
        self._clock, self._wait_s, self._again_s = clock, settings.claim_ms / 1_000, AGAIN_S
        self._cells_max, self._revision = settings.claim_cells_max, settings.revision
        self._due_s = clock.monotonic_s()
        self._taking: Taking | None = None
        self._until_s = 0.0

    @staticmethod
    def of(
        image: SpoolImage, plan: Plan, ours: Revision, settings: AgentSettings, clock: Clock
    ) -> Claiming | None:
        """What has to be claimed before a spool goes over to `ours`, of which `plan` is; None for nothing."""
        is_fresh = image.last_seq == 0 and bool(settings.base_cut)
        if plan.whole is None or not (is_fresh or REVISION in image.state):
            return None
        from geartrain.planning import make_plan  # few agents plan

        base = as_cut(settings.base_cut or ours.cut)
        if is_fresh:  # the cloud may keep state of the device from before: it begins with the app's cut
            begun = make_plan(plan.whole, base, base=base)
            held = revision_of(ours.flow, begun, ours.settings, ours.code, ours.geartrain)
        else:
            held = Revision.from_json(image.state[REVISION])
        steps = steps_to_claim(held, ours, plan)
        if not steps or not is_other_cut(held, ours, settings.mended):
            return None
        kept = LastClaim.of(image.state.get(CLAIM))
        if is_answered(kept, held, ours, plan, settings.mended):
            return None
        if is_fresh:
            from geartrain.planning.mixed import claimable

            if not claimable(plan.graph).keys() >= set(steps):
                return None  # the app has begun with this cut: no step comes that cannot be claimed
        former = make_plan(plan.whole, held.cut, base=base)
        return Claiming(former, held, steps, clock, settings)

    def is_due(self, session: Session) -> bool:
        """Whether to claim now: the device is in contact, and did not try it a moment ago."""
        backlog = session.backlog
        in_contact = session.uplink.connected and not session.handshake
        is_close = 0 < backlog.last_seq <= backlog.acked_seq + BEHIND_MAX
        return in_contact and is_close and self._clock.monotonic_s() >= self._due_s

    @property
    def waits(self) -> bool:
        """Whether cells may still come of what was claimed last."""
        taking = self._taking
        return (
            taking is not None
            and not taking.complete
            and not taking.refused
            and self._clock.monotonic_s() < self._until_s
        )

    async def claim(self, session: Session, effects: Effects) -> None:
        """Commit a claim; what is given for it is taken from now on."""
        number = _new_number(session, effects)
        self._taking, now_s = Taking(number, self.steps, self._cells_max), self._clock.monotonic_s()
        self._until_s = now_s + self._wait_s
        self._due_s, self._again_s = self._until_s + self._again_s, min(2 * self._again_s, AGAIN_S_MAX)
        await _say(session, effects, LastClaim(number, self.steps, ASKS))
        session.counters.add("claims")

    def take(self, given: GivenCell) -> None:
        """Take a record that came down."""
        if self._taking is None:
            return
        try:
            self._taking.take(given)
        except StepError as error:
            self._taking.refused = str(error)

    async def settle(self, session: Session, effects: Effects, device: str) -> bool:
        """Commit what has come, or say that the device goes on without it; whether it has come."""
        taking, self._taking = self._taking, None
        if taking is None:
            return False
        from geartrain.operators.process import forms_of  # few agents claim

        ours = forms_of(self.former.graph, self.steps)
        later = {step for step, number in taking.began.items() if 0 < self._revision < number}
        other = sorted(later | {step for step, form in taking.forms.items() if ours.get(step, form) != form})
        if taking.complete and not taking.refused and not other:
            cells = taking.cells()
            kept = LastClaim(taking.number, self.steps, HAS, taking.began)
            session.counters.add("cells_taken", len(cells))
            counters = session.counters.changes()
            change = SpoolCommit(state={**cells, CLAIM: kept.stored()}, counters=counters)
            await effects.store.commit(change)
            size = sum(map(len, cells.values()))
            _LOG.warning(
                "device %s: the state of %d keys, %d bytes, has come with %s",
                *(device, len(cells), size, ", ".join(self.steps)),
            )
            return True
        why = taking.refused or f"it did not come within {self._wait_s:g} s"
        if other:
            why = f"the data centre keeps {', '.join(other)} as a later revision does"
        session.unmoved = why
        if taking.is_too_large():
            self._due_s, session.claims_no_more = NEVER_S, True
            session.counters.add("claims_too_large")
        _LOG.warning(
            "device %s: goes on without %s, whose state is in the data centre: %s",
            *(device, ", ".join(self.steps), why),
        )
        session.counters.add("claims_given_up")
        await _say(session, effects, LastClaim(taking.number, self.steps, BACK))
        return False


def steps_to_claim(held: Revision, ours: Revision, plan: Plan) -> tuple[str, ...]:
    """The steps that come to the device and keep state in the cloud."""
    _, comes = moved(held, ours)
    if not comes:
        return ()
    from geartrain.planning.splitting import PARTIAL  # it imports every aggregate

    stateful = [step for step in plan.graph.steps if step.id in comes and step.operator.stateful]
    return tuple(step.id for step in stateful if step.operator.kind != PARTIAL)


def is_answered(claim: LastClaim, held: Revision, ours: Revision, plan: Plan, mended: str) -> bool:
    """Whether the cells of a claim are there with which a spool of `held` goes over to `ours`: those of all
    steps that come, and of no other. plan: of `ours`.
    """
    is_ours = claim.says == HAS and is_other_cut(held, ours, mended)
    return is_ours and claim.steps == steps_to_claim(held, ours, plan)


async def give_back(session: Session, effects: Effects) -> None:
    """Say of a claim that a former life has left open that nothing comes of it."""
    kept = session.claim
    if kept.says in (ASKS, HAS):
        state = session.image.state
        gone = [cell for cell in state if kept.says == HAS and cell[0] in kept.steps]
        await _say(session, effects, LastClaim(kept.number, kept.steps, BACK), gone)
        stays = {cell: value for cell, value in state.items() if cell not in gone}
        session.image = structs.replace(session.image, state=stays)


def _new_number(session: Session, effects: Effects) -> int:
    """That of a claim, other than the last one of the spool, and than those that it does not know of."""
    drawn = 1 + int.from_bytes(effects.randomness.token(_NUMBER_BYTES))
    return drawn if drawn != session.claim.number else drawn + 1


async def _say(session: Session, effects: Effects, kept: LastClaim, gone: Collection[Cell] = ()) -> None:
    async with session.backlog.lock:
        sealer, progress = session.sealer, session.progress
        batches = [] if sealer.has_claimed else [sealer.first_claim(progress)]
        batches += sealer.claimed(claims(kept.number, marks_of(session, kept.steps), kept.says), progress)
        state = {CLAIM: kept.stored(), **dict.fromkeys(gone)}
        await effects.store.commit(SpoolCommit(batches, state=state, counters=session.counters.changes()))
        session.claim = kept
        session.backlog.committed(batches)
        session.uplink.come_first()


def marks_of(session: Session, steps: Collection[str]) -> dict[str, int]:
    """How far the sources above some steps are, as the device has said, microseconds."""
    said, above = session.progress.source_watermarks, session.fragment.graph.sources_above()
    return {
        step: min((said[source] for source in above.get(step, ()) if source in said), default=END_OF_TIME)
        for step in steps
    }
