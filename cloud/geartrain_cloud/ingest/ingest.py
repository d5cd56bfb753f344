"""Ingest: from the broker into the log. The process between the devices and everything in the data centre.

Guarantees: a batch is acked only after its rows are in a durable segment and the ledger has committed it
(I3). Nothing else is acked, and nothing is logged twice (I2). Ingest acts on the outside world through ports
only, so production and the simulator run this same class (I7).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace

from geartrain.concurrency.groups import first_of
from geartrain.delivery.receiver import WaitingBudget
from geartrain.errors import DiskError, GeartrainError, LedgerError
from geartrain.ports import Clock, Disk, Incoming, Net, Randomness
from geartrain.ports.buggify import buggify
from geartrain_cloud.ingest.advance import INTERVAL_S
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.core import Core
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.ingest.following import look
from geartrain_cloud.ingest.link import Link
from geartrain_cloud.ingest.recovery import recover
from geartrain_cloud.ingest.roster import INTERVAL_S as ROSTER_INTERVAL_S
from geartrain_cloud.ingest.roster import Followed, Roster
from geartrain_cloud.ingest.status import STATUS_FILE, make_status, write_status
from geartrain_cloud.ingest.upkeep import SegmentMerger, Upkeep
from geartrain_cloud.log.part import SegmentEncoder, segment_digest
from geartrain_cloud.ports import LedgerStore, StoredSegment

_LOG = logging.getLogger("geartrain.ingest")

_UPKEEP_S_MIN, _UPKEEP_S_MAX, _UPKEEP_REST = 0.25, 2.0, 4.0


class Ingest:
    """One ingest: call `run` once; `stop` makes it end in good order."""

    def __init__(
        self,
        config: IngestConfig,
        roster: Roster,
        ledger: LedgerStore,
        disk: Disk,
        net: Net,
        clock: Clock,
        encode_segment: SegmentEncoder,
        randomness: Randomness,
        merge_segments: SegmentMerger | None = None,
        net_counters: Mapping[str, int] | None = None,
    ) -> None:
        """`disk`: the log's folder; `encode_segment`: rows to the bytes of a segment; `merge_segments`: puts
        small ones together, None where they stay as they are; `net_counters`: what the net counts for itself,
        shown in the status.
        """
        self._config, self._ledger, self._disk = config, ledger, disk
        self._roster, self._followed = roster, Followed()
        self._clock, self._encode_segment = clock, encode_segment
        self._merge_segments = merge_segments if config.merge else None
        self._net_counters = {} if net_counters is None else net_counters
        self._stopping = asyncio.Event()
        self._work = asyncio.Event()
        self._due = asyncio.Event()
        self._space = asyncio.Event()
        self._space.set()
        self._committed_s = 0.0
        self._core: Core | None = None
        self._link = Link(config, net, clock, randomness, self._take)

    def stop(self) -> None:
        """Take nothing more, commit and ack what was taken, and return from `run`."""
        self._stopping.set()

    def missing(self, flow: str, source: str) -> list[str]:
        """The members of a source that have never said how far they are: its clock waits for them."""
        partitions = self._started().known.partitions.values()
        return sorted(device for p in partitions if p.flow == flow for device in p.clocks[source].missing())

    def counter(self, counter: Counter) -> int:
        """The total of a counter."""
        return self._started().counters[counter]

    async def run(self) -> None:
        """Work until `stop`.

        Raises `LedgerError` or `DiskError` when the log cannot be kept: then nothing is acked that is not in
        it.
        """
        failure: GeartrainError | None = None
        try:
            await self._run()
        except* GeartrainError as group:
            found = first_of(group)
            failure = found if isinstance(found, GeartrainError) else None
        finally:
            await self._ledger.close()
        if failure is not None:
            raise failure

    async def _run(self) -> None:
        budget = WaitingBudget(self._config.waiting_batches_max, self._config.waiting_bytes_max)
        await look(self._roster, self._followed)
        flows = self._followed.flows
        known = await recover(self._config, flows, self._ledger, self._disk, budget)
        core = self._core = Core(self._config, flows, known, budget, self._ledger, self._clock)
        core.following.follow(self._followed)
        await self._commit(core)
        _LOG.info("ready with term %d", known.term)
        async with asyncio.TaskGroup() as tasks:
            committer = tasks.create_task(self._commit_forever(core))
            link = tasks.create_task(self._link.stay(core))
            beside = [tasks.create_task(work) for work in self._beside(core)]
            await self._stopping.wait()
            self._work.set()
            self._due.set()
            await committer
            await self._link.farewell(core)
            link.cancel()
            for task in beside:
                task.cancel()
        await self._report(core)

    # The way into the log

    async def _take(self, core: Core, incoming: Incoming) -> bool:
        """Take a publish in, once the group has room for it."""
        await self._space.wait()
        if self._stopping.is_set():
            return False  # its device keeps it, and sends it to whoever comes after us
        await core.intake.take(incoming)
        if not core.group.is_empty:
            self._work.set()
        config = self._config
        if core.group.rows >= config.group_rows_max or core.group.bytes >= config.group_bytes_max:
            self._due.set()
            self._space.clear()
        return True

    async def _commit_forever(self, core: Core) -> None:
        while True:
            await self._work.wait()
            if not self._stopping.is_set():
                await self._gather()
            self._work.clear()
            self._due.clear()
            self._space.set()
            await self._commit(core)
            self._committed_s = self._clock.monotonic_s()
            if self._stopping.is_set() and core.group.is_empty:
                return

    async def _gather(self) -> None:
        """Wait for more to commit at once, until the time is up or the group is full; not at all where the
        last commit is so long ago: what comes alone need not wait for others.
        """
        pause_s = self._config.group_commit_ms / 1_000
        if self._clock.monotonic_s() - self._committed_s >= pause_s or buggify("tiny group commit", 0.3):
            return
        async with asyncio.TaskGroup() as tasks:
            timer = tasks.create_task(self._ring())
            await self._due.wait()
            timer.cancel()

    async def _ring(self) -> None:
        await self._clock.sleep(self._config.group_commit_ms / 1_000)
        self._due.set()

    async def _commit(self, core: Core) -> None:
        core.advance.apply(core.group)
        sealed = core.group.seal(core.known.partitions, core.counters.take_changed())
        segments = []
        for draft in sealed.segments:
            data = self._encode_segment(draft.schema, draft.parts)
            segments.append(StoredSegment(draft.name, len(data), segment_digest(data), self._clock.now_us()))
            await self._disk.write(draft.name, data)
        for draft in sealed.segments:
            await self._disk.fsync(draft.name)
        await self._ledger.commit(core.known.term, replace(sealed.change, segments=segments))
        core.settle(sealed)

    # Beside the way

    def _beside(self, core: Core) -> Iterator[Coroutine[None, None, None]]:
        yield self._report_forever(core)
        yield self._keep_forever(core)
        yield self._watch_forever(core)
        yield self._follow_forever(core)
        yield self._look_forever(core)

    async def _watch_forever(self, core: Core) -> None:
        while True:
            await self._clock.sleep(core.membership.interval_s)
            if not self._link.is_connected or not self._space.is_set():
                core.membership.listen()  # nobody can be heard
            core.membership.check()
            if not core.group.is_empty:
                self._work.set()

    async def _look_forever(self, core: Core) -> None:
        """Look whether the roster has changed. It is looked at between two publishes, and what it says is
        committed before anything is answered that rests on it.
        """
        while True:
            await self._clock.sleep(ROSTER_INTERVAL_S)
            if await look(self._roster, self._followed) and core.following.follow(self._followed):
                self._work.set()

    async def _follow_forever(self, core: Core) -> None:
        while True:
            await self._clock.sleep(INTERVAL_S)
            if core.advance.has_others:
                await core.advance.look(self._ledger)
            if core.advance.is_due:
                self._work.set()

    async def _keep_forever(self, core: Core) -> None:
        upkeep = Upkeep(
            core.known.term,
            self._ledger,
            self._disk,
            self._clock,
            core.counters,
            core.alarm,
            self._config.retention,
            self._merge_segments,
            self._config.merge_grace_s,
            lambda: {name: flow.retention for name, flow in core.flows.items()},
        )
        # A little and often: acks wait for the disk and the ledger while a round is at them.
        pause_s = _UPKEEP_S_MAX
        while True:
            await self._clock.sleep(pause_s)
            began_s = self._clock.monotonic_s()
            await upkeep.round()
            took_s = self._clock.monotonic_s() - began_s
            pause_s = min(max(_UPKEEP_REST * took_s, _UPKEEP_S_MIN), _UPKEEP_S_MAX)

    async def _report_forever(self, core: Core) -> None:
        while True:
            await self._report(core)
            await self._clock.sleep(self._config.status_interval_ms / 1_000)

    async def _report(self, core: Core) -> None:
        known = core.known
        status = make_status(
            self._clock.now_us(),
            known.term,
            self._link.is_connected,
            known.partitions,
            known.streams,
            core.durable,
            {**core.counters.totals(), **self._net_counters},
            core.domains,
        )
        try:
            await write_status(self._disk, status, status_name(self._config))
        except DiskError as error:  # a status is a courtesy: the log goes on without it
            core.alarm.warn("status", "status.json", str(error))

    def _started(self) -> Core:
        if self._core is None:
            raise LedgerError("ingest has not recovered its log yet: ask again in a moment")
        return self._core


def status_name(config: IngestConfig) -> str:
    """Where an ingest says how it is: in a file of its own, where it has a part of the buckets only."""
    first, last = config.buckets
    return STATUS_FILE if config.is_whole else f"status-{first:02x}-{last:02x}.json"
