"""How a device gets what a step keeps in the cloud, before it runs that step itself: it claims the cells.

Between the agent, which claims and takes, and the shards of the cloud, which give. A device that has claimed
says nothing more of its sources until it says `HAS` or `BACK`. So nothing that it sends stands between its
claim and that. Guarantees: what a shard gives is taken wholly, by count and digest, or not at all. A claim
that is not the newest one of its device gets nothing taken in. No number is that of two claims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from geartrain.errors import StepError
from geartrain.records.event_time import START_OF_TIME
from geartrain.records.record import Record
from geartrain.state.moving import (
    BYTES_MAX,
    CELLS_MAX,
    Arriving,
    Cells,
    Manifest,
    StateCell,
    manifest,
    records,
)

ASKS, HAS, BACK = "asks", "has", "back"
"""What a claim says: the device wants the cells; it has them, and runs the step; it goes on without them."""
LOST = "lost"
"""What a device says whose spool is gone or was set back: that it knows of no other claim than this number,
0 for none. It is of all steps, and names none.
"""

_encode = msgspec.msgpack.Encoder().encode
_manifest = msgspec.msgpack.Decoder(Manifest).decode


class Claim(Record):
    """What a device says of a step's cells. number: of the claim, which goes up; says: one of `ASKS`, `HAS`,
    `BACK` and `LOST`; mark: how far the device's sources above the step are, microseconds.
    """

    number: int
    step: str
    says: str
    mark: int


class GivenCell(Record):
    """A cell that a shard gives for a claim, or a piece of one, or the manifest of what it has given.

    A manifest is the last record of its shard for some steps, and has no step of its own. Steps of one claim
    that stand behind different shuffles are answered apart, each with its manifest.
    """

    number: int
    """Of the claim."""
    shard: int
    """Of the cloud, from 0."""
    shards: int
    """How many there are."""
    step: str
    """The id of the cell's step; "" for a manifest."""
    key: bytes
    offset: int
    """Where the piece begins in the cell, bytes."""
    size: int
    """Bytes of the whole cell."""
    cell: bytes
    """The piece; or the `Manifest`, as msgpack."""
    refused: str
    """In a manifest, why the shard gives nothing; "" where it gives what it has."""


def given_cells(
    number: int,
    shard: int,
    shards: int,
    steps: Collection[str],
    cells: Cells,
    refused: str = "",
    forms: Mapping[str, str] | None = None,
    began: Mapping[str, int] | None = None,
) -> Iterator[GivenCell]:
    """What a shard gives for a claim of some steps, its manifest last.

    refused: why it gives nothing, "" where it does; forms: by step, what stands for the layout of its cells;
    began: by step, the last revision with which it has begun empty, 0 for none.
    """
    for one in records(cells):
        yield GivenCell(number, shard, shards, one.step, one.key, one.offset, one.size, one.cell, "")
    known = {s: form for s, form in (forms or {}).items() if form}
    empty = {s: revision for s, revision in (began or {}).items() if revision}
    said = _encode(replace(manifest(cells), forms=known, began=empty, steps=tuple(steps)))
    yield GivenCell(number, shard, shards, "", b"", 0, len(said), said, refused)


class Taking:
    """What has come for one claim of some steps, from all shards; never more than one move takes."""

    def __init__(
        self, number: int, steps: Collection[str], cells_max: int = CELLS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self.number = number
        self._cells_max, self._bytes_max = cells_max, bytes_max
        self._cells = self._bytes = 0
        self.refused = ""
        """Why a shard gives nothing, "" where all give."""
        self.forms: dict[str, str] = {}
        """By step, what stands for the layout of its cells, where the shards have said so."""
        self.began: dict[str, int] = {}
        """By step, the last revision with which it has begun empty there, where the shards have said so."""
        self.ignored = 0
        """Records of other claims, and what comes once more has come than moves at once."""
        self._waiting: dict[tuple[int, str], list[StateCell]] = {}
        """By shard and step, the records whose manifest has not come."""
        self._whole: Cells = {}
        """The cells whose manifests have come."""
        self._answered = {step: set[int]() for step in steps}
        """By step, the shards that have given all that they keep of it."""
        self._shards = 0

    def take(self, given: GivenCell) -> None:
        """Take one record; raises `StepError` where what a shard has given is not what left it.

        It does so once as well where more comes than moves at once; nothing of it is kept then.
        """
        if given.number != self.number or self.is_too_large():
            self.ignored += 1
        elif given.step:
            self._take_cell(given)
        else:
            self._take_manifest(given)

    def _take_cell(self, given: GivenCell) -> None:
        if given.shard in self._answered.get(given.step, ()):
            self.ignored += 1
            return
        self._cells, self._bytes = self._cells + (not given.offset), self._bytes + len(given.cell)
        if self.is_too_large():
            self._waiting.clear()
            self._whole.clear()
            raise StepError(
                f"more than {self._cells_max:,} keys or {self._bytes_max:,} bytes would come, which are "
                "the most that move at once: take the move back with gear move or gear rollback, move "
                "fewer steps, or let them keep less (ttl, shorter windows)"
            )
        cell = StateCell(given.step, given.key, given.offset, given.size, given.cell)
        self._waiting.setdefault((given.shard, given.step), []).append(cell)

    def _take_manifest(self, given: GivenCell) -> None:
        expected, shard = _manifest(given.cell), given.shard
        if any(shard in self._answered.get(step, (shard,)) for step in expected.steps):
            self.ignored += 1
            return
        self.forms |= expected.forms
        self.began |= expected.began  # the same in all shards
        arriving = Arriving(expected)
        for step in expected.steps:
            for cell in self._waiting.pop((shard, step), ()):
                arriving.take(cell)
        self._whole |= arriving.cells()
        self._shards = given.shards
        for step in expected.steps:
            self._answered[step].add(shard)
        self.refused = self.refused or given.refused

    def is_too_large(self) -> bool:
        """Whether more has come than moves at once, as it would whenever it is claimed."""
        return self._cells > self._cells_max or self._bytes > self._bytes_max

    @property
    def complete(self) -> bool:
        """Whether every shard has given what it has of every step."""
        return bool(self._shards) and all(len(ones) == self._shards for ones in self._answered.values())

    def cells(self) -> Cells:
        """All cells; raises `StepError` before they are complete."""
        if not self.complete or self.refused:
            raise StepError(
                f"claim {self.number} is not answered: {self.refused or 'cells are on their way'}"
            )
        return self._whole


def claims(number: int, steps: Mapping[str, int], says: str) -> list[Claim]:
    """What a device says of some steps, each with how far the sources above it are."""
    return [Claim(number, step, says, mark) for step, mark in sorted(steps.items())]


def lost(number: int = 0) -> Claim:
    """What a device says that knows of no other claim than `number`."""
    return Claim(number, "", LOST, START_OF_TIME)
