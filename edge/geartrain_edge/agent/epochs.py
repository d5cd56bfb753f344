"""The epochs of a spool: the first, and a new one when ingest knows another history of the current one.

The agent calls it. Guarantees: a spool continues only with the steps that it was begun with. It goes over to
another cut of them in one commit, which announces the new channels. A new epoch and all that is queued under
it are one transaction. When a second new epoch is needed within
`flip_window_s`, the agent stops.
"""

from __future__ import annotations

import logging

import msgspec

from geartrain.planning import Plan
from geartrain.ports import SpoolCommit
from geartrain.records.event_time import START_OF_TIME
from geartrain.revision import Revision, differences, in_short, is_mended, way_on
from geartrain.wire.envelope import EPOCH_BYTES
from geartrain_edge.agent.crossing import is_other_cut, moved, obstacle
from geartrain_edge.agent.session import FRESH, HELLO, RENEWED, Session
from geartrain_edge.errors import ChangedFlowError
from geartrain_edge.settings import AgentSettings
from geartrain_edge.spool.renewal import FLIP, Flip, Rewriter
from geartrain_edge.spool.sealing import Progress
from geartrain_edge.uplink.uplink import Effects

_LOG = logging.getLogger("geartrain.agent")

_REVISION = ("_agent", b"revision")
"""Where the spool keeps the revision that it was begun with; no step's id begins with `_`."""
_LAYOUT = ("_agent", b"layout")
"""Where a spool of 0.2.0 has its steps and channels instead."""


async def greet(
    session: Session, effects: Effects, plan: Plan, settings: AgentSettings, revision: Revision
) -> None:
    """Announce the schemas in a fresh epoch, and again where the spool goes over to another cut; refuse one
    that was begun with another revision.
    """
    device, mended = settings.device, settings.mended
    state, written = session.image.state, revision.to_json().encode()
    if session.image.last_seq == 0:
        schemas = [session.sealer.announce(session.progress)]
        await effects.store.commit(SpoolCommit(schemas, {}, {_REVISION: written, HELLO: FRESH}))
        session.backlog.committed(schemas)
        return
    if _REVISION in state:
        begun = Revision.from_json(state[_REVISION])
        held, ours = begun.on("edge"), revision.on("edge")
        found, on = differences(held, ours), way_on(held, ours)
        if found and is_mended(held, ours, mended):
            _LOG.warning("device %s: goes on with changed files (%s)", device, in_short(found))
            await effects.store.commit(SpoolCommit(state={_REVISION: written}))
            return
        if found and is_other_cut(begun, revision, mended):
            await _cross(session, effects, plan, device, (begun, revision))
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
    if _REVISION not in state:
        await effects.store.commit(SpoolCommit(state={_REVISION: written, _LAYOUT: None}))


async def _cross(
    session: Session, effects: Effects, plan: Plan, device: str, revisions: tuple[Revision, Revision]
) -> None:
    """Go over from one revision to another of the same steps in one commit; raises `ChangedFlowError`."""
    held, ours = revisions
    leaves, comes = moved(held, ours)
    says = [f"{step} leaves the device" for step in sorted(leaves)]
    says += [f"{step} comes to it" for step in sorted(comes)]
    if why := obstacle(held, ours, plan, session.image.state):
        raise ChangedFlowError(
            f"the spool of device {device} was begun with another cut of flow {plan.graph.name} "
            f"({in_short(says)}), and cannot go over to this one: {why}; give it the former cut again, "
            "or begin anew with a new instance or a new state folder"
        )
    schemas = [session.sealer.announce(session.progress)]
    await effects.store.commit(SpoolCommit(schemas, state={_REVISION: ours.to_json().encode()}))
    session.backlog.committed(schemas)
    _LOG.warning("device %s: flow %s goes over to another cut: %s", device, plan.graph.name, in_short(says))


async def renew(session: Session, effects: Effects, settings: AgentSettings, why: str) -> None:
    """Begin a new epoch, because ingest knows another history of this one; raises `AlarmError` for the
    second time. An agent at its end has nothing to queue again, and leaves its spool as it is.
    """
    async with session.backlog.lock:
        if session.is_done:
            return
        now_us, window_s = effects.clock.now_us(), settings.uplink.flip_window_s
        alarm = session.uplink.alarmed(why)
        if session.flip.is_recent(now_us, window_s):
            raise alarm
        acked_seq, backlog = session.uplink.acked_seq, session.backlog
        unacked = backlog.last_seq > acked_seq
        who = session.sealer.begin(effects.randomness.token(EPOCH_BYTES))
        # With rows to come that were read long ago, nothing may be said yet of where the device stands.
        said = (session.progress.watermarks, session.progress.source_watermarks)
        channels, sources = (dict.fromkeys(marks, START_OF_TIME) for marks in said)
        nowhere = Progress(channels, {}, sources)
        first = session.sealer.announce(nowhere if unacked else session.progress)
        rewriter = Rewriter(who, first, acked_seq, session.uplink.acked_digest)
        session.uplink_counters.add("epochs_minted")
        handshake = session.handshake or RENEWED
        state = {FLIP: msgspec.json.encode(now_us), HELLO: handshake}
        change = SpoolCommit(state=state, counters=session.uplink_counters.changes())
        tip = await session.uplink.renew(who.epoch, rewriter, change)
        session.intake.epoch = who.epoch
        session.flip, session.handshake, session.welcome = Flip(now_us), handshake, None
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
