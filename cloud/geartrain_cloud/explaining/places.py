"""Origins read backwards: from the place of a record to those of what it was made of.

Beside the tracer, which knows the graph. Guarantees: the inverse of how operators give origins (DESIGN: order
is part of the data). Where a path may have been extended in two ways, both parents are given, and who looks
them up finds the one that there is.
"""

from __future__ import annotations

from collections.abc import Iterator

from geartrain.errors import SchemaError
from geartrain.records.batch import Batch, child_path
from geartrain.records.keys import TUPLE, decode_key, encode_key
from geartrain_cloud.explaining.errors import ExplainError

Place = tuple[int, str, int, bytes]
"""Event time, and origin: name, number, path. Unique within a stream, and its canonical order."""

_PLAIN_MAX = 248
_START_BYTES = len(encode_key((0,)))


def place_of(batch: Batch, row: int) -> Place:
    """The place of a record of a batch."""
    path = b"" if batch.paths is None else batch.paths[row]
    return batch.times[row], batch.names[row], batch.numbers[row], path


def parents(place: Place) -> set[Place]:
    """The records of which this one may be a child."""
    time, name, number, path = place
    return {(time, name, number, path[:cut]) for cut, _ in _last_indexes(path)}


def merged_from(place: Place) -> tuple[int, Place]:
    """The number of the input of a merge, and the place that the record had there."""
    time, name, number, path = place
    for cut, index in _last_indexes(path):
        return index, (time, name, number, path[:cut])
    raise ExplainError(f"the origin {name}:{number}:{path.hex()} is none that a merge gives")


def window_of(path: bytes) -> tuple[bytes, int]:
    """The encoded key of a window's result, and where the window starts."""
    for cut, _ in _last_indexes(path):
        key, start = path[: max(0, cut - _START_BYTES)], path[max(0, cut - _START_BYTES) : cut]
        if key and start[:1] == TUPLE and _is_key(key):
            try:
                found = decode_key(start)
            except SchemaError:
                continue
            if len(found) == 1 and type(found[0]) is int:
                return key, found[0]
    raise ExplainError(f"the path {path.hex()} is none that a window gives")


def timer_key(path: bytes) -> bytes:
    """The encoded key of what a timer has put out."""
    for cut, _ in _last_indexes(path):
        if _is_key(path[:cut]):
            return path[:cut]
    raise ExplainError(f"the path {path.hex()} is none that a timer gives")


def pair_of(path: bytes) -> tuple[Place, Place | None]:
    """The places of the two records of a joined pair; of the left one alone where it met none."""
    try:
        found = decode_key(path)
    except SchemaError:
        found = ()
    if len(found) not in (4, 8):
        raise ExplainError(f"the path {path.hex()} is none that a join gives")
    return tuple(found[:4]), tuple(found[4:]) or None


def _is_key(raw: bytes) -> bool:
    try:
        return encode_key(decode_key(raw)) == raw
    except SchemaError:
        return False


def _last_indexes(path: bytes) -> Iterator[tuple[int, int]]:
    """How the last index of a path may lie in it: where it begins, and the index; the shortest first."""
    if path and path[-1] < _PLAIN_MAX:
        yield len(path) - 1, path[-1]
    for size in range(1, min(8, len(path) - 1) + 1):
        cut = len(path) - 1 - size
        index = int.from_bytes(path[-size:], "big")
        if child_path(b"", index) == path[cut:]:
            yield cut, index
