"""How unevenly the rows of flows are dealt: of each keyed stream, the slot and the keys with most of them.
Besides, how much the slots of a flow keep.

Beside the record's path, at the end of micro-batches; read by the host for its status. Guarantees: what is
kept is bounded, and what lies some minutes back counts less and less. A key's share is a lower bound.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec

from geartrain.errors import GeartrainError
from geartrain.ports import StateSize
from geartrain.runtime.asking import shown_key
from geartrain_cloud.spark.tally import read_tally

HALF_LIFE_S = 60.0
"""After so long a row counts half."""
KEYS_MAX = 64
"""Keys that are counted of a stream."""
KEYS_SHOWN = 3
SHARE_LEAST = 0.01
"""A key with a smaller share is not shown."""
KEY_CHARS_MAX = 100


class KeyShare(msgspec.Struct, frozen=True):
    """A key, as text, and its share of its stream's rows."""

    key: str
    share: float


class Hottest(msgspec.Struct, frozen=True):
    """Of a keyed stream, by the id of its step. slots: over how many it is dealt; slot: the one (from 0) with
    most rows; share: of that one; keys: those with most rows.
    """

    step: str
    slots: int
    slot: int
    share: float
    keys: list[KeyShare] = []


@dataclass(slots=True)
class _Count:
    """rows: of a key, at least; over: so many of them may be those of others."""

    rows: float
    over: float = 0.0


@dataclass(slots=True)
class _Stream:
    """Counts of one stream. Keys: A. Metwally et al., Efficient Computation of Frequent and Top-k Elements in
    Data Streams, 2005 (space-saving).
    """

    at: float
    rows: list[float]
    keys: dict[bytes, _Count] = field(default_factory=dict)

    def fade(self, now: float) -> None:
        factor, self.at = 0.5 ** ((now - self.at) / HALF_LIFE_S), now
        self.rows = [rows * factor for rows in self.rows]
        for count in self.keys.values():
            count.rows, count.over = count.rows * factor, count.over * factor

    def add(self, keys: Iterable[tuple[bytes, int]]) -> None:
        for key, rows in keys:
            if key in self.keys:
                self.keys[key].rows += rows
            elif len(self.keys) < KEYS_MAX:
                self.keys[key] = _Count(rows)
            else:
                least = min(self.keys, key=lambda one: self.keys[one].rows)
                over = self.keys.pop(least).rows
                self.keys[key] = _Count(over + rows, over)

    def hottest(self, step: str) -> Hottest:
        total = sum(self.rows)
        slot = max(range(len(self.rows)), key=self.rows.__getitem__)
        sure = sorted(((count.rows - count.over, key) for key, count in self.keys.items()), reverse=True)
        shares = [KeyShare(_text(key), round(rows / total, 4)) for rows, key in sure[:KEYS_SHOWN]]
        kept = [one for one in shares if one.share >= SHARE_LEAST]
        return Hottest(step, len(self.rows), slot, round(self.rows[slot] / total, 4), kept)


class Skew:
    """That of the flows of a group; used from several threads."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """now_s: monotonic seconds."""
        self._now_s, self._lock = now_s, threading.Lock()
        self._streams: dict[str, dict[str, _Stream]] = {}
        self._kept: dict[str, dict[str, int]] = {}
        self._of_steps: dict[str, dict[str, dict[str, tuple[int, int]]]] = {}

    def add(self, tallies: Mapping[str, Iterable[bytes]], here: Collection[str]) -> None:
        """Count what tasks of a micro-batch have told, by generation; others than those in `here` go."""
        with self._lock:
            now = self._now_s()
            for gone in (self._streams, self._kept, self._of_steps):
                for name in gone.keys() - set(here):
                    del gone[name]
            for name, several in tallies.items():
                streams = self._streams.setdefault(name, {})
                for packed in several:
                    told = read_tally(packed)
                    self._kept.setdefault(name, {}).update(told.kept)
                    self._of_steps.setdefault(name, {}).update(told.of_steps)
                    for step, dealt in told.dealt.items():
                        one = streams.setdefault(step, _Stream(now, [0.0] * len(dealt.rows)))
                        one.fade(now)
                        one.rows = [old + new for old, new in zip(one.rows, dealt.rows, strict=True)]
                        one.add(dealt.keys)

    def of(self, name: str) -> list[Hottest]:
        """Of each keyed stream of a generation, by step, those with most rows."""
        with self._lock:
            return [one.hottest(step) for step, one in sorted(self._streams.get(name, {}).items())]

    def state_bytes(self, name: str, places: int) -> int | None:
        """How much all slots of a generation keep; None until each has told. places: slots of all stages."""
        with self._lock:
            kept = self._kept.get(name, {})
            return sum(kept.values()) if len(kept) == places else None

    def kept(self, name: str, places: int) -> dict[str, StateSize] | None:
        """How much all slots of a generation keep of each step; None as for `state_bytes`."""
        with self._lock:
            of_steps = self._of_steps.get(name, {})
            if len(of_steps) != places:
                return None
            found: dict[str, StateSize] = {}
            for step, (cells, size) in chain.from_iterable(one.items() for one in of_steps.values()):
                if not step.startswith("_"):
                    former = found.get(step, StateSize())
                    found[step] = StateSize(former.cells + cells, former.bytes + size)
            return found


def _text(key: bytes) -> str:
    try:
        shown: Any = shown_key(key)
    except (GeartrainError, ValueError, msgspec.DecodeError):
        shown = key.hex()
    return str(shown)[:KEY_CHARS_MAX]
