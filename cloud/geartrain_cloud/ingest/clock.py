"""The clock of a source in one partition: how far the event time of all devices that have it has come.

Each entry of the log holds the clocks after it, so a reader needs no device's state (I5). Guarantees: the
clock is the minimum of the watermarks of the live members, which are the devices that have the source and
are not excluded. A member that has not sent a watermark yet counts as minus infinity. The clock never goes
back. Without a live member it moves by `advance` only.
"""

from __future__ import annotations

from heapq import heapify, heappush, heapreplace

from geartrain.records.event_time import START_OF_TIME


class SourceClock:
    """The clock, in microseconds since 1970 UTC, and the watermarks it comes from."""

    def __init__(self, value: int = START_OF_TIME) -> None:
        """`value`: the clock of the partition's newest entry, START_OF_TIME where there is none."""
        self.value = value
        self._live: dict[str, int] = {}
        self._excluded: dict[str, int] = {}
        # An entry for each live device with a watermark that it had, so that a batch costs little in a large
        # fleet: only the lowest are brought up to date, and only when the clock may move.
        self._lowest: list[tuple[int, str]] = []

    def assign(self, device: str, watermark: int = START_OF_TIME, *, excluded: bool = False) -> None:
        """Wait for `device` from now on; `watermark`: its last one that the ledger knows; excluded: know it,
        but do not wait for it.
        """
        (self._excluded if excluded else self._live)[device] = watermark
        if not excluded:
            heappush(self._lowest, (watermark, device))

    def retire(self, device: str) -> bool:
        """Know a device no more; returns whether the clock moved."""
        self._excluded.pop(device, None)
        if self._live.pop(device, None) is not None:
            self._lowest = [(watermark, one) for one, watermark in self._live.items()]
            heapify(self._lowest)
        return self.settle()

    @property
    def devices(self) -> list[str]:
        """The assigned devices, sorted, excluded ones too."""
        return sorted([*self._live, *self._excluded])

    @property
    def excluded(self) -> list[str]:
        """The assigned devices that are not waited for, sorted."""
        return sorted(self._excluded)

    def is_excluded(self, device: str) -> bool:
        """Whether an assigned device is not waited for."""
        return device in self._excluded

    def exclude(self, device: str) -> bool:
        """Go on without a live device; returns whether the clock moved."""
        self._excluded[device] = self._live.pop(device)
        self._lowest = [(watermark, one) for one, watermark in self._live.items()]
        heapify(self._lowest)
        return self.settle()

    def readmit(self, device: str) -> bool:
        """Wait for an excluded device again; returns whether the clock moved, as it may if nobody was live.

        A clock beyond the device's watermark stands until the device has passed it.
        """
        self._live[device] = self._excluded.pop(device)
        heappush(self._lowest, (self._live[device], device))
        return self.settle()

    def observe(self, device: str, watermark: int) -> bool:
        """Take the watermark of a live device; returns whether the clock moved."""
        before = self._live[device]
        if watermark <= before:
            return False
        self._live[device] = watermark
        if before > self.value:
            return False  # this device did not hold the clock, so its going on cannot move it
        return self.settle()

    def settle(self) -> bool:
        """Move to the minimum of the live watermarks; returns whether the clock moved."""
        known = self._lowest
        while known and (now := self._live[known[0][1]]) > known[0][0]:
            heapreplace(known, (now, known[0][1]))
        if not known or known[0][0] <= self.value:
            return False
        self.value = known[0][0]
        return True

    @property
    def has_live(self) -> bool:
        """Whether any device is waited for."""
        return bool(self._live)

    def advance(self, value: int) -> bool:
        """Move to `value` where no device is live and that is onward; returns whether the clock moved."""
        if self._live or value <= self.value:
            return False
        self.value = value
        return True

    def missing(self) -> list[str]:
        """The live devices that have never said how far they are, sorted."""
        return sorted(d for d, watermark in self._live.items() if watermark == START_OF_TIME)

    def holding(self) -> list[str]:
        """The live devices that hold the clock where it is, sorted: those with the lowest watermark."""
        lowest = min(self._live.values(), default=START_OF_TIME)
        return sorted(d for d, watermark in self._live.items() if watermark == lowest)
