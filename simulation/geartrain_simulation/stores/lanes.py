"""What control lanes rest on: the control store in memory, as its disk holds it, and a device's kept file.

Guarantees: a transaction of the control store is whole or not at all; a kill may strike before it, or after
it before its caller hears. The kept file of a device lies on a platter, where power loss takes what was not
synced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from geartrain.control.codec import decode_kept, decode_state, encode_kept, encode_state
from geartrain.control.sender import Standing
from geartrain.control.states import Kept, Reported
from geartrain.errors import DiskError, WireError
from geartrain_simulation.machine.disk import SimDisk
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.violation import tell
from geartrain_simulation.machine.world import Process

_FILE, _DRAFT = "desired.bin", "desired.bin.new"


@dataclass(frozen=True, slots=True)
class BookCopy:
    """What a backup of the control store holds."""

    states: dict[str, bytes]
    reports: dict[str, Reported]
    refused: dict[str, str] = field(default_factory=dict)


class ControlBook:
    """What the control store has committed. `ever`: every desired state of a device that any store held.

    `on_older` is told of a report that takes the place of a later one.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.states: dict[str, bytes] = dict.fromkeys(names, b"")
        self.reports: dict[str, Reported] = {}
        self.refused: dict[str, str] = {}
        self.ever: dict[str, set[bytes]] = {name: set() for name in names}
        self._history: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
        self.versions: dict[str, int] = dict.fromkeys(names, 0)
        self.on_older: Callable[[str], None] = lambda detail: None

    def state(self, device: str) -> bytes:
        """The desired state, encoded; empty for none."""
        return self.states[device]

    def serial(self, device: str) -> int:
        """Of the desired state, 0 for none."""
        return decode_state(self.states[device]).serial if self.states[device] else 0

    def serial_at(self, device: str, time_s: float) -> int:
        """The serial that was wanted at a virtual time."""
        return max((serial for at_s, serial in self._history[device] if at_s <= time_s), default=0)

    def want(self, device: str, state: bytes, now_s: float) -> None:
        """Commit a desired state."""
        self.states[device] = state
        self.ever[device].add(state)
        self._history[device].append((now_s, decode_state(state).serial))
        self.versions[device] += 1

    def store(self, report: Reported) -> None:
        """Commit a report, whatever its order; `on_older` is told first."""
        if report.order <= self.order(report.device):
            tell(self.on_older, f"{report.device}: {report.order} after a later one")
        self.reports[report.device] = report

    def order(self, device: str) -> tuple[int, int]:
        """Of the newest report, (0, 0) for none."""
        report = self.reports.get(device)
        return (0, 0) if report is None else report.order

    def standing(self, device: str) -> Standing:
        """A device as the store has it."""
        return Standing(self.states[device], self.reports.get(device), self.refused.get(device, ""))

    def refuse(self, device: str, why: str) -> None:
        """Commit a refusal."""
        self.refused[device] = why
        self.versions[device] += 1

    def accept(self, device: str, applied: int) -> None:
        """Do as a person says: what is wanted now, under a serial above all that was applied."""
        self.refused.pop(device, None)
        state = decode_state(self.states[device])
        serial = max(state.serial, applied) + 1
        fresh = type(state)(serial, state.apps, state.purged, state.program)
        self.want(device, encode_state(fresh), float("inf"))

    def copy(self) -> BookCopy:
        """A backup."""
        return BookCopy(dict(self.states), dict(self.reports), dict(self.refused))

    def restore(self, copy: BookCopy) -> None:
        """Put a backup in place of what there is."""
        kept = replace(copy)
        self.states, self.reports = dict(kept.states), dict(kept.reports)
        self.refused = dict(kept.refused)
        self.versions = {name: version + 1 for name, version in self.versions.items()}
        self._history = {name: [] for name in self._history}


class SimDesiredStore:
    """`DesiredStore` of one process of control."""

    def __init__(self, process: Process, book: ControlBook) -> None:
        self._process, self._book = process, book
        self._random = process.random("control store")
        self._known: dict[str, int] = {}

    async def changed(self) -> Mapping[str, Standing]:
        """The devices whose standing is another than at the last call."""
        await self._process.pause(self._random, self._process.node.faults)
        versions = self._book.versions
        found = [name for name, version in versions.items() if self._known.get(name) != version]
        self._known = dict(versions)
        return {name: self._book.standing(name) for name in found}

    async def store(self, report: Reported) -> None:
        """One transaction."""
        self._process.point("store.report", f"{report.device} {report.life}.{report.number}")
        await self._process.pause(self._random, self._process.node.faults)
        self._book.store(report)
        self._process.point("store.report done", report.device)

    async def refuse(self, device: str, why: str) -> None:
        """One transaction."""
        self._process.point("store.refuse", device)
        await self._process.pause(self._random, self._process.node.faults)
        self._book.refuse(device, why)
        self._process.point("store.refuse done", device)


class SimKept:
    """`KeptStore` of one process, with the steps of the real file."""

    def __init__(self, process: Process, platter: Platter) -> None:
        self._disk, self._platter = SimDisk(process, platter), platter

    async def load(self) -> Kept:
        """What was saved last, made durable."""
        if not await self._disk.list(_FILE) or _FILE not in self._platter.matching(_FILE):
            return Kept()
        await self._disk.fsync(_FILE)
        try:
            return decode_kept(await self._disk.read(_FILE))
        except WireError as error:
            raise DiskError(f"{_FILE} is damaged: {error}") from None

    async def save(self, kept: Kept) -> None:
        """A draft, synced, renamed, synced."""
        await self._disk.write(_DRAFT, encode_kept(kept))
        await self._disk.fsync(_DRAFT)
        await self._disk.rename(_DRAFT, _FILE)
        await self._disk.fsync(_FILE)


def kept_on(platter: Platter) -> Kept | None:
    """What a loss of power would leave of the kept file, as far as that is sure; None for nothing."""
    data = platter.durable(_FILE)
    return None if data is None else decode_kept(data)
