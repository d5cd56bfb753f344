"""Saved cells on their way from one tier to the other: as records, in pieces, and put together again.

Stands between the fragment that gives a device's cells of some steps away and the one that takes them in.
Both tiers save a cell in one form, so that nothing is converted. Guarantees: what arrives is what left, by
count and digest, or nothing of it is given out. A cell is taken in where its key is free and its bytes are a
state of the step; any other stays outside, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b

import msgspec

from geartrain.errors import SchemaError, StepError
from geartrain.records.keys import decode_key
from geartrain.records.record import Record

Cells = dict[tuple[str, bytes], bytes]
"""Saved cells by (step, encoded key)."""
PIECE_BYTES_MAX = 1 << 17
"""Of a cell in one record: half of what a batch takes as one value."""
CELLS_MAX, BYTES_MAX = 1_000_000, 1 << 30
"""Of one move: beyond, it is refused before anything has left."""
BATCH_CELLS_MAX, BATCH_BYTES_MAX = 5_000, 1 << 19
"""Of one batch on its way."""
_CELL_BYTES = 64
"""What a cell takes beside its key and value, about."""


FORM = "@"
"""Behind the id of a step, and before each of two things that a device may say of its cells: what stands for
their layout, where that can change, and the number of the revision that has kept them.
"""


class StateCell(Record):
    """A saved cell that moves, or a piece of one: the bytes from `offset` on of `size`.

    step: with the form of the cell and the revision that has kept it behind its id, where these are said.
    """

    step: str
    key: bytes
    offset: int
    size: int
    cell: bytes


class Manifest(msgspec.Struct, frozen=True):
    """What a move consists of, by which a receiver knows whether all of it has come, to the last bit."""

    cells: int
    """How many."""
    size: int
    """Bytes of all cells, without their keys."""
    digest: bytes
    """Of the cells in order of (step, key)."""
    forms: dict[str, str] = {}
    """By step, what stands for the layout of its cells, where that can change."""
    began: dict[str, int] = {}
    """By step, the last revision with which the step has begun empty in the data centre, where one has."""
    steps: tuple[str, ...] = ()
    """The steps whose cells a shard has given; none where a device has sent the cells."""

    def fits(self, cells: Mapping[tuple[str, bytes], bytes]) -> bool:
        """Whether these are the cells of the move, to the last bit."""
        found = manifest(cells)
        return (found.cells, found.size, found.digest) == (self.cells, self.size, self.digest)


class Refused(msgspec.Struct, frozen=True):
    """A cell that was not taken in, and why."""

    step: str
    key: bytes
    cell: bytes
    reason: str


class Arrived(msgspec.Struct, frozen=True):
    """What became of the cells of a move: those taken in, and those set aside."""

    cells: Cells
    refused: tuple[Refused, ...]


def manifest(cells: Mapping[tuple[str, bytes], bytes]) -> Manifest:
    """What identifies some cells, whatever order they come in."""
    digest = blake2b(digest_size=16)
    for (step, key), cell in sorted(cells.items()):
        for part in (step.encode(), key, cell):
            digest.update(len(part).to_bytes(8, "big") + part)
    return Manifest(len(cells), sum(map(len, cells.values())), digest.digest())


def check_size(
    cells: Mapping[tuple[str, bytes], bytes], cells_max: int = CELLS_MAX, bytes_max: int = BYTES_MAX
) -> None:
    """Raise `StepError` for cells that are more than one move takes, with what each step would send."""
    sizes: dict[str, tuple[int, int]] = {}
    for (step, _), cell in cells.items():
        count, size = sizes.get(step, (0, 0))
        sizes[step] = count + 1, size + len(cell)
    if why := too_large(sizes, cells_max, bytes_max):
        raise StepError(why)


def too_large(
    sizes: Mapping[str, tuple[int, int]], cells_max: int = CELLS_MAX, bytes_max: int = BYTES_MAX
) -> str:
    """Why so much state does not move at once, as a sentence; "" where it does.

    sizes: by step its cells and their bytes, without keys.
    """
    cells, total = sum(count for count, _ in sizes.values()), sum(size for _, size in sizes.values())
    if cells <= cells_max and total <= bytes_max:
        return ""
    told = ", ".join(f"{step} has {c:,} keys of {s:,} bytes" for step, (c, s) in sorted(sizes.items()))
    return (
        f"the state to move is too large: {told}; {cells_max:,} keys and {bytes_max:,} bytes are the most "
        "that move at once: move fewer steps, or let them keep less (ttl, shorter windows)"
    )


def formed(step: str, form: str, revision: int = 0) -> str:
    """How a cell on its way calls its step; form: "" for none; revision: that has kept it, 0 for unknown."""
    if revision:
        return f"{step}{FORM}{form}{FORM}{revision}"
    return f"{step}{FORM}{form}" if form else step


def said_of(called: str) -> tuple[str, str, int]:
    """The id of a step, the form of a cell, and the revision that has kept it. These are "" and 0 where the
    device has not said them: a program of before says no revision.
    """
    step, _, rest = called.partition(FORM)
    form, _, number = rest.partition(FORM)
    return step, form, int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0


def records(
    cells: Mapping[tuple[str, bytes], bytes],
    piece_bytes: int = PIECE_BYTES_MAX,
    forms: Mapping[str, str] | None = None,
    revision: int = 0,
) -> Iterator[StateCell]:
    """The cells as records in order of (step, key), those above `piece_bytes` in pieces; forms: by step, what
    stands for the layout of its cells; revision: the number of the one that has kept them, 0 for unknown.
    """
    for (name, key), cell in sorted(cells.items()):
        step = formed(name, (forms or {}).get(name, ""), revision)
        for offset in range(0, max(1, len(cell)), piece_bytes):
            yield StateCell(step, key, offset, len(cell), cell[offset : offset + piece_bytes])


def batches(
    moving: Iterable[StateCell], cells_max: int = BATCH_CELLS_MAX, bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[list[StateCell]]:
    """Records in lists that one batch takes."""
    batch: list[StateCell] = []
    size = 0
    for record in moving:
        more = len(record.step) + len(record.key) + len(record.cell) + _CELL_BYTES
        if batch and (len(batch) >= cells_max or size + more > bytes_max):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += more
    if batch:
        yield batch


class Arriving:
    """The records of one move until all are there. A record that came before, and one that belongs to no cell
    as it was begun, is left out and counted in `ignored`.
    """

    def __init__(self, expected: Manifest) -> None:
        self.expected = expected
        self.ignored = 0
        self._cells: Cells = {}
        self._begun: dict[tuple[str, bytes], bytearray] = {}
        self._bytes = 0

    def take(self, record: StateCell) -> None:
        """Take one record; raises `StepError` where more comes than the move has."""
        at = (record.step, record.key)
        begun = self._begun.get(at, b"")
        if (
            at in self._cells
            or record.offset != len(begun)
            or record.offset + len(record.cell) > record.size
            or (not record.cell and record.size)
        ):
            self.ignored += 1
            return
        self._bytes += len(record.cell)
        if self._bytes > self.expected.size or len(self._cells) >= self.expected.cells:
            raise StepError(
                f"the state of step {record.step!r} that arrives is more than the "
                f"{self.expected.cells:,} keys and {self.expected.size:,} bytes that left: nothing of it is "
                "taken in; move the step again"
            )
        whole = self._begun.setdefault(at, bytearray())
        whole += record.cell
        if len(whole) == record.size:
            self._cells[at] = bytes(self._begun.pop(at))

    @property
    def complete(self) -> bool:
        """Whether as many cells are there as left."""
        return len(self._cells) == self.expected.cells and not self._begun

    def cells(self) -> Cells:
        """All that left; raises `StepError` unless it is there to the last bit."""
        if not self.complete or not self.expected.fits(self._cells):
            raise StepError(
                f"{len(self._cells):,} of {self.expected.cells:,} keys of a moved state have arrived, and "
                "they are not those that left: it stays where it was; move the step again"
            )
        return self._cells


def taken_in(
    cells: Mapping[tuple[str, bytes], bytes],
    holder: Callable[[str, bytes], str | None],
    check: Callable[[str, bytes], None],
    counters: dict[str, int],
    set_aside_max: int = 1_000,
) -> Arrived:
    """Which of the cells of a move can be loaded.

    holder: says who has a cell of (step, key) already, None for nobody; check: raises `SchemaError` for a
    cell that is no state of a step; counters: `<step>.state_taken` and `.state_refused` count here. Raises
    `StepError`, and takes nothing, where more than `set_aside_max` are refused.
    """
    taken: Cells = {}
    refused: list[Refused] = []
    for (step, key), cell in sorted(cells.items()):
        reason = _reason(step, key, cell, holder, check)
        if not reason:
            taken[step, key] = cell
            continue
        if len(refused) >= set_aside_max:
            raise StepError(
                f"more than {set_aside_max:,} keys of a moved state are refused, such as: {reason}"
            )
        refused.append(Refused(step, key, cell, reason))
    for at in (*((step, "taken") for step, _ in taken), *((one.step, "refused") for one in refused)):
        name = f"{at[0]}.state_{at[1]}"
        counters[name] = counters.get(name, 0) + 1
    return Arrived(taken, tuple(refused))


def _reason(
    step: str,
    key: bytes,
    cell: bytes,
    holder: Callable[[str, bytes], str | None],
    check: Callable[[str, bytes], None],
) -> str:
    """Why a cell cannot be loaded, empty where it can."""
    try:
        named = ascii(decode_key(key))[:200]
    except (SchemaError, ValueError, LookupError):
        return f"step {step!r}: a moved state has no key that can be read"
    if (held := holder(step, key)) is not None:
        return f"step {step!r}: the key {named} is held for {held}: its moved state is set aside"
    try:
        check(step, cell)
    except SchemaError as error:
        return f"the key {named}: {error}"
    return ""
