"""HyperLogLog: the number of distinct values from the longest run of zeros in their hashes.

Registers as Flajolet, Fusy, Gandouet, Meunier (2007). The estimate is Ertl's improved raw estimator ("New
cardinality estimation algorithms for HyperLogLog sketches", arXiv 1702.01284, algorithm 6). It needs no
tables and no logarithm, so every machine computes the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

_INDEX_BITS = 12
_REST_BITS = 64 - _INDEX_BITS
_REST = (1 << _REST_BITS) - 1
REGISTERS = 1 << _INDEX_BITS
_SPARSE_MAX = 1_024
_ALPHA = 0.7213475204444817  # 1 / (2 ln 2)


class Registers(msgspec.Struct, array_like=True):
    """The greatest rank of each register: a few by number while there are few (`sparse`), then one byte each
    (`dense`, empty until then).
    """

    sparse: dict[int, int] = {}
    dense: bytes = b""

    def add_all(self, identities: Sequence[bytes]) -> None:
        """Add values by their identities."""
        self._raise_to([_register(identity) for identity in set(identities)])

    def merge(self, other: Registers) -> None:
        """Add what others hold."""
        found = list(other.sparse.items())
        found += [(index, rank) for index, rank in enumerate(other.dense) if rank]
        self._raise_to(found)

    def ranks(self) -> list[int]:
        """The ranks of the registers that are not 0."""
        return list(self.sparse.values()) + [rank for rank in self.dense if rank]

    def _raise_to(self, found: list[tuple[int, int]]) -> None:
        if not self.dense:
            sparse = self.sparse
            for index, rank in found:
                if rank > sparse.get(index, 0):
                    sparse[index] = rank
            if len(sparse) <= _SPARSE_MAX:
                return
            found = list(sparse.items())
            self.sparse = {}
        dense = bytearray(self.dense or bytes(REGISTERS))
        for index, rank in found:
            if rank > dense[index]:
                dense[index] = rank
        self.dense = bytes(dense)


def _register(identity: bytes) -> tuple[int, int]:
    """(register, rank) of a value."""
    number = int.from_bytes(blake2b(identity, digest_size=8).digest(), "big")
    return number >> _REST_BITS, _REST_BITS + 1 - (number & _REST).bit_length()


def estimate(ranks: Sequence[int]) -> float:
    """The estimate of the registers that are not 0, by Ertl's algorithm 6."""
    counts = [0] * (_REST_BITS + 2)
    for rank in ranks:
        counts[rank] += 1
    counts[0] = REGISTERS - len(ranks)
    if not ranks:
        return 0.0
    z = REGISTERS * _tau((REGISTERS - counts[_REST_BITS + 1]) / REGISTERS)
    for rank in range(_REST_BITS, 0, -1):
        z = 0.5 * (z + counts[rank])
    z += REGISTERS * _sigma(counts[0] / REGISTERS)
    return _ALPHA * REGISTERS * REGISTERS / z


def _sigma(x: float) -> float:
    """x + sum over k >= 1 of x**(2**k) * 2**(k-1)."""
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    """(1 - x - sum over k >= 1 of (1 - x**(2**-k))**2 * 2**-k) / 3."""
    if x in (0.0, 1.0):
        return 0.0
    y, z, before = 1.0, 1.0 - x, -1.0
    while z != before:
        x, before = math.sqrt(x), z
        y *= 0.5
        z -= (1.0 - x) * (1.0 - x) * y
    return z / 3.0
