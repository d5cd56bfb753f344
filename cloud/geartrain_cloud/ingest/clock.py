"""The clock of one partition of a channel: how far the event time of its devices has come, all of them.

Stands beside the log: each entry holds the clock after it, so that a reader needs no device's state (I5).
Guarantees: it is the minimum of the watermarks of the assigned devices, each at minus infinity until it has
spoken, and it never goes back.
"""

from __future__ import annotations

from geartrain.event_time import START_OF_TIME


class ChannelClock:
    """The clock, in microseconds since 1970 UTC, and the watermarks it comes from."""

    def __init__(self, value: int = START_OF_TIME) -> None:
        """`value`: the clock of the partition's newest entry, START_OF_TIME where there is none."""
        self.value = value
        self._watermarks: dict[str, int] = {}

    def assign(self, device: str, watermark: int = START_OF_TIME) -> None:
        """Wait for `device` from now on; `watermark`: its last one that the ledger knows."""
        self._watermarks[device] = watermark

    @property
    def devices(self) -> list[str]:
        """The assigned devices, sorted."""
        return sorted(self._watermarks)

    def observe(self, device: str, watermark: int) -> bool:
        """Take the watermark of an assigned device; returns whether the clock moved."""
        before = self._watermarks[device]
        if watermark <= before:
            return False
        self._watermarks[device] = watermark
        if before > self.value:
            return False  # this device did not hold the clock, so its going on cannot move it
        return self.settle()

    def settle(self) -> bool:
        """Move to the minimum of the watermarks; returns whether the clock moved."""
        lowest = min(self._watermarks.values(), default=START_OF_TIME)
        if lowest <= self.value:
            return False
        self.value = lowest
        return True

    def missing(self) -> list[str]:
        """The assigned devices that have never said how far they are, sorted."""
        return sorted(d for d, watermark in self._watermarks.items() if watermark == START_OF_TIME)

    def holding(self) -> list[str]:
        """The devices that hold the clock where it is, sorted: those with the lowest watermark."""
        lowest = min(self._watermarks.values(), default=START_OF_TIME)
        return sorted(d for d, watermark in self._watermarks.items() if watermark == lowest)
