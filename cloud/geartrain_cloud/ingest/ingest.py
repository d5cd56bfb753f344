"""Ingest: from the broker into the log. The process between the devices and everything in the data centre.

Guarantees: a batch is acked only after its rows are in a segment that was made durable, and the ledger has
committed it (I3); nothing is acked that was not, and nothing is logged twice (I2). It takes its effects
through ports only, so that production and the simulator run this same class (I7).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace

from geartrain.errors import DiskError, GeartrainError, LedgerError, NetError
from geartrain.ports import Clock, Connection, Disk, LedgerStore, Net, Randomness, StoredSegment
from geartrain.ports.buggify import buggify
from geartrain.wire.topics import up_filter
from geartrain_cloud.ingest.advance import INTERVAL_S
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.core import Core
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.ingest.lineage import WaitingBudget
from geartrain_cloud.ingest.recovery import assign, recover
from geartrain_cloud.ingest.status import STATUS_FILE, make_status, write_status
from geartrain_cloud.ingest.upkeep import SegmentMerger, Upkeep
from geartrain_cloud.log.part import SegmentEncoder, segment_digest

_LOG = logging.getLogger("geartrain.ingest")

_BACKOFF_S_MIN = 0.1
_STEADY_S = 5.0  # a connection that held for this long was a good one: the next pause is a short one again
_FAREWELL_S = 2.0
_PUBLISH_S = 0.05
_UPKEEP_S_MIN, _UPKEEP_S_MAX, _UPKEEP_REST = 0.25, 2.0, 4.0
_TURN = 512


class Ingest:
    """One ingest: call `run` once; `stop` makes it end in good order."""

    def __init__(
        self,
        config: IngestConfig,
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
        self._config, self._ledger, self._disk, self._net = config, ledger, disk, net
        self._clock, self._encode_segment, self._randomness = clock, encode_segment, randomness
        self._merge_segments = merge_segments if config.merge else None
        self._net_counters = {} if net_counters is None else net_counters
        self._stopping = asyncio.Event()
        self._work = asyncio.Event()
        self._due = asyncio.Event()
        self._space = asyncio.Event()
        self._space.set()
        self._is_connected = False
        self._arrivals = 0
        self._committed_s = 0.0
        self._core: Core | None = None

    def stop(self) -> None:
        """Take nothing more, commit and ack what was taken, and return from `run`."""
        self._stopping.set()

    def missing(self, flow: str, channel: str) -> list[str]:
        """The assigned devices that have never said how far they are: the channel's clock waits for them."""
        partitions = self._started().known.partitions.values()
        several = [p.clock.missing() for p in partitions if (p.flow, p.channel) == (flow, channel)]
        return sorted(device for missing in several for device in missing)

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
            failure = next(_leaves(group))
        finally:
            await self._ledger.close()
        if failure is not None:
            raise failure

    async def _run(self) -> None:
        budget = WaitingBudget(self._config.waiting_batches_max, self._config.waiting_bytes_max)
        known = await recover(self._config, self._ledger, self._disk, budget)
        core = self._core = Core(self._config, known, budget, self._ledger, self._clock)
        assign(self._config, known.partitions, core.group)
        await self._commit(core)
        _LOG.info("ready with term %d", known.term)
        async with asyncio.TaskGroup() as tasks:
            committer = tasks.create_task(self._commit_forever(core))
            link = tasks.create_task(self._link_forever(core))
            beside = [tasks.create_task(work) for work in self._beside(core)]
            await self._stopping.wait()
            self._work.set()
            self._due.set()
            await committer
            await self._farewell(core)
            link.cancel()
            for task in beside:
                task.cancel()
        await self._report(core)

    # The way in

    async def _link_forever(self, core: Core) -> None:
        pause_s = _BACKOFF_S_MIN
        client_id = f"ingest-{self._randomness.token(6).hex()}"
        while True:
            began_s = self._clock.monotonic_s()
            # In its own task: its task groups leave `cancelling()` raised, and ours must tell of our end.
            link = asyncio.create_task(self._link(core, client_id))
            try:
                await link
            except* NetError as group:
                core.counters.add(Counter.CONNECTIONS_LOST)
                core.alarm.warn(Counter.CONNECTIONS_LOST, "broker", str(next(_leaves(group))))
            finally:
                self._is_connected = False
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the link may have put a NetError in its place
                raise asyncio.CancelledError
            if self._clock.monotonic_s() - began_s >= _STEADY_S:
                pause_s = _BACKOFF_S_MIN
            await self._clock.sleep(self._randomness.uniform(0, pause_s))
            pause_s = min(pause_s * 2, self._config.backoff_ms_max / 1_000)

    async def _link(self, core: Core, client_id: str) -> None:
        async with self._net.connect(client_id) as connection:
            for topic_filter in _filters(self._config):
                await connection.subscribe(topic_filter)
            self._is_connected = True
            core.membership.listen()
            core.ask()
            _LOG.info("connected to the broker")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(core.outbox.send_forever(connection))
                tasks.create_task(self._stay_subscribed(core, connection))
                async for incoming in connection.incoming():
                    self._arrivals += 1
                    await self._space.wait()
                    if self._stopping.is_set():
                        continue  # its device keeps it, and sends it to whoever comes after us
                    await core.intake.take(incoming)
                    self._after_take(core)
                    if self._arrivals % _TURN == 0:  # what queues here must not keep all else from its turn
                        await asyncio.sleep(0)
                raise NetError("the broker ended the connection")

    async def _stay_subscribed(self, core: Core, connection: Connection) -> None:
        """Subscribe again when nothing has come for so long: the broker may have forgotten, and says nothing.

        It costs a healthy broker a packet for each filter. While ingest may have been deaf no device was
        silent; that is said once, since a fleet may as well be silent by itself.
        """
        known, is_silent = self._arrivals, False
        while True:
            await self._clock.sleep(self._config.resubscribe_ms / 1_000)
            if self._arrivals != known:
                known, is_silent = self._arrivals, False
                continue
            for topic_filter in _filters(self._config):
                await connection.subscribe(topic_filter)
            core.counters.add(Counter.SUBSCRIPTIONS_RENEWED)
            if not is_silent:
                core.membership.listen()
            is_silent = True

    def _after_take(self, core: Core) -> None:
        if not core.group.is_empty:
            self._work.set()
        config = self._config
        if core.group.rows >= config.group_rows_max or core.group.bytes >= config.group_bytes_max:
            self._due.set()
            self._space.clear()

    # The way into the log

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
        if core.membership.is_live:
            yield self._watch_forever(core)
        if core.advance.is_needed:
            yield self._follow_forever(core)

    async def _watch_forever(self, core: Core) -> None:
        while True:
            await self._clock.sleep(core.membership.interval_s)
            if not self._is_connected or not self._space.is_set():
                core.membership.listen()  # nobody can be heard
            core.membership.check()
            if not core.group.is_empty:
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
            self._is_connected,
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

    async def _farewell(self, core: Core) -> None:
        """Send the last acks, if the broker takes them in time."""
        if not self._is_connected:
            return
        async with asyncio.TaskGroup() as tasks:
            limit = tasks.create_task(self._clock.sleep(_FAREWELL_S))
            emptied = tasks.create_task(core.outbox.wait_empty())
            await asyncio.wait((limit, emptied), return_when=asyncio.FIRST_COMPLETED)
            limit.cancel()
            emptied.cancel()
        # A publish that was handed over is not on its way yet.
        await self._clock.sleep(_PUBLISH_S)

    def _started(self) -> Core:
        if self._core is None:
            raise LedgerError("ingest has not recovered its log yet: ask again in a moment")
        return self._core


def status_name(config: IngestConfig) -> str:
    """Where an ingest says how it is: in a file of its own, where it has a part of the buckets only."""
    first, last = config.buckets
    return STATUS_FILE if config.is_whole else f"status-{first:02x}-{last:02x}.json"


def _filters(config: IngestConfig) -> list[str]:
    # Only our flows and buckets: others on the same broker have an ingest of their own.
    first, last = config.buckets
    buckets = ["+"] if config.is_whole else [f"{number:02x}" for number in range(first, last + 1)]
    return [f"{up_filter(b).removesuffix('+/up')}{flow}/up" for flow in sorted(config.flows) for b in buckets]


def _leaves(group: BaseExceptionGroup[GeartrainError]) -> Iterator[GeartrainError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
