"""The faults in force at a time: how long effects take, and how often each kind of them fails.

The simulated disk, network and stores read them. By default nothing goes wrong;
`geartrain_simulation.fleet.troubles` draws what goes wrong in a run, and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities, each of one effect, and times in virtual seconds.

    drop, duplicate, reorder: of each leg of a publish; latency_s_max: of a leg; late_s_max: how far a
    reordered one is held back; damage: that a bit flips in a delivery on a topic that `damage_filter` matches
    (never drawn: TCP has checksums); delay, delay_s_max: of a leg that takes minutes; disk_error: of a disk
    call; write_error, no_space: that a write fails; sync_error: that a sync does; slow_sync,
    slow_sync_s_max: of one that takes far longer; pause_s_max: how long an effect takes; slow, slow_s_max: of
    one that takes far longer; read_s_max: how long a read of a source takes.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    latency_s_max: float = 0.005
    late_s_max: float = 2.0
    delay: float = 0.0
    delay_s_max: float = 120.0
    damage: float = 0.0
    damage_filter: str = "#"
    disk_error: float = 0.0
    pause_s_max: float = 0.002
    slow: float = 0.0
    slow_s_max: float = 0.5
    read_s_max: float = 0.05
    write_error: float = 0.0
    no_space: float = 0.0
    sync_error: float = 0.0
    slow_sync: float = 0.0
    slow_sync_s_max: float = 2.0

    @staticmethod
    def climate(random: Random) -> Faults:
        """A world in which nothing fails, fast in some runs and slow in others."""
        return Faults(
            latency_s_max=random.choice((0.001, 0.02, 0.2)),
            pause_s_max=random.choice((0.0, 0.001, 0.02)),
            slow=random.choice((0.0, 0.02, 0.1)),
            slow_s_max=random.choice((0.1, 1.0)),
            read_s_max=random.choice((0.02, 0.2, 1.0)),
        )

    def pause_s(self, random: Random) -> float:
        """How long one effect takes."""
        if random.random() < self.slow:
            return random.uniform(0, self.slow_s_max)
        return random.uniform(0, self.pause_s_max)

    def refuses_write(self, random: Random) -> str:
        """Why a write fails; empty for one that does not."""
        if self.no_space and random.random() < self.no_space:
            return "no space is left on the disk"
        return "the disk reports an error" if self.write_error and random.random() < self.write_error else ""

    def refuses_sync(self, random: Random) -> bool:
        """Whether a sync fails."""
        return self.sync_error > 0 and random.random() < self.sync_error

    def sync_pause_s(self, random: Random) -> float:
        """How much longer than other effects a sync takes."""
        if self.slow_sync and random.random() < self.slow_sync:
            return random.uniform(0, self.slow_sync_s_max)
        return 0.0
