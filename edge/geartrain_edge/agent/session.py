"""A session of the agent: all that exists while its spool is open, built from what the spool says.

The agent drives it, and it holds the parts of a record's path on the device. Guarantees: each part starts
where the last commit ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from geartrain.errors import USER_ERRORS, FlowError, GeartrainError
from geartrain.graph.conform import describe
from geartrain.planning import Plan
from geartrain.ports import Clock, SpoolCommit, SpooledBatch, SpoolImage
from geartrain.runtime.fragment import Fragment
from geartrain.state.claims import GivenCell
from geartrain.state.keyed import DictBackend
from geartrain.wire.crossing import Crossing
from geartrain.wire.envelope import Welcome
from geartrain_edge.agent.batch_size import BatchSize
from geartrain_edge.agent.crossing import (
    CLAIM,
    NUMBERS,
    Cell,
    Change,
    LastClaim,
    Numbers,
    forgotten,
    migrated,
)
from geartrain_edge.settings import AgentSettings
from geartrain_edge.sources.intake import Intake
from geartrain_edge.sources.notes import NOTES
from geartrain_edge.sources.untimed import UNTIMED
from geartrain_edge.spool.admission import DECLARED, Admission
from geartrain_edge.spool.backlog import Backlog, Counters, Identity
from geartrain_edge.spool.renewal import FLIP, Flip
from geartrain_edge.spool.sealing import Positions, Sealer
from geartrain_edge.spool.shedding import Shedder
from geartrain_edge.uplink.priority import Turn
from geartrain_edge.uplink.uplink import Effects, Uplink

if TYPE_CHECKING:
    from geartrain_edge.downlink.downlink import Down
    from geartrain_edge.sinks.delivering import LineFiles

_LOG = logging.getLogger("geartrain.agent")

HELLO = ("_agent", b"hello")
"""There while an epoch does not know that it is open."""
FRESH, RENEWED = b"pending", b"renewed"
"""What stands there: a fresh spool has to hear where its device stands, one in a new epoch knows."""

Kept = dict[tuple[str, bytes], bytes | None]
"""What a commit writes of the spool's state."""


class Opening(msgspec.Struct, frozen=True):
    """An epoch was opened: what was heard, and where the splits that had to wait for it stand now."""

    welcome: Welcome
    positions: Positions


class GoingOver(msgspec.Struct, frozen=True):
    """A crossing that is to be committed, with the first records behind it where it waits for them.

    to: what it is to; change: what it writes; counts: what it raises of the counters; numbers: the device's
    crossings then; due_s: when it is committed without any records, seconds of the monotonic clock.
    """

    to: Change
    change: SpoolCommit
    counts: dict[str, int]
    numbers: Numbers
    due_s: float = 0.0


class Session:
    """What stands while the spool is open.

    progress: that of the last commit with batches; committed: that of the last one; numbers: the device's
    crossings, as the last commit has them; runs: what its hello says that the spool was begun with; change:
    how it is to go over, None where it is not, or has; handshake: what the spool says of its epoch, one of
    `FRESH`, `RENEWED` and nothing; forgotten: the cells that it leaves behind as it goes over to another
    revision; migrated: those that become others then; welcome: what ingest has answered and no commit holds
    yet; heard: set with it; going_over: a crossing that is made and no commit holds yet; is_done: all is
    acked, and nothing comes any more; disk_is_low: the spool may not grow to its cap, because its disk is
    nearly full; unmoved: why the state did not come that it has claimed last; claims_no_more: it would not
    come either if it were claimed again; may_claim: whether it claims state of the cloud, or has;
    goes_further: once it has gone over, there is another crossing to make.
    """

    def __init__(
        self,
        settings: AgentSettings,
        plan: Plan,
        effects: Effects,
        turn: Turn,
        files: LineFiles | None,
        intake: Intake,
        image: SpoolImage,
        given: Callable[[GivenCell], None] | None = None,
    ) -> None:
        """Make the parts where the spool's last commit has left them; given: gets what comes down for its
        claims. Raises `FlowError` where the flow's tasks cannot start.
        """
        self.image, self.intake = image, intake
        self.handshake = FRESH if image.last_seq == 0 else image.state.get(HELLO, b"")
        self.welcome: Welcome | None = None
        self.heard, self.unmoved = asyncio.Event(), ""
        self.going_over: GoingOver | None = None
        self.is_done = self.disk_is_low = self.goes_further = self.claims_no_more = False
        intake.restore(image.positions, image.state, hold=self.handshake == FRESH)
        intake.epoch = image.epoch
        is_fresh = self.handshake == FRESH
        self.forgotten, self.migrated = _changes(image.state, plan, settings, is_fresh=is_fresh)
        goes_on = replace(image, state={**image.state, **self.migrated})
        self.fragment = _fragment(plan, effects, goes_on, self.forgotten)
        self.backlog = backlog = Backlog(image, settings.spool_bytes_max)
        # Apart, because those of the intake are true only with the commit that they belong to.
        self.counters, self.uplink_counters = Counters(image.counters), Counters(image.counters)
        self.counters.add("records_untimed_dropped", intake.untimed.restore(image.state))
        who = Identity(settings.device, plan.graph.name, image.epoch)
        # A trim is a sync like any other.
        seldom = replace(settings.uplink, trim_rest_ms=settings.durability_ms)
        self.uplink = uplink = Uplink(
            seldom,
            who,
            effects,
            backlog,
            self.uplink_counters,
            turn,
            is_open=not self.handshake,
        )
        self.sealer = Sealer(plan, who, image.last_seq, image.digest, settings.limits, self.counters)
        self.numbers = Numbers.of(image.state.get(NUMBERS), is_fresh=is_fresh)
        self.sealer.crossing, self.sealer.has_moved = self.numbers.number, self.numbers.has_moved
        self.claim = LastClaim.of(image.state.get(CLAIM))
        self.sealer.has_claimed = self.claim.number > 0
        self.runs = Crossing()
        self.change: Change | None = None
        shedder = Shedder(who, effects.store, backlog, self.counters, lambda: uplink.acked_seq)
        self.admission = Admission(settings, backlog, self.counters, shedder, image.state.get(DECLARED))
        self.may_claim = claims = given is not None or self.claim.number > 0
        beside = (self.fragment, self.counters, effects.clock, files)
        self.down = _down(settings, plan, image, *beside, claims=claims)
        if self.down is not None:
            self.down.given = given
            uplink.beside.append(self.down)
        self.progress = self.committed = intake.progress()
        self.flip = Flip.of(image.state.get(FLIP))
        self.batch_size = BatchSize(settings.records_max)

    @property
    def has_news(self) -> bool:
        """Whether something came that a commit must not be kept waiting for: the answer to a fresh epoch."""
        return self.welcome is not None

    def with_crossing(self, batches: list[SpooledBatch], state: Kept) -> tuple[list[SpooledBatch], Kept]:
        """What a commit of these writes, where a crossing waits for it; it raises the counters of that."""
        going = self.going_over
        if going is None:
            return batches, state
        self.counters.take(going.counts)
        return [*going.change.batches, *batches], {**going.change.state, **state}

    def committed_crossing(self) -> None:
        """Note that a commit holds the crossing that was to be, where one was."""
        going, self.going_over = self.going_over, None
        if going is not None:
            self.numbers, self.runs, self.change = going.numbers, going.to.runs, None
            _LOG.warning("%s", going.to.said)


def _fragment(plan: Plan, effects: Effects, image: SpoolImage, without: Collection[Cell]) -> Fragment:
    """The steps of the device with what the spool has of them, but for the cells `without`."""
    kept = {
        at: value for at, value in image.state.items() if at[0] not in (UNTIMED, NOTES) and at not in without
    }
    state = DictBackend(kept)
    try:
        clock, randomness = effects.clock, effects.randomness
        return Fragment(plan.graph, plan.edge, state, clock=clock, randomness=randomness, names=plan.names)
    except GeartrainError:
        raise
    except USER_ERRORS as error:
        raise FlowError(f"flow {plan.graph.name}: its tasks cannot start: {describe(error)}") from error


def _changes(
    state: Mapping[Cell, bytes], plan: Plan, settings: AgentSettings, *, is_fresh: bool
) -> tuple[Collection[Cell], dict[Cell, bytes]]:
    """The cells that go where the device goes over to another revision, and those that are made anew."""
    gone = forgotten(state, plan, settings, is_fresh=is_fresh)
    brought = migrated(state, plan, settings, is_fresh=is_fresh)
    made = {cell: new for cell, new in brought.items() if new is not None and cell not in gone}
    return gone | {cell for cell, new in brought.items() if new is None}, made


def _down(
    settings: AgentSettings,
    plan: Plan,
    image: SpoolImage,
    fragment: Fragment,
    counters: Counters,
    clock: Clock,
    files: LineFiles | None,
    *,
    claims: bool,
) -> Down | None:
    """What a flow needs in which something comes down to devices, or ends on them; imported only then."""
    if not plan.down and not claims and not any(s.id in plan.cut.edge for s in plan.graph.sinks()):
        return None
    from geartrain_edge.downlink.downlink import Down

    return Down(settings, plan, image.state, fragment, counters, clock, files, claims=claims)
