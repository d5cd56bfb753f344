"""The rules of draining: after the last trouble a spool empties in bounded time, with bounded sending.

They check that records do not merely survive but arrive, without a storm of repeats. The last trouble is
taken from the trace, so that the bound holds from the moment when nothing goes wrong any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from geartrain_simulation.machine.violation import Breach
from geartrain_simulation.machine.world import World

TROUBLES = (
    *("start", "kill", "power loss", "stop", "exit", "crash", "cut", "silence", "forget", "take over"),
    *("drop up", "drop down", "duplicate", "reorder", "delay", "damage", "overflow", "disk.error"),
    *("heal", "jump", "restore", "delete", "flip", "roster"),
)
"""What the trace calls a trouble; a start ends one."""
SETTLE_S = 60.0
"""Virtual seconds for what a trouble leaves behind: a long backoff, a resend timer, a delay of a publish."""
DELAY_S = 150.0
"""What a publish that is held back for minutes may hold up behind it, until its connection is given up."""
BATCH_S = 2.0
"""Virtual seconds for each batch: one window of one batch, a slow disk, a group commit."""
PACKETS_PER_BATCH = 20
SETTLE_PACKETS = 250
"""Publishes of an agent that the settling may take: windows sent again on a timer, hellos."""


@dataclass(slots=True)
class _Way:
    """Of one device since the last trouble: publishes, batches to send, and when the last was committed."""

    packets: int = 0
    batches: int = 0
    fed_s: float = 0.0


class Drain:
    """How each device's spool empties."""

    def __init__(self, breach: Breach, world: World) -> None:
        self._breach, self._world = breach, world
        self._ways: dict[str, _Way] = {}
        self._healed_s = -1.0

    def fed(self, device: str, held: int, batches: int) -> None:
        """Note that a commit has put `batches` into a spool, which `held` some before."""
        self._heal()
        way = self._way(device, held)
        way.batches += batches
        way.fed_s = self._world.loop.time()

    def sent(self, device: str, held: int) -> None:
        """Note a publish of a device, whose spool holds so many batches."""
        self._heal()
        self._way(device, held).packets += 1

    def emptied(self, device: str) -> None:
        """Hold a device that has finished to its bounds."""
        self._heal()
        way = self._way(device, 0)
        took_s = self._world.loop.time() - max(self._healed_s, way.fed_s)
        delay_s = DELAY_S if "delay" in self._world.trace.newest else 0.0
        if took_s > SETTLE_S + delay_s + BATCH_S * way.batches:
            self._breach("drained in time", f"{device} takes {took_s:.1f} s for {way.batches} batches")
        if way.packets > SETTLE_PACKETS + PACKETS_PER_BATCH * way.batches:
            self._breach("few packets", f"{device} sends {way.packets} times for {way.batches} batches")

    def _heal(self) -> None:
        newest = self._world.trace.newest
        healed_s = max((newest.get(what, 0.0) for what in TROUBLES), default=0.0)
        if healed_s > self._healed_s:
            self._healed_s = healed_s
            self._ways.clear()

    def _way(self, device: str, held: int) -> _Way:
        return self._ways.setdefault(device, _Way(batches=held))
