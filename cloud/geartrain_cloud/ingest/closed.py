"""Closed epochs, which later ones have replaced, as ingest remembers them.

Used by the sequencer. Guarantees: a batch of a remembered epoch is never appended again. The last 1,000 of
each (device, flow) are remembered, both in memory and in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable

from geartrain_cloud.ports import ClosedEpoch

CLOSED_KEPT = 1_000


class ClosedEpochs:
    """By (device, flow) and epoch, in the order of their ordinals."""

    def __init__(self, closed: Iterable[ClosedEpoch]) -> None:
        self._closed: dict[tuple[str, str], dict[bytes, ClosedEpoch]] = {}
        for one in closed:
            self.add(one)

    def add(self, one: ClosedEpoch) -> None:
        """Remember an epoch, and forget the oldest of its device beyond `CLOSED_KEPT`."""
        held = self._closed.setdefault((one.device, one.flow), {})
        held[one.epoch] = one
        while len(held) > CLOSED_KEPT:
            held.pop(next(iter(held)))

    def get(self, device: str, flow: str, epoch: bytes) -> ClosedEpoch | None:
        """The closed epoch, or None where it is open, unknown or forgotten."""
        return self._closed.get((device, flow), {}).get(epoch)
