"""Shards: into how many parts a query's keys are dealt, and the names by which Spark spreads them evenly.

They stand between a key and the Spark task that holds its state. Guarantees: a key's shard depends only on
the key and the number of shards. That number is fixed for the life of a checkpoint.
"""

from __future__ import annotations

from zlib import crc32

SHARDS = 4
"""Shards of a new checkpoint: as many tasks at the most can run its keyed steps at once."""

_MASK = 0xFFFFFFFF


def shard_of(key: bytes, shards: int) -> int:
    """The shard that holds an encoded key's state."""
    return crc32(key) % shards


def shard_labels(shards: int, partitions: int) -> tuple[int, ...]:
    """A distinct int for each shard, such that Spark deals shard i to its partition i % partitions.

    Spark hashes what it groups by, and the hashes of a few small numbers are uneven: of 0, 1, 2 and 3 three
    fall into one of two partitions. Only speed depends on it.
    """
    labels: list[int] = []
    free: dict[int, list[int]] = {}
    candidate = 0
    for shard in range(shards):
        wanted = shard % partitions
        while not free.get(wanted):
            free.setdefault(_murmur3(candidate) % partitions, []).append(candidate)
            candidate += 1
        labels.append(free[wanted].pop(0))
    return tuple(labels)


def _murmur3(value: int) -> int:
    """Spark's hash of an int: MurmurHash3 x86_32 of its four bytes, seed 42, as a signed number.

    A. Appleby, SMHasher, 2011; org.apache.spark.unsafe.hash.Murmur3_x86_32.hashInt.
    """
    mixed = _rotated(value * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    state = (_rotated(42 ^ mixed, 13) * 5 + 0xE6546B64 & _MASK) ^ 4
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
