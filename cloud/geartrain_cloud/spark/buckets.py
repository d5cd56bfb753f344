"""The saved state of one shard of a stage: many user keys in few Spark values.

One Spark value for each user key would cost ten times more. This module stands between a fragment's keyed
state and Spark's MapState.

Guarantees: only buckets that hold a touched key or a cell whose time has come are read. Only buckets that
changed are written. Spark keeps what is written for a micro-batch wholly or not at all.

A call to Java takes as long as an answer that is some kilobytes larger. So after a few small buckets, one
call fetches all others as bytes; still only those that are needed are decoded.

A shard has 64 buckets. A user key lies in bucket `crc32(key) // shards % 64`. Each bucket is a msgpack value
`{step: {encoded key: cell}}`. Bucket -1 holds the shard's `_Place`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol
from zlib import crc32

import msgspec

from geartrain.errors import SchemaError
from geartrain.graph.graph import STATE
from geartrain.operators.broadcast import TABLE_KEY
from geartrain.state.keyed import NEVER, due_of
from geartrain.state.moving import FORM

BUCKETS = 64
"""Buckets of one shard, where nothing else is said; fixed for the life of a checkpoint."""

ASIDE, BEGUN = "_aside:", f"{STATE}:"
"""Before the id of a step: under which name a shard keeps cells that it has given to a device, and those of
which pieces have come.
"""

_PLACE = -1

_ALONE_MAX = 6
"""Buckets that are read one by one before all others are fetched together."""
_SMALL_BYTES = 65_536
"""Of a bucket on the average; larger ones are always read one by one."""


class _Place(msgspec.Struct, array_like=True):
    """clocks: of the flow's sources, up to which the shard has come, microseconds; positions: of the last row
    by (entry stream, partition of the log); due: by step and bucket the least due time of its cells, where
    one has any; size: bytes of all buckets, -1 where nobody has counted what an older version wrote; forms:
    by step, what stands for the type of the states in its cells; kept: by step its cells and their bytes,
    without keys, None where nobody has counted what an older version wrote; began: by step, the last revision
    with which it began empty.
    """

    clocks: dict[str, int] = {}
    positions: dict[str, dict[str, int]] = {}
    due: dict[str, dict[int, int]] = {}
    size: int = -1
    forms: dict[str, str] = {}
    kept: dict[str, tuple[int, int]] | None = None
    began: dict[str, int] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode_bucket = msgspec.msgpack.Decoder(dict[str, dict[bytes, bytes]]).decode
_decode_place = msgspec.msgpack.Decoder(_Place).decode


class StateMap(Protocol):
    """What is used of Spark's MapState."""

    def getValue(self, key: tuple[int]) -> tuple[Any, ...] | None:  # noqa: N802
        """The value of `key`, None where there is none."""
        ...

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """All keys with their values."""
        ...

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None:  # noqa: N802
        """Set the value of `key`."""
        ...


class ShrinkingMap(StateMap, Protocol):
    """One that keys are taken from, too."""

    def removeKey(self, key: tuple[int]) -> None:  # noqa: N802
        """Have no value of `key`."""
        ...


_BESIDE = -2
"""From this key of the map down lies what is kept beside the state of a shard, its place first."""


class Beside:
    """A second state of a shard in the same map, kept beside the first until `take_beside` (a `StateMap`)."""

    def __init__(self, state: ShrinkingMap) -> None:
        self._state = state

    def getValue(self, key: tuple[int]) -> tuple[Any, ...] | None:  # noqa: N802
        """The value of `key`, None where there is none."""
        return self._state.getValue((_mirrored(key[0]),))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """All keys with their values."""
        for (number,), value in self._state.iterator():
            if number <= _BESIDE:
                yield (_mirrored(number),), value

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None:  # noqa: N802
        """Set the value of `key`."""
        self._state.updateValue((_mirrored(key[0]),), value)

    def removeKey(self, key: tuple[int]) -> None:  # noqa: N802
        """Have no value of `key`."""
        self._state.removeKey((_mirrored(key[0]),))


def _mirrored(number: int) -> int:
    return _BESIDE + _PLACE - number


def take_beside(state: ShrinkingMap, steps: Collection[str]) -> int:
    """Have a shard keep what was kept beside its state of some steps, of which it keeps nothing; all else
    that was kept there is forgotten. How many cells these are.
    """
    beside, count = Beside(state), 0
    held = list(beside.iterator())
    raw = state.getValue((_PLACE,))
    place = _Place(size=0) if raw is None else _decode_place(bytes(raw[0]))
    for key, (packed,) in held:
        if key[0] == _PLACE:
            other = _decode_place(bytes(packed))
            place.due |= {step: due for step, due in other.due.items() if step in steps}
            place.forms |= {step: form for step, form in other.forms.items() if step in steps}
            if place.kept is not None and other.kept is not None:
                place.kept |= {step: kept for step, kept in other.kept.items() if step in steps}
            else:
                place.kept = None  # the next save counts
            for source, clock in other.clocks.items():  # both have come as far
                place.clocks[source] = max(place.clocks.get(source, clock), clock)
        elif taken := {step: c for step, c in _decode_bucket(bytes(packed)).items() if step in steps and c}:
            here = state.getValue(key)
            before = b"" if here is None else bytes(here[0])
            cells = {} if here is None else _decode_bucket(before)
            encoded = _encode(cells | taken)
            state.updateValue(key, (encoded,))
            place.size += len(encoded) - len(before) if place.size >= 0 else 0
            count += sum(map(len, taken.values()))
    for key, _ in held:
        beside.removeKey(key)
    if held:
        state.updateValue((_PLACE,), (_encode(place),))
    return count


def forget_steps(state: StateMap, steps: Collection[str], revision: int) -> dict[str, int]:
    """Forget all cells of some steps of a shard, which begin empty with a revision; how many each had, by
    step.
    """
    forgotten, place, size = dict.fromkeys(steps, 0), _Place(size=0, kept={}), 0
    for (number,), (raw,) in list(state.iterator()):
        if number <= _BESIDE:
            continue
        if number == _PLACE:
            place = _decode_place(bytes(raw))
            continue
        cells = _decode_bucket(bytes(raw))
        for name in [name for name in cells if _owner(name) in forgotten]:
            forgotten[_owner(name)] += len(cells.pop(name))
        packed = _encode(cells)
        size += len(packed)
        state.updateValue((number,), (packed,))
    place.due = {name: due for name, due in place.due.items() if _owner(name) not in forgotten}
    place.forms = {step: form for step, form in place.forms.items() if step not in steps}
    if place.kept is not None:
        place.kept = {name: kept for name, kept in place.kept.items() if _owner(name) not in forgotten}
    place.size = size
    place.began |= dict.fromkeys(steps, revision)
    state.updateValue((_PLACE,), (_encode(place),))
    return forgotten


def _owner(name: str) -> str:
    """The step that what lies under a name belongs to: its cells, those aside, and those in pieces."""
    for beside in (ASIDE, BEGUN):
        if name.startswith(beside):
            return name[len(beside) :].partition(FORM)[0]
    return name


class StepSizes:
    """How much there is of each step's state, as cells come and go: cells, and their bytes without keys."""

    def __init__(self, kept: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.kept = dict(kept or {})

    def change(self, step: str, former: bytes | None, cell: bytes | None) -> None:
        """A cell takes the place of a former one; None: of none, or there is none then."""
        cells, size = self.kept.get(step, (0, 0))
        cells += (cell is not None) - (former is not None)
        size += len(cell or b"") - len(former or b"")
        if cells > 0:
            self.kept[step] = cells, size
        else:
            self.kept.pop(step, None)

    def all_of(self, step: str, cells: Mapping[bytes, bytes]) -> None:
        """Cells come."""
        if cells:
            count, size = self.kept.get(step, (0, 0))
            self.kept[step] = count + len(cells), size + sum(map(len, cells.values()))


class _Part(msgspec.Struct, array_like=True):
    """What one shard keeps for another one, to which its keys are dealt anew. buckets: of that one."""

    place: _Place
    buckets: dict[int, dict[str, dict[bytes, bytes]]] = {}


_decode_part = msgspec.msgpack.Decoder(_Part).decode


def split_state(state: StateMap, shards: int, buckets: int, broadcasts: Collection[str] = ()) -> list[bytes]:
    """What a shard keeps, apart for each of the `shards` shards to which keys are dealt from now on; its
    state stays as it is. buckets: of each of these; broadcasts: steps whose table every shard has whole.
    """
    place = _Place()
    parts: list[dict[int, dict[str, dict[bytes, bytes]]]] = [{} for _ in range(shards)]
    for (number,), (raw,) in state.iterator():
        if number == _PLACE:
            place = _decode_place(bytes(raw))
            continue
        for step, cells in _decode_bucket(bytes(raw)).items():
            for key, cell in cells.items():
                checksum = crc32(key)
                is_whole = key == TABLE_KEY and step in broadcasts
                for part in parts if is_whole else (parts[checksum % shards],):
                    bucket = part.setdefault(checksum // shards % buckets, {})
                    bucket.setdefault(step, {})[key] = cell
    place.due = {}
    return [_encode(_Part(place, part)) for part in parts]


def join_state(state: StateMap, parts: Iterable[bytes]) -> int:
    """Fill a shard that keeps nothing with what former shards kept of its keys, as `split_state` gave it;
    how many cells these are.
    """
    place, count, sizes = _Place(size=0), 0, StepSizes()
    buckets: dict[int, dict[str, dict[bytes, bytes]]] = {}
    for raw in parts:
        part = _decode_part(raw)
        place.forms |= part.place.forms
        place.began |= part.place.began  # the same in all shards, as all clocks
        for source, clock in part.place.clocks.items():  # the same in all shards that ever ran
            place.clocks[source] = max(place.clocks.get(source, clock), clock)
        for entry, positions in part.place.positions.items():
            last = place.positions.setdefault(entry, {})
            for partition, position in positions.items():
                last[partition] = max(last.get(partition, position), position)
        for number, steps in part.buckets.items():
            for step, cells in steps.items():
                buckets.setdefault(number, {}).setdefault(step, {}).update(cells)
                count += len(cells)
    for number, steps in sorted(buckets.items()):
        for step, cells in steps.items():
            sizes.all_of(step, cells)
            least = due_of(min(cells.values()))
            if least != NEVER:
                place.due.setdefault(step, {})[number] = least
        packed = _encode(steps)
        place.size += len(packed)
        state.updateValue((number,), (packed,))
    place.kept = sizes.kept
    state.updateValue((_PLACE,), (_encode(place),))
    return count


class BucketState:
    """Saved state of one shard, for one call: buckets are read when they are first touched (a
    `StateBackend`).
    """

    def __init__(self, state: StateMap, shards: int, buckets: int = BUCKETS) -> None:
        """`shards` and `buckets`: the same for the life of the state."""
        self._state, self._shards, self._count = state, shards, buckets
        self._buckets: dict[int, dict[str, dict[bytes, bytes]]] = {}
        self._fetched: dict[int, bytes] | None = None
        self._bytes_read = 0
        self._lengths: dict[int, int] = {}
        raw = self._raw(_PLACE)
        self._place = _Place(size=0, kept={}) if raw is None else _decode_place(raw)
        self._sizes = None if self._place.kept is None else StepSizes(self._place.kept)

    @property
    def size(self) -> int:
        """Bytes of what is saved, without the shard's place; -1 until `save` where that is not known."""
        return self._place.size

    @property
    def kept(self) -> Mapping[str, tuple[int, int]]:
        """By step its saved cells and their bytes, without keys; as they were until `save` has run."""
        return {} if self._sizes is None else self._sizes.kept

    @property
    def clocks(self) -> Mapping[str, int]:
        """By source, up to which the shard has come, microseconds."""
        return self._place.clocks

    @clocks.setter
    def clocks(self, clocks: Mapping[str, int]) -> None:
        self._place.clocks = dict(clocks)

    def began(self, step: str) -> int:
        """The last revision with which a step began empty, 0 for none."""
        return self._place.began.get(step, 0)

    def positions(self, entry: str) -> dict[str, int]:
        """The last position of each partition that came by the stream `entry`; may be changed."""
        return self._place.positions.setdefault(entry, {})

    def load(self, step: str, key: bytes) -> bytes | None:
        """The saved cell of (step, encoded key), None where there is none."""
        return self._bucket(self._number(key)).get(step, {}).get(key)

    def keys(self, step: str, most: int) -> list[bytes]:
        """Up to `most` keys of saved cells of a step: of the first buckets that have as many."""
        found: list[bytes] = []
        for number in range(self._count):
            found += self._bucket(number).get(step, ())
            if len(found) >= most:
                break
        return sorted(found)[:most]

    def cells(self, step: str) -> list[tuple[bytes, bytes]]:
        """All saved cells of a step by key; reads every bucket."""
        return [one for at in range(self._count) for one in sorted(self._bucket(at).get(step, {}).items())]

    def due(self, step: str, watermark: int) -> Iterator[bytes]:
        """The keys of the saved cells of a step that are due at `watermark` or before."""
        for number, least in sorted(self._place.due.get(step, {}).items()):
            if least <= watermark:
                cells = self._bucket(number).get(step, {})
                yield from [key for key, cell in cells.items() if due_of(cell) <= watermark]

    def due_cells(self, clock: int) -> int:
        """How many saved cells lie in buckets of which one is due at `clock` (microseconds) or before: at
        least as many as are due.
        """
        return sum(
            len(self._bucket(number).get(step, {}))
            for step, of_step in self._place.due.items()
            for number, least in of_step.items()
            if least <= clock
        )

    def bring(
        self,
        step: str,
        form: str,
        before: str,
        remakers: Mapping[str, Callable[[str, bytes], bytes]],
        on_work: Callable[[int], None] = lambda calls: None,
    ) -> int:
        """Have the saved cells of a step be of a form; returns how many could not be made of it, and went.

        before: their form where the shard has noted none; remakers: by the names under which it has such
        cells, what makes one of this form of a former form and its cell; may raise `SchemaError`. on_work:
        called before each bucket with how many cells it has.
        """
        former, self._place.forms[step] = self._place.forms.get(step, before), form
        lost = 0
        for name in remakers if former != form else ():
            for number in range(self._count):
                cells = self._bucket(number).get(name)
                if not cells:
                    continue
                on_work(len(cells))
                for key, cell in list(cells.items()):
                    try:
                        cells[key] = remakers[name](former, cell)
                    except SchemaError:
                        del cells[key]
                        lost += 1
                    self._note_size(name, cell, cells.get(key))
                self._note_due(number, name)
                self._write(number)
        return lost

    def drop(self, step: str, key: bytes) -> None:
        """Forget the saved cell of (step, encoded key); it must be among the changes of `save`."""
        former = self._bucket(self._number(key)).get(step, {}).pop(key, None)
        self._note_size(step, former, None)

    def save(self, changes: dict[tuple[str, bytes], bytes | None]) -> None:
        """Write what changed, and the shard's place."""
        if self._sizes is None:
            self._sizes = StepSizes()
            for number in range(self._count):
                for step, cells in self._bucket(number).items():
                    self._sizes.all_of(step, cells)
        if self._place.size < 0:
            self._place.size = sum(len(raw) for (at,), (raw,) in self._state.iterator() if at != _PLACE)
        touched: set[tuple[int, str]] = set()
        for (step, key), cell in changes.items():
            number = self._number(key)
            touched.add((number, step))
            cells = self._bucket(number).setdefault(step, {})
            self._note_size(step, cells.get(key), cell)
            if cell is None:
                cells.pop(key, None)
            else:
                cells[key] = cell
        for number, step in touched:
            self._note_due(number, step)
        for number in sorted({number for number, _ in touched}):
            self._write(number)
        self._place.kept = self._sizes.kept
        self._state.updateValue((_PLACE,), (_encode(self._place),))

    def _write(self, number: int) -> None:
        packed = _encode(self._buckets[number])
        if self._place.size >= 0:
            self._place.size += len(packed) - self._lengths.get(number, 0)
        self._lengths[number] = len(packed)
        self._state.updateValue((number,), (packed,))

    def _note_size(self, step: str, former: bytes | None, cell: bytes | None) -> None:
        if self._sizes is not None:
            self._sizes.change(step, former, cell)

    def _note_due(self, number: int, step: str) -> None:
        cells = self._buckets[number][step]
        if not cells:
            del self._buckets[number][step]
        # The first bytes of a cell sort as the due times do: no need to read them one by one.
        least = due_of(min(cells.values())) if cells else NEVER
        of_step = self._place.due.setdefault(step, {})
        if least == NEVER:
            of_step.pop(number, None)
        else:
            of_step[number] = least

    def _bucket(self, number: int) -> dict[str, dict[bytes, bytes]]:
        if number not in self._buckets:
            raw = self._raw_bucket(number)
            self._lengths[number] = len(raw or b"")
            self._buckets[number] = {} if raw is None else _decode_bucket(raw)
        return self._buckets[number]

    def _raw_bucket(self, number: int) -> bytes | None:
        read = len(self._buckets)
        if self._fetched is None and read >= _ALONE_MAX and self._bytes_read <= read * _SMALL_BYTES:
            self._fetched = {key: bytes(value) for (key,), (value,) in self._state.iterator()}
        if self._fetched is not None:
            return self._fetched.get(number)
        raw = self._raw(number)
        self._bytes_read += len(raw or b"")
        return raw

    def _raw(self, number: int) -> bytes | None:
        found = self._state.getValue((number,))
        return None if found is None else bytes(found[0])

    def _number(self, key: bytes) -> int:
        # The shard is the remainder of the same checksum, so the bucket takes the quotient.
        return crc32(key) // self._shards % self._count
