"""The way down on a device: the receiver, the fragment behind it, and the sinks behind that.

It runs beside the agent's way up, and only for a flow that needs it. Guarantees: one commit of the spool
holds what a batch changes, its place in the outbox and what it gives to sinks. The way up uses the same
commit. Only after that commit is the batch acked and handed to sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from geartrain.concurrency.waiting import first_done
from geartrain.planning import Plan
from geartrain.ports import Clock, Connection
from geartrain.runtime.fragment import Fragment, Output
from geartrain.state.claims import GivenCell
from geartrain_edge.downlink.applying import PLACE
from geartrain_edge.downlink.receiver import DownReceiver
from geartrain_edge.settings import AgentSettings
from geartrain_edge.sinks.delivering import Deliveries, LineFiles
from geartrain_edge.spool.backlog import Counters

StateChanges = dict[tuple[str, bytes], bytes | None]


class Down:
    """The way down of one flow on one device."""

    def __init__(
        self,
        settings: AgentSettings,
        plan: Plan,
        state: Mapping[tuple[str, bytes], bytes],
        fragment: Fragment,
        counters: Counters,
        clock: Clock,
        files: LineFiles | None,
        *,
        claims: bool = False,
    ) -> None:
        """`state`: what the spool holds; claims: whether the device has claimed state of the cloud, or is to.
        Raises `ConfigError`.
        """
        device, limits = settings.device, settings.limits
        self._rows_max, self._fragment, self._clock = settings.records_max, fragment, clock
        self.receiver: DownReceiver | None = None
        if plan.down or claims:
            silence_ms = settings.uplink.silence_ms
            self.receiver = DownReceiver(plan, device, state.get(PLACE), limits, counters, clock, silence_ms)
        self._deliveries = Deliveries(plan, device, state, limits, counters, clock, files)
        self._deliveries.reject = fragment.reject
        self._held = Output()
        if self.receiver is not None:
            self.receiver.advance(fragment)

    @property
    def given(self) -> Callable[[GivenCell], None] | None:
        """Who gets the cells that come down, None where nobody wants any."""
        return None if self.receiver is None else self.receiver.given

    @given.setter
    def given(self, given: Callable[[GivenCell], None] | None) -> None:
        if self.receiver is not None:
            self.receiver.given = given

    @property
    def ended(self) -> bool:
        """Whether nothing more can come, and all that came was dealt with."""
        return (self.receiver is None or self.receiver.ended) and self._deliveries.idle

    @property
    def has_room(self) -> bool:
        """Whether the sinks can take more."""
        return self._deliveries.has_room

    def feed(self, epoch: bytes) -> int:
        """Apply what has come down, up to what one commit may hold; returns how many batches.

        epoch: of the spool, the identity of what never left the device.
        """
        batches = rows = 0
        receiver, fragment = self.receiver, self._fragment
        if receiver is None:
            return 0
        while rows < self._rows_max and self._deliveries.has_room:
            arrival = receiver.pop()
            if arrival is None:
                break
            self._hold_local(epoch)
            rows += receiver.apply(arrival, fragment)
            batches += 1
            header = arrival.header
            self._hold(
                fragment.take(), partial(self._deliveries.add, epoch=header.epoch.hex(), seq=header.seq)
            )
        return batches

    def _hold_local(self, epoch: bytes) -> None:
        self._hold(self._fragment.take(), partial(self._deliveries.add_local, epoch=epoch.hex()))

    def _hold(self, output: Output, deliver: Callable[..., None]) -> None:
        for stream, batches in output.batches.items():
            if stream in self._deliveries.sinks:
                deliver(stream, batches)
            else:
                for batch in batches:
                    self._held.add(stream, batch)

    def take(self, epoch: bytes) -> tuple[Output, StateChanges]:
        """What a commit has to write: what goes up, and the changes of the spool's state."""
        self._hold_local(epoch)
        for stream, batches in self._fragment.take().batches.items():  # letters of records too large to keep
            for batch in batches:
                self._held.add(stream, batch)
        output, self._held = self._held, Output()
        changes = self._deliveries.changes()
        if self.receiver is not None:
            changes |= self.receiver.changes()
        return output, changes

    def committed(self) -> None:
        """A commit holds what `take` gave."""
        self._deliveries.committed()
        if self.receiver is not None:
            self.receiver.committed()

    async def prepare(self) -> None:
        """Before the first commit."""
        await self._deliveries.prepare()

    async def run(self) -> None:
        """Hand over what is committed, forever."""
        await self._deliveries.run()

    async def wait(self, seconds: float) -> None:
        """Wait so long, or until there is something to apply or to note."""
        events = [self._deliveries.moved] + ([self.receiver.arrived] if self.receiver is not None else [])
        if not any(event.is_set() for event in events):
            await first_done(self._clock.sleep(seconds), *(event.wait() for event in events))
        for event in events:  # here, because what is held back until the welcome must not wake us again
            event.clear()

    async def speak(self, connection: Connection) -> None:
        """Answer the outbox, forever; raises `NetError`."""
        if self.receiver is not None:
            await self.receiver.speak(connection)

    @property
    def topic(self) -> str:
        """Where the batches come in, "" where none do."""
        return "" if self.receiver is None else self.receiver.topic

    def hear(self, payload: bytes) -> None:
        """Take what came in there."""
        if self.receiver is not None:
            self.receiver.hear(payload)
