"""The parts of ingest between gate and ledger, made once the ledger has said where ingest stands.

`Ingest` drives them: it takes publishes in, commits what they made, and then settles the commit here.
Guarantees: no device is told of anything that is not durable.
"""

from __future__ import annotations

from collections.abc import Mapping

from geartrain.delivery.receiver import WaitingBudget
from geartrain.ports import Clock
from geartrain.wire.envelope import NackReason
from geartrain_cloud.ingest.advance import Advance
from geartrain_cloud.ingest.alarm import Alarm
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.content import Content
from geartrain_cloud.ingest.domains import Domains
from geartrain_cloud.ingest.flow import FollowedFlow
from geartrain_cloud.ingest.following import Following
from geartrain_cloud.ingest.group import Group, SealedGroup
from geartrain_cloud.ingest.intake import Intake
from geartrain_cloud.ingest.membership import Membership
from geartrain_cloud.ingest.outbox import Outbox
from geartrain_cloud.ingest.quarantine import Quarantine
from geartrain_cloud.ingest.recovery import Recovered
from geartrain_cloud.ingest.sequence import Sequencer
from geartrain_cloud.ingest.status import Durable
from geartrain_cloud.ports import LedgerStore


class Core:
    """The parts between gate and ledger, made once the ledger has said where ingest stands."""

    def __init__(
        self,
        config: IngestConfig,
        flows: Mapping[str, FollowedFlow],
        known: Recovered,
        budget: WaitingBudget,
        ledger: LedgerStore,
        clock: Clock,
    ) -> None:
        """`flows`: those that live as ingest begins, of which `known` has partitions and streams."""
        self.known, self.counters = known, known.counters
        self.flows = dict(flows)
        self.alarm = Alarm(clock)
        self.group = Group(known.term)
        self.outbox = Outbox(clock, self.counters, config.nack_interval_ms / 1_000)
        self.outbox.term = known.term
        self.advance = Advance(known.partitions, config.partitions, config.owned, clock)
        self.durable = Durable(known.partitions, self.flows, self.counters)
        quarantine = Quarantine(config, self.group, self.counters, self.alarm)
        self.domains = Domains(self.flows, self.counters, self.alarm)
        content = Content(
            known.partitions, known.schemas, self.group, self.counters, quarantine, self.domains, self.flows
        )
        sequencer = Sequencer(known, ledger, budget, content, self.group, quarantine, self.outbox, self.alarm)
        self.membership = Membership(
            self.flows, known.streams, known.partitions, content, self.counters, clock
        )
        self.following = Following(
            config,
            self.flows,
            known,
            budget,
            self.group,
            self.advance,
            self.durable,
            self.domains,
            self.alarm,
        )
        self.intake = Intake(
            known.streams,
            sequencer,
            quarantine,
            self.counters,
            self.alarm,
            self.membership,
            self.following.stranger,
        )

    def ask(self) -> None:
        """Have every device go on behind what of it is durable: what it sent while nobody listened is gone,
        and the broker does not say so. One that waits for an ack of that gets it.
        """
        for stream in self.known.streams.values():
            if (known := stream.durable) is not None:
                place = (known.device, known.flow, known.epoch, max(known.seq, 1))
                self.outbox.nack(*place, NackReason.GAP)

    def settle(self, sealed: SealedGroup) -> None:
        """Take a committed group as durable, and let its devices know."""
        self.durable.take(sealed)
        for cursor in sealed.touched:
            stream = self.known.streams[cursor.device, cursor.flow]
            stream.durable = cursor
            if stream.greeted == cursor.epoch:
                stream.greeted = b""
                self.outbox.welcome(cursor)
            if cursor.seq:
                self.outbox.ack(cursor)
