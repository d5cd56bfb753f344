"""The rule that everything is bounded (I6), at every publish and commit: what is held and how much it may be.

`agent_holds` and `ingest_holds` look into a live agent and ingest; `check_spool` at what a commit has left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from geartrain.delivery.receiver import DIGESTS_AT_HAND, Receiver
from geartrain.graph.graph import CLAIMS, STATE
from geartrain.ports import SpoolCommit, SpooledBatch
from geartrain_cloud.ingest.closed import CLOSED_KEPT
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.ingest import Ingest
from geartrain_edge.agent.agent import Agent
from geartrain_edge.agent.claiming import BEHIND_MAX
from geartrain_edge.settings import AgentSettings, Policy
from geartrain_simulation.machine.violation import Breach
from geartrain_simulation.stores.stores import DIGESTS_KEPT, LedgerBook, SpoolBook

Holding = tuple[str, int, int]
"""What is held, how much of it, and the most that may be."""
Holds = Callable[[], Iterable[Holding]]

CLAIMS_MAX = BEHIND_MAX + 3
"""Batches of claims in a spool: those that may wait as one more asks, that one, and what is said of it, with
a new epoch between.
"""
_HEADER_BYTES_MAX = 1_024
"""A header may be longer than the one before it, which admission takes for its measure."""


def agent_holds(agent: Agent, settings: AgentSettings) -> Iterator[Holding]:
    """What an agent keeps in memory."""
    session = agent._session  # noqa: SLF001 - a checker looks inside
    if session is None:
        return
    window = session.uplink._window  # noqa: SLF001
    sizes = [batch.size for batch in window._batches]  # noqa: SLF001
    rows = [batch.size for batch in window._batches if not batch.first_seq]  # noqa: SLF001 - gaps are small
    yield "batches in the window", len(rows), settings.uplink.window
    yield "bytes in the window", sum(rows[:-1]), settings.uplink.window_bytes
    yield "bytes counted for the window", abs(window._bytes - sum(sizes)), 0  # noqa: SLF001


def ingest_holds(
    ingest: Ingest, config: IngestConfig, rows_in_batch_max: Callable[[], int]
) -> Iterator[Holding]:
    """What ingest keeps in memory; `rows_in_batch_max`: of the largest batch that any device has made."""
    core = ingest._core  # noqa: SLF001 - a checker looks inside
    if core is None:
        return
    waiting = used = 0
    budget_used = 0
    for stream in core.known.streams.values():
        for receiver in (stream.current, stream.candidate):
            if isinstance(receiver, Receiver):
                batches = receiver._waiting.values()  # noqa: SLF001
                waiting = max(waiting, len(batches))
                used += sum(len(arrival.payload) for arrival in batches)
                budget_used = receiver.budget.bytes_used
                yield "digests at hand", len(receiver._recent), DIGESTS_AT_HAND  # noqa: SLF001
    yield "batches that wait in an epoch", waiting, config.waiting_batches_max
    yield "bytes that wait", used, config.waiting_bytes_max
    yield "bytes counted for what waits", abs(budget_used - used), 0
    released = (config.waiting_batches_max + 1) * rows_in_batch_max()
    yield "rows in the group", core.group.rows, config.group_rows_max + released
    devices = len(core.known.streams)
    outbox = core.outbox
    for what, answers, most in (
        ("acks to send", outbox._acks, devices),  # noqa: SLF001
        ("last acks to send", outbox._last_acks, devices),  # noqa: SLF001
        ("welcomes to send", outbox._welcomes, devices),  # noqa: SLF001
        ("NACKs to send", outbox._nacks, 4 * devices),  # noqa: SLF001
    ):
        yield what, len(answers), most


def ledger_holds(ledger: LedgerBook, config: IngestConfig, ingests: int) -> Iterator[Holding]:
    """What the ledger keeps of so many ingests."""
    yield "quarantined batches", len(ledger.quarantined), ingests * config.quarantine_batches_max
    yield (
        "quarantined bytes",
        sum(len(one.payload) for one in ledger.quarantined),
        ingests * config.quarantine_bytes_max,
    )
    yield "closed epochs", len(ledger.closed), CLOSED_KEPT * max(len(ledger.cursors), 1)
    yield "digests of an epoch", max(map(len, ledger.digests.values()), default=0), DIGESTS_KEPT


def _has_rows(batch: SpooledBatch, channels: Collection[str]) -> bool:
    """Whether all rows of a batch are of `channels`, and it has some."""
    return bool(batch.rows) and all(channel in channels for _, channel, _ in batch.rows)


class Caps:
    """All that is held, by who holds it."""

    def __init__(self, breach: Breach) -> None:
        self._breach = breach
        self._holds: dict[str, Holds] = {}
        self._renewed: set[SpoolBook] = set()

    def renewed(self, spool: SpoolBook) -> None:
        """Note that a spool has begun a new epoch."""
        self._renewed.add(spool)

    def watch(self, who: str, holds: Holds) -> None:
        """Look at what `who` holds, in place of what was said for it before."""
        self._holds[who] = holds

    def check(self) -> None:
        """Compare all that is held with its caps."""
        for who, holds in self._holds.items():
            for what, amount, most in holds():
                if amount > most:
                    self._breach("caps", f"{who} holds {amount} {what}; {most} are the most")

    def check_spool(self, settings: AgentSettings, spool: SpoolBook, change: SpoolCommit) -> None:
        """Compare a spool with its cap, after a commit.

        Where the sources wait, a new epoch may have come between the look at the room and the commit of what
        was read. It takes along all that is held, its own schemas before it, however full the spool is. What
        a device says of state cannot wait for room either: a life says first what became of the claim that it
        finds open. Of claims there are few, since none is made while many batches wait.
        """
        cap, held = settings.spool_bytes_max, sum(batch.size for batch in spool.batches.values())
        claims = sum(_has_rows(batch, (CLAIMS,)) for batch in spool.batches.values())
        if claims > CLAIMS_MAX:
            self._breach("caps", f"{settings.device} spools {claims} claims; {CLAIMS_MAX} are the most")
        if settings.policy is Policy.BLOCK:
            before = held - sum(batch.size for batch in change.batches)
            was_renewed = spool in self._renewed
            self._renewed.discard(spool)
            takes = any(batch.count and not _has_rows(batch, (CLAIMS, STATE)) for batch in change.batches)
            if before >= cap and not was_renewed and takes:
                self._breach(
                    "caps", f"{settings.device} takes rows into a full spool ({before} of {cap} bytes)"
                )
            return
        last = change.batches[-1].size if change.batches else 0
        most = cap + max(cap // 16, 4_096) + max(last, _HEADER_BYTES_MAX)
        if change.batches and held > most:
            self._breach("caps", f"{settings.device} spools {held} bytes; {most} are the most of {cap}")
