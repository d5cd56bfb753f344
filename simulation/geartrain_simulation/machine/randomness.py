"""A process's randomness, drawn from the seed: the agent gets it as its `Randomness`."""

from __future__ import annotations

from geartrain_simulation.machine.world import Process


class SimRandomness:
    """`geartrain.ports.Randomness` of one process: another life draws other numbers."""

    def __init__(self, process: Process) -> None:
        self._random = process.random("randomness")

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high]."""
        return self._random.uniform(low, high)

    def token(self, size: int) -> bytes:
        """`size` random bytes."""
        return self._random.randbytes(size)
