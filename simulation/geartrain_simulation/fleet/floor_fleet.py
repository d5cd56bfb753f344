"""Devices whose spools share their disks with others, which fill them to the floor and free them again.

Beside the usual worlds, with the faults of these. The real `DiskFloor` asks a disk in memory. Rules: once the
agent had the time to see that the disk is low, its spool's file grows no further than a few commits take it.
All else must hold as elsewhere: nothing is lost that the policy does not drop, and the run comes to its end.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from geartrain.ports import SpoolCommit
from geartrain_edge.settings import Policy
from geartrain_edge.spool.disk_floor import DiskFloor
from geartrain_simulation.fleet.devices import Device
from geartrain_simulation.fleet.fleet import Fleet
from geartrain_simulation.fleet.troubles import Fault, draw_faults
from geartrain_simulation.machine.violation import Breach
from geartrain_simulation.machine.world import Node, World
from geartrain_simulation.stores.spools import SpoolBook

FLOOR_BYTES = 1 << 20
SEEN_S = 1.0
"""So often an agent looks at its disk: from then on it reads knowing."""
_EMPTY_BYTES = 4_096
_SPARE_COMMITS = 16
"""A file is an eighth above what it may hold, so it grows by so many of the largest commits at most."""


class Volume:
    """The disk of one device. It watches the spool's commits from the start."""

    def __init__(self, world: World, device: str, book: SpoolBook, breach: Breach) -> None:
        self._world, self._device, self._book, self._breach = world, device, book, breach
        self.room = DiskFloor(Path("/spool"), FLOOR_BYTES, lambda _: self._free, lambda _: self._file_bytes)
        self._free, self._file_bytes, self._commit_bytes_max = 2 * FLOOR_BYTES, _EMPTY_BYTES, 0
        self._low_s: float | None = None
        self._committed_s, self._seen_bytes = 0.0, 0
        self.lows_met = 0
        """Commits that were made knowing that the disk was low."""

    def fill(self) -> None:
        """Others take all but half of the floor."""
        self._world.note("world", "disk is low", self._device)
        self._free, self._low_s, self._seen_bytes = FLOOR_BYTES // 2, self._world.loop.time(), 0

    def empty(self) -> None:
        """Others give it back."""
        self._world.note("world", "disk has room", self._device)
        self._free, self._low_s = 2 * FLOOR_BYTES, None

    def committed(self, change: SpoolCommit) -> None:
        """A commit is durable: a breach where the file has grown below the floor."""
        held = sum(batch.size for batch in self._book.batches.values())
        size = sum(batch.size for batch in change.batches)
        self._commit_bytes_max = max(self._commit_bytes_max, size)
        self._file_bytes = max(self._file_bytes, held + held // 16)
        is_seen = self._low_s is not None and self._committed_s >= self._low_s + SEEN_S
        self._committed_s = self._world.loop.time()
        if not is_seen:
            self._seen_bytes = self._file_bytes
            return
        self.lows_met += 1
        most = self._seen_bytes + _SPARE_COMMITS * self._commit_bytes_max
        if self._file_bytes > most:
            grown = f"the spool of {self._device} grows to {self._file_bytes} bytes on a disk that is low"
            self._breach("floor", f"{grown}; {most} are the most")


class FloorFleet(Fleet):
    """One run. Each disk is low for some seconds, in most runs while the device is out of reach."""

    def __init__(self, seed: int) -> None:
        random, devices, faults = Random(f"{seed}/floor"), list[Device](), list[Fault]()
        for number in range(1, random.choice((1, 1, 1, 2)) + 1):
            policy = random.choice((Policy.BLOCK, Policy.BLOCK, Policy.DROP_NEWEST, Policy.DROP_OLDEST))
            devices.append(Device(f"device-{number}", random.choice((60, 150)), 0, None, policy, 1 << 20))
        self._lows = {device.name: (random.uniform(1, 4), random.uniform(4, 8)) for device in devices}
        for name, (at_s, for_s) in self._lows.items():
            if random.random() < 0.8:
                faults.append(Fault("cut", name, at_s=at_s, for_s=for_s))
        super().__init__(seed, devices=devices, faults=[*draw_faults(seed, devices), *faults])
        self.volumes = {
            name: Volume(self.world, name, book, self.checkers.breach) for name, book in self.spools.items()
        }
        self.lives.rooms.update({name: volume.room for name, volume in self.volumes.items()})

    def _agent_node(self, device: Device, node: str, book: SpoolBook) -> Node:
        made = super()._agent_node(device, node, book)
        if node == device.name:
            volume, told = self.volumes[node], book.on_commit

            def on_commit(change: SpoolCommit) -> None:
                told(change)
                volume.committed(change)

            book.on_commit = on_commit
            at_s, for_s = self._lows[node]
            self.world.later(at_s, volume.fill)
            self.world.later(at_s + for_s, volume.empty)
        return made
