"""The epochs of a spool: what begins the first one, and what takes the place of one that ingest knows
otherwise.

Beside the agent. Guarantees: a spool goes on only with the steps and channels that it was begun with; a new
epoch and all that is queued under it are one transaction; a second one within `flip_window_s` stops the
agent.
"""

from __future__ import annotations

import logging

import msgspec

from geartrain.planning import Plan
from geartrain.ports import SpoolCommit
from geartrain.records.event_time import START_OF_TIME
from geartrain.wire.envelope import EPOCH_BYTES
from geartrain_edge.agent.session import FRESH, HELLO, RENEWED, Session
from geartrain_edge.errors import ChangedFlowError
from geartrain_edge.settings import AgentSettings
from geartrain_edge.spool.renewal import FLIP, Flip, Rewriter
from geartrain_edge.spool.sealing import Progress
from geartrain_edge.uplink.uplink import Effects

_LOG = logging.getLogger("geartrain.agent")

_LAYOUT = ("_agent", b"layout")
"""Where the spool keeps what it was begun with; no step's id begins with `_`."""


async def greet(life: Session, effects: Effects, plan: Plan, device: str) -> None:
    """Announce the schemas in a fresh epoch; refuse a spool that was begun with others."""
    channels = {channel.id: channel.schema.schema_id for channel in plan.channels}
    layout: dict[str, object] = {"steps": list(plan.edge), "channels": channels}
    if plan.down:
        layout["down"] = {channel.id: channel.schema.schema_id for channel in plan.down}
    if life.image.last_seq == 0:
        schemas = [life.sealer.announce(life.progress)]
        state = {_LAYOUT: msgspec.json.encode(layout), HELLO: FRESH}
        await effects.store.commit(SpoolCommit(schemas, {}, state))
        life.backlog.committed(schemas)
    elif (kept := msgspec.json.decode(life.image.state.get(_LAYOUT, b"null"))) != layout:
        raise ChangedFlowError(
            f"the spool of device {device} was begun with another version of flow "
            f"{plan.graph.name} or another cut ({_difference(kept, layout)}): run that one until "
            "all is acked, or give this one a new state folder"
        )


async def renew(life: Session, effects: Effects, settings: AgentSettings, why: str) -> None:
    """Begin a new epoch, because ingest knows another history of this one; raises `AlarmError` for the
    second time. An agent at its end has nothing to queue again, and leaves its spool as it is.
    """
    async with life.backlog.lock:
        if life.is_done:
            return
        now_us, window_s = effects.clock.now_us(), settings.uplink.flip_window_s
        alarm = life.uplink.alarmed(why)
        if life.flip.is_recent(now_us, window_s):
            raise alarm
        acked_seq, backlog = life.uplink.acked_seq, life.backlog
        unacked = backlog.last_seq > acked_seq
        who = life.sealer.begin(effects.randomness.token(EPOCH_BYTES))
        # With rows to come that were read long ago, nothing may be said yet of where the device stands.
        nowhere = Progress(dict.fromkeys(life.progress.watermarks, START_OF_TIME), {})
        first = life.sealer.announce(nowhere if unacked else life.progress)
        rewriter = Rewriter(who, first, acked_seq, life.uplink.acked_digest)
        life.uplink_counters.add("epochs_minted")
        greeting = life.greeting or RENEWED
        state = {FLIP: msgspec.json.encode(now_us), HELLO: greeting}
        change = SpoolCommit(state=state, counters=life.uplink_counters.changes())
        tip = await life.uplink.renew(who.epoch, rewriter, change)
        life.intake.epoch = who.epoch
        life.flip, life.greeting, life.welcome = Flip(now_us), greeting, None
        life.sealer.stand_at(tip.last_seq, tip.digest)
        for channel, count in rewriter.damaged.items():
            life.uplink_counters.add(f"rows_damaged.{channel}", count)
    _LOG.warning("device %s: goes on in the new epoch %s", who.device, who.epoch.hex())


def _difference(kept: object, layout: dict[str, object]) -> str:
    if not isinstance(kept, dict):
        return "it does not say which"
    return "; ".join(
        f"{name}: {kept.get(name)} and now {layout[name]}"
        for name in layout
        if kept.get(name) != layout[name]
    )
