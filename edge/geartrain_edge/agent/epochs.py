"""The epochs of a spool: the first, and a new one when ingest knows another history of the current one.

The agent calls it. Guarantees: a spool continues only with the steps that it was begun with. It goes over to
another cut of them in one commit, which numbers the crossing and announces the new channels. It does not go
over before ingest has heard what it was begun with. A new epoch and all that is queued under it are one
transaction. When a second new epoch is needed within `flip_window_s`, the agent stops.
"""

from __future__ import annotations

import logging
from collections import Counter

import msgspec
from msgspec.structs import replace

from geartrain.planning import Plan
from geartrain.ports import SpoolCommit, SpooledBatch
from geartrain.records.event_time import START_OF_TIME
from geartrain.revision import Revision, differences, in_short, is_mended, way_on
from geartrain.state.claims import ASKS, HAS, claims, lost
from geartrain.wire.envelope import EPOCH_BYTES, Envelope
from geartrain_edge.agent.claiming import give_back, is_answered, marks_of
from geartrain_edge.agent.crossing import (
    CLAIM,
    REVISION,
    Change,
    LastClaim,
    Numbers,
    is_next,
    is_other_cut,
    leaves,
    moved,
    obstacle,
    runs,
)
from geartrain_edge.agent.histories import changed_histories
from geartrain_edge.agent.session import FRESH, HELLO, RENEWED, GoingOver, Kept, Opening, Session
from geartrain_edge.errors import AlarmCode, ChangedFlowError
from geartrain_edge.settings import AgentSettings
from geartrain_edge.spool.gaps import header_of
from geartrain_edge.spool.marking import CROSSED
from geartrain_edge.spool.renewal import FLIP, Flip, Rewriter
from geartrain_edge.spool.sealing import Progress
from geartrain_edge.uplink.uplink import Effects

_LOG = logging.getLogger("geartrain.agent")

CROSS_S = 5.0
"""So long does a crossing wait for the first records behind it. They show whether new code works before the
spool holds what is not for the code before.
"""
_LOOKED_AT = 16
"""Batches of a spool that may be damaged until its first number is taken to be its last."""


async def greet(
    session: Session, effects: Effects, plan: Plan, settings: AgentSettings, revision: Revision
) -> None:
    """Announce the schemas in a fresh epoch; refuse a spool that was begun with another revision.

    One that goes over to another cut or revision does so in a commit of its own, or with the first records
    behind it. If it has not heard yet where it stands, it does so with its first welcome.
    """
    device, mended = settings.device, settings.mended
    session.runs = runs(revision, settings.base_cut, settings.revision)
    state, written = session.image.state, revision.to_json().encode()
    histories = changed_histories(session.image, plan)
    if session.image.last_seq == 0:
        schemas = [session.sealer.announce(session.progress)]
        session.numbers = replace(session.numbers, revision=settings.revision)
        noted = {REVISION: written, HELLO: FRESH, **session.numbers.stored(), **histories}
        await effects.store.commit(SpoolCommit(schemas, state=noted))
        session.backlog.committed(schemas)
        return
    if histories:
        await effects.store.commit(SpoolCommit(state=histories))
    begun = Revision.from_json(state[REVISION])
    if session.claim.says == ASKS or (
        session.claim.says == HAS and not is_answered(session.claim, begun, revision, plan, mended)
    ):
        await give_back(session, effects)
    session.runs = runs(begun, settings.base_cut, session.numbers.revision)
    held, ours = begun.on("edge"), revision.on("edge")
    found, on = differences(held, ours), way_on(held, ours)
    is_next_revision = is_next(begun, revision, session.numbers, settings)
    if not is_next_revision and found and is_mended(held, ours, mended):
        _LOG.warning("device %s: goes on with changed files (%s)", device, in_short(found))
        await effects.store.commit(SpoolCommit(state={REVISION: written}))
        return
    if is_next_revision or (found and is_other_cut(begun, revision, mended)):
        session.change = _prepare(session, plan, settings, begun, revision)
        if session.numbers.is_known:
            await _go_over(session, effects, session.change)
        return
    if found:
        raise ChangedFlowError(
            f"the spool of device {device} was begun with another revision of flow {plan.graph.name} "
            f"({in_short(found)}): run that one until all is acked, or begin anew with a new instance or a "
            f"new state folder{on}"
        )
    if session.goes_further:  # what the device runs and sends stays the same
        await effects.store.commit(SpoolCommit(state={REVISION: written}))


def _prepare(session: Session, plan: Plan, settings: AgentSettings, held: Revision, ours: Revision) -> Change:
    """What the device does to go over from one cut or revision to another; raises `ChangedFlowError`."""
    device, number = settings.device, settings.revision
    gone, comes = moved(held, ours)
    says = [f"{step} leaves the device" for step in sorted(gone)]
    says += [f"{step} comes to it" for step in sorted(comes)]
    is_next_revision = is_next(held, ours, session.numbers, settings)
    if is_next_revision:
        says = differences(replace(held, code=ours.code).on("edge"), ours.on("edge"))
    kind, to = ("revision", f"revision {number}") if is_next_revision else ("cut", "another cut")
    kept = {at: cell for at, cell in session.image.state.items() if at not in session.forgotten}
    is_cut = is_other_cut(held, ours, settings.mended)
    claim = session.claim if session.claim.says == HAS and is_cut else LastClaim()
    if why := obstacle(held, ours, plan, kept, claim.steps, may_leave=is_cut):
        raise ChangedFlowError(
            f"the spool of device {device} was begun with another {kind} of flow {plan.graph.name} "
            f"({in_short(says)}), and cannot go over to this one: {why}; give it the former {kind} again, "
            "or begin anew with a new instance or a new state folder"
        )
    left = leaves(plan, held, ours, settings.base_cut or ours.cut, kept)
    if left.cells:
        keys, size = len(left.cells), sum(map(len, left.cells.values()))
        says.append(f"the state of {keys:,} keys, {size:,} bytes, goes with them")
    said = f"device {device}: flow {plan.graph.name} goes over to {to}: {in_short(says)}"
    runs_then = runs(ours, settings.base_cut, number)
    return Change(ours, runs_then, number, left, claim, said, is_next_revision)


def cross(session: Session, change: Change, numbers: Numbers, before: Progress, after: Progress) -> GoingOver:
    """What a commit begins with by which the device goes over: its batches, and what the spool keeps of it.

    numbers: as the device knows them; before: of the last commit; after: where the splits stand.
    """
    sealer, left, claim = session.sealer, change.left, change.claim
    sealer.crossing = numbers.number
    batches: list[SpooledBatch] = []
    if left.output.batches:  # the last under the former cut: what partial aggregates have put out
        former = sealer.under(left.plan)
        former.has_moved = numbers.has_moved
        batches = former.seal(left.output, before, before)
        sealer.stand_at(batches[-1].seq, batches[-1].digest)
    sealer.has_moved = numbers.has_moved or bool(left.cells)
    kept_by = numbers.revision
    numbers = replace(
        numbers,
        number=numbers.number + 1,
        revision=max(numbers.revision, change.number),
        has_moved=sealer.has_moved,
    )
    here = Progress(before.watermarks, after.positions, before.source_watermarks)
    batches.append(sealer.cross(change.runs, numbers.number, here))
    batches += sealer.moved(left.cells, left.forms, kept_by, here)
    state: Kept = {
        REVISION: change.revision.to_json().encode(),
        **numbers.stored(),
        **dict.fromkeys((*session.forgotten, *left.gone)),
        **session.migrated,
    }
    if claim.says == HAS:  # its cells have come, and count from here on
        batches += sealer.claimed(claims(claim.number, marks_of(session, claim.steps), HAS), here)
        session.claim = claim.settled
        state[CLAIM] = claim.settled.stored()
    dropped = Counter(step for step, _ in session.forgotten)
    counts = {CROSSED: 1, **{f"cells_dropped.{step}": count for step, count in sorted(dropped.items())}}
    return GoingOver(change, SpoolCommit(batches, state=state), counts, numbers)


async def _go_over(session: Session, effects: Effects, change: Change) -> None:
    """Go over in a commit of its own. To another revision, that is the commit of the first records behind it,
    where these come soon.
    """
    going = cross(session, change, session.numbers, session.progress, session.progress)
    waits = change.is_next and not (session.handshake or change.left.gone or session.down)
    due_s = effects.clock.monotonic_s() + (CROSS_S if waits else 0)
    session.going_over = replace(going, due_s=due_s)
    if not waits:
        await go_over(session, effects)


async def go_over(session: Session, effects: Effects) -> None:
    """Commit a crossing that waits, without records behind it; nothing where none waits."""
    if session.going_over is None:
        return
    batches, state = session.with_crossing([], {})
    await effects.store.commit(SpoolCommit(batches, state=state, counters=session.counters.changes()))
    session.committed_crossing()
    session.backlog.committed(batches)


def opened(session: Session, opening: Opening, after: Progress) -> tuple[Numbers, Kept]:
    """The device's crossings, and what the spool says of its epoch, once a commit has noted an opening.

    A device that waits for it to go over does so in that commit. after: where the splits stand then.
    """
    if session.welcome is not opening.welcome:  # a new epoch has begun, and has a welcome of its own to come
        return session.numbers, {HELLO: RENEWED}
    numbers = session.numbers.heard(opening.welcome.crossing)
    if session.change is not None:
        session.going_over = cross(session, session.change, numbers, session.progress, after)
        numbers = session.going_over.numbers
    return numbers, {HELLO: None, **numbers.stored()}


def hello(session: Session, ordinal: int) -> Envelope:
    """The question that opens the spool's epoch."""
    if not session.numbers.is_known:
        return session.sealer.hello(ordinal, fresh=session.runs)
    return session.sealer.hello(ordinal, session.numbers.first)


async def _first_number(session: Session, effects: Effects, acked_seq: int) -> int:
    """The number of crossings before the first batch that is not acked, of which the disk may have damaged
    some.
    """
    for batch in await effects.store.read(acked_seq, _LOOKED_AT):
        header = header_of(batch)
        if header is not None and (header.crossing or not batch.first_seq):
            return session.numbers.before(header)
    return session.numbers.number


async def renew(session: Session, effects: Effects, settings: AgentSettings, why: str) -> None:
    """Begin a new epoch, because ingest knows another history of this one; raises `AlarmError` for the
    second time. An agent at its end has nothing to queue again, and leaves its spool as it is.
    """
    async with session.backlog.lock:
        if session.is_done:
            return
        now_us, window_s = effects.clock.now_us(), settings.uplink.flip_window_s
        alarm = session.uplink.alarmed(AlarmCode.OTHER_HISTORY, why)
        if session.flip.is_recent(now_us, window_s):
            raise alarm
        acked_seq, backlog = session.uplink.acked_seq, session.backlog
        unacked = backlog.last_seq > acked_seq
        numbers = session.numbers
        if numbers.is_known:
            numbers = replace(numbers, first=await _first_number(session, effects, acked_seq))
        who = session.sealer.begin(effects.randomness.token(EPOCH_BYTES))
        # With rows to come that were read long ago, nothing may be said yet of where the device stands.
        said = (session.progress.watermarks, session.progress.source_watermarks)
        channels, sources = (dict.fromkeys(marks, START_OF_TIME) for marks in said)
        nowhere = Progress(channels, {}, sources)
        session.sealer.crossing = numbers.first
        here = nowhere if unacked else session.progress
        session.sealer.has_claimed |= session.may_claim
        first = [session.sealer.announce(here)]
        if session.may_claim:  # a spool that was set back may not know of what the device has claimed since
            first += session.sealer.claimed([lost(session.claim.number)], here)
        session.sealer.crossing = numbers.number
        rewriter = Rewriter(who, first, acked_seq, session.uplink.acked_digest, numbers.unsaid)
        session.uplink_counters.add("epochs_minted")
        handshake = session.handshake or RENEWED
        state = {FLIP: msgspec.json.encode(now_us), HELLO: handshake, **numbers.stored()}
        change = SpoolCommit(state=state, counters=session.uplink_counters.changes())
        tip = await session.uplink.renew(who.epoch, rewriter, change)
        session.intake.epoch = who.epoch
        session.flip, session.handshake, session.welcome = Flip(now_us), handshake, None
        session.numbers = numbers
        session.sealer.stand_at(tip.last_seq, tip.digest)
        for channel, count in rewriter.damaged.items():
            session.uplink_counters.add(f"rows_damaged.{channel}", count)
    _LOG.warning("device %s: goes on in the new epoch %s", who.device, who.epoch.hex())
