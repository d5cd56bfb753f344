"""The epochs of a spool: the first, and a new one when ingest knows another history of the current one.

The agent calls it. Guarantees: a spool continues only with the steps that it was begun with. It goes over to
another cut of them in one commit, which numbers the crossing and announces the new channels. A new epoch and
all that is queued under it are one transaction. When a second new epoch is needed within `flip_window_s`, the
agent stops.
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
from geartrain.state.claims import ASKS, HAS, claims
from geartrain.wire.envelope import EPOCH_BYTES, Envelope, Welcome
from geartrain_edge.agent.claiming import give_back, marks_of
from geartrain_edge.agent.crossing import (
    CLAIM,
    REVISION,
    LastClaim,
    Leaves,
    Numbers,
    is_next,
    is_other_cut,
    leaves,
    moved,
    obstacle,
    runs,
)
from geartrain_edge.agent.session import FRESH, HELLO, RENEWED, GoingOver, Session
from geartrain_edge.errors import ChangedFlowError
from geartrain_edge.settings import AgentSettings
from geartrain_edge.spool.backlog import Identity
from geartrain_edge.spool.gaps import header_of
from geartrain_edge.spool.marking import CROSSED
from geartrain_edge.spool.renewal import FLIP, Flip, Rewriter
from geartrain_edge.spool.sealing import Progress, Sealer
from geartrain_edge.uplink.uplink import Effects

_LOG = logging.getLogger("geartrain.agent")

_LAYOUT = ("_agent", b"layout")
"""Where a spool of 0.2.0 has its steps and channels instead."""
CROSS_S = 5.0
"""So long does a crossing wait for the first records behind it. They show whether new code works before the
spool holds what is not for the code before.
"""
_LOOKED_AT = 16
"""Batches of a spool that may be damaged until its first number is taken to be its last."""


async def greet(
    session: Session, effects: Effects, plan: Plan, settings: AgentSettings, revision: Revision
) -> None:
    """Announce the schemas in a fresh epoch, and again where the spool goes over to another cut or revision;
    refuse one that was begun with another revision.
    """
    device, mended = settings.device, settings.mended
    session.runs = runs(revision, settings.base_cut, settings.revision)
    state, written = session.image.state, revision.to_json().encode()
    if session.image.last_seq == 0:
        schemas = [session.sealer.announce(session.progress)]
        session.numbers = replace(session.numbers, revision=settings.revision)
        noted = {REVISION: written, HELLO: FRESH, **session.numbers.stored()}
        await effects.store.commit(SpoolCommit(schemas, state=noted))
        session.backlog.committed(schemas)
        return
    if REVISION in state:
        if session.claim.says == ASKS or (
            session.claim.says == HAS and state[REVISION] == written  # it stays with the former steps
        ):
            await give_back(session, effects)
        begun = Revision.from_json(state[REVISION])
        held, ours = begun.on("edge"), revision.on("edge")
        found, on = differences(held, ours), way_on(held, ours)
        if is_next(begun, revision, session.numbers, settings):
            await _cross(session, effects, plan, settings, (begun, revision))
            return
        if found and is_mended(held, ours, mended):
            _LOG.warning("device %s: goes on with changed files (%s)", device, in_short(found))
            await effects.store.commit(SpoolCommit(state={REVISION: written}))
            return
        if found and is_other_cut(begun, revision, mended):
            await _cross(session, effects, plan, settings, (begun, revision))
            return
    else:
        on = ""
        found = _differences_of_layouts(msgspec.json.decode(state.get(_LAYOUT, b"null")), plan)
    if found:
        raise ChangedFlowError(
            f"the spool of device {device} was begun with another revision of flow {plan.graph.name} "
            f"({in_short(found)}): run that one until all is acked, or begin anew with a new instance or a "
            f"new state folder{on}"
        )
    if REVISION not in state:
        await effects.store.commit(SpoolCommit(state={REVISION: written, _LAYOUT: None}))


async def _cross(
    session: Session,
    effects: Effects,
    plan: Plan,
    settings: AgentSettings,
    revisions: tuple[Revision, Revision],
) -> None:
    """Go over from one cut or revision to another in one commit; raises `ChangedFlowError`.

    To another revision, that is the commit of the first records behind it, where these come soon.
    """
    held, ours = revisions
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
    numbers, sealer = replace(session.numbers, revision=max(session.numbers.revision, number)), session.sealer
    batches = _put_out(session, settings, left)
    if left.cells:
        numbers, sealer.has_moved = replace(numbers, has_moved=True), True
        keys, size = len(left.cells), sum(map(len, left.cells.values()))
        says.append(f"the state of {keys:,} keys, {size:,} bytes, goes with them")
    if numbers.is_known:
        numbers = replace(numbers, number=numbers.number + 1)
        batches.append(sealer.cross(session.runs, numbers.number, session.progress))
    else:  # it has no number yet, and ingest may have heard of the former cut
        numbers = replace(numbers, owes=True)
        batches.append(sealer.announce(session.progress))
    batches += sealer.moved(left.cells, session.progress)
    says_of_claim, kept_of_claim = _settled(session, claim)
    batches += says_of_claim
    state: dict[tuple[str, bytes], bytes | None] = {
        REVISION: ours.to_json().encode(),
        **numbers.stored(),
        **dict.fromkeys((*session.forgotten, *left.gone)),
        **kept_of_claim,
        **session.migrated,
    }
    dropped = Counter(step for step, _ in session.forgotten)
    counts = {CROSSED: 1, **{f"cells_dropped.{step}": count for step, count in sorted(dropped.items())}}
    waits = is_next_revision and not (session.handshake or left.gone or session.down)
    due_s = effects.clock.monotonic_s() + (CROSS_S if waits else 0)
    session.going_over = GoingOver(SpoolCommit(batches, state=state), counts, numbers, due_s)
    _LOG.warning("device %s: flow %s goes over to %s: %s", device, plan.graph.name, to, in_short(says))
    if not waits:
        await go_over(session, effects)


def _settled(
    session: Session, claim: LastClaim
) -> tuple[list[SpooledBatch], dict[tuple[str, bytes], bytes | None]]:
    """What a crossing's commit says and keeps of the claim whose cells have come; nothing for another one."""
    if claim.says != HAS:
        return [], {}
    session.claim = claim.settled
    said = claims(claim.number, marks_of(session, claim.steps), HAS)
    return session.sealer.claimed(said, session.progress), {CLAIM: claim.settled.stored()}


async def go_over(session: Session, effects: Effects) -> None:
    """Commit a crossing that waits, without records behind it; nothing where none waits."""
    if session.going_over is None:
        return
    batches, state = session.with_crossing([], {})
    await effects.store.commit(SpoolCommit(batches, state=state, counters=session.counters.changes()))
    session.committed_crossing()
    session.backlog.committed(batches)


def _put_out(session: Session, settings: AgentSettings, left: Leaves) -> list[SpooledBatch]:
    """The last batches under the former cut: what partial aggregates have put out."""
    if not left.output.batches:
        return []
    sealer, image = session.sealer, session.image
    who = Identity(settings.device, left.plan.graph.name, image.epoch)
    former = Sealer(left.plan, who, image.last_seq, image.digest, settings.limits, session.counters)
    former.crossing, former.has_moved = session.numbers.number, session.numbers.has_moved
    batches = former.seal(left.output, session.progress, session.progress)
    sealer.stand_at(batches[-1].seq, batches[-1].digest)
    return batches


def hear_number(session: Session, welcome: Welcome, progress: Progress) -> tuple[Numbers, list[SpooledBatch]]:
    """The device's crossings after its epoch was opened, and the batch of the one that it still owes."""
    owes, numbers = session.numbers.owes, session.numbers.heard(welcome.crossing)
    if not (owes and numbers.number):
        return numbers, []
    numbers = replace(numbers, number=numbers.number + 1)
    return numbers, [session.sealer.cross(session.runs, numbers.number, progress)]


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
        await go_over(session, effects)
        now_us, window_s = effects.clock.now_us(), settings.uplink.flip_window_s
        alarm = session.uplink.alarmed(why)
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
        first = session.sealer.announce(nowhere if unacked else session.progress)
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


def _differences_of_layouts(kept: object, plan: Plan) -> list[str]:
    """What differs from the steps and channels that a spool of 0.2.0 notes."""
    if not isinstance(kept, dict):
        return ["it does not say which"]
    layout: dict[str, object] = {
        "steps": list(plan.edge),
        "channels": {channel.id: channel.schema.schema_id for channel in plan.channels},
    }
    if plan.down:
        layout["down"] = {channel.id: channel.schema.schema_id for channel in plan.down}
    return [
        f"its {name} were {kept.get(name)} and are now {layout[name]}"
        for name in layout
        if kept.get(name) != layout[name]
    ]
