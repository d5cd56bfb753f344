"""How many rows each shard of a keyed stream got in one piece of work, and which keys had most of them.
Besides, how much the shard that did the work keeps.

Beside the rows, in a router; it changes none. Guarantees: what is kept is bounded. Equal rows give the same
tally, in whatever order their keys come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

KEYS_MAX, KEYS_KEPT = 4_096, 1_024
"""Keys that are counted at once; how many of these are kept where more come, those with most rows."""
KEYS_TOLD = 16
KEY_BYTES_MAX = 256
"""A longer key is not told."""


class Dealt(msgspec.Struct, array_like=True, frozen=True):
    """Of one stream: the rows of each shard, and those keys that had most with their rows."""

    rows: list[int]
    keys: list[tuple[bytes, int]]


class Told(msgspec.Struct, array_like=True, frozen=True):
    """dealt: by stream; kept: by stage and shard (`1/0`) the bytes that it keeps after the work; of_steps:
    there, by step, its cells and their bytes without keys.
    """

    dealt: dict[str, Dealt]
    kept: dict[str, int]
    of_steps: dict[str, dict[str, tuple[int, int]]] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Told).decode


class Tally:
    """That of one piece of work."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._rows: dict[str, list[int]] = {}
        self._keys: dict[str, Counter[bytes]] = {}
        self._kept: dict[str, int] = {}
        self._of_steps: dict[str, dict[str, tuple[int, int]]] = {}

    def keeps(self, place: str, size: int, of_steps: Mapping[str, tuple[int, int]]) -> None:
        """Note how many bytes a shard of a stage keeps, and by step how many cells of how many bytes."""
        self._kept[place], self._of_steps[place] = size, dict(of_steps)

    def add(self, stream: str, counts: Mapping[bytes, int], shard_of_key: Mapping[bytes, int]) -> None:
        """Count rows of a stream by their keys."""
        rows = self._rows.setdefault(stream, [0] * self._shards)
        for key, count in counts.items():
            rows[shard_of_key[key]] += count
        keys = self._keys.setdefault(stream, Counter())
        keys.update(counts)
        if len(keys) > KEYS_MAX:
            self._keys[stream] = Counter(dict(_most(keys, KEYS_KEPT)))

    def told(self) -> bytes:
        """What was counted, packed; empty where nothing was."""
        if not self._rows and not self._kept:
            return b""
        dealt = {
            stream: Dealt(
                rows,
                [one for one in _most(self._keys[stream], KEYS_TOLD) if len(one[0]) <= KEY_BYTES_MAX],
            )
            for stream, rows in self._rows.items()
        }
        return _encode(Told(dealt, self._kept, self._of_steps))


def read_tally(packed: bytes) -> Told:
    """What `told` gave."""
    return _decode(packed)


def _most(counts: Mapping[bytes, int], most: int) -> list[tuple[bytes, int]]:
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:most]
