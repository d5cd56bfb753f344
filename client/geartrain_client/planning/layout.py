"""Where the boxes of a layered drawing stand: rows from top to bottom, no two boxes over each other.

Under `drawing`. The method is that of Sugiyama, Tagawa and Toda (1981). An arrow that passes a row has a
place of its own there. The boxes of a row are ordered by the mean place of the boxes that they are connected
to. Each is then put as near to that place as the widths allow, by pooling adjacent violators (isotonic
regression). Guarantees: boxes of a row are at least `GAP` apart, and the same input gives the same drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

GAP = 26.0
"""Between two boxes of a row, pixels."""
_PASSING_WIDTH = 10.0
_SWEEPS = 12


@dataclass(frozen=True, slots=True)
class Box:
    """A box to be placed: its id, its row (from 0) and its width in pixels."""

    id: str
    row: int
    width: float


@dataclass(frozen=True, slots=True)
class Arrow:
    """A placed arrow between two boxes; `passes`: the middle of its place in each row between them, from the
    top.
    """

    above: str
    below: str
    passes: tuple[float, ...] = ()


@dataclass(slots=True)
class _Row:
    ids: list[str] = field(default_factory=list)


def place(
    boxes: Sequence[Box], arrows: Sequence[tuple[str, str]]
) -> tuple[dict[str, float], list[Arrow], float]:
    """(middle of each box, the arrows, the width of it all), pixels; each arrow goes to a lower row."""
    grid = _Grid(boxes, arrows)
    grid.order()
    middles = grid.spread()
    left = min((middles[i] - grid.widths[i] / 2 for i in middles), default=0.0)
    middles = {name: x - left for name, x in middles.items()}
    width = max((middles[i] + grid.widths[i] / 2 for i in middles), default=0.0)
    placed = [
        Arrow(a, b, tuple(middles[name] for name in grid.chains[number][1:-1]))
        for number, (a, b) in enumerate(arrows)
    ]
    return {box.id: middles[box.id] for box in boxes}, placed, width


class _Grid:
    """The rows, with a place for every arrow that passes one."""

    def __init__(self, boxes: Sequence[Box], arrows: Sequence[tuple[str, str]]) -> None:
        rows = {box.id: box.row for box in boxes}
        self.widths = {box.id: box.width for box in boxes}
        self.rows = [_Row() for _ in range(max(rows.values(), default=-1) + 1)]
        self.chains: list[list[str]] = []
        self.above: dict[str, list[str]] = {box.id: [] for box in boxes}
        self.below: dict[str, list[str]] = {box.id: [] for box in boxes}
        for box in boxes:
            self.rows[box.row].ids.append(box.id)
        for number, (start, end) in enumerate(arrows):
            chain = [start]
            for row in range(rows[start] + 1, rows[end]):
                name = f"{number}/{row}"  # no step's id has a slash
                self.widths[name] = _PASSING_WIDTH
                self.rows[row].ids.append(name)
                self.above[name], self.below[name] = [], []
                chain.append(name)
            chain.append(end)
            self.chains.append(chain)
            for high, low in pairwise(chain):
                self.below[high].append(low)
                self.above[low].append(high)

    def order(self) -> None:
        """Order each row, so that few arrows cross."""
        best, fewest = [list(row.ids) for row in self.rows], self._crossings()
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            ties = self.above if down else self.below
            indexes = range(1, len(self.rows)) if down else range(len(self.rows) - 2, -1, -1)
            for index in indexes:
                near = self.rows[index - 1 if down else index + 1].ids
                self._order_row(self.rows[index], {name: i for i, name in enumerate(near)}, ties)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(row.ids) for row in self.rows], crossings
        for row, ids in zip(self.rows, best, strict=True):
            row.ids = ids
        for _ in range(_SWEEPS):
            swapped = [self._swap(index) for index in range(len(self.rows))]
            if not any(swapped):
                break

    def _swap(self, index: int) -> bool:
        """Swap neighbours of a row where fewer arrows cross then; whether any was."""
        ids, swapped = self.rows[index].ids, False
        near = {
            name: i
            for other in (index - 1, index + 1)
            if 0 <= other < len(self.rows)
            for i, name in enumerate(self.rows[other].ids)
        }
        for at in range(len(ids) - 1):
            one, two = ids[at], ids[at + 1]
            if self._crossed(two, one, near) < self._crossed(one, two, near):
                ids[at], ids[at + 1] = two, one
                swapped = True
        return swapped

    def _crossed(self, left: str, right: str, near: Mapping[str, int]) -> int:
        """How many arrows of two neighbours cross, in this order."""
        return sum(
            near[one] > near[two]
            for ties in (self.above, self.below)
            for one in ties[left]
            for two in ties[right]
        )

    @staticmethod
    def _order_row(row: _Row, near: Mapping[str, int], ties: Mapping[str, list[str]]) -> None:
        current = {name: i for i, name in enumerate(row.ids)}

        def wish(name: str) -> float:
            tied = [near[other] for other in ties[name]]
            return sum(tied) / len(tied) if tied else float(current[name])

        row.ids.sort(key=wish)

    def _crossings(self) -> int:
        found = 0
        for high, low in pairwise(self.rows):
            at = {name: i for i, name in enumerate(low.ids)}
            ends = [(i, at[other]) for i, name in enumerate(high.ids) for other in self.below[name]]
            found += sum(
                1
                for n, (i, x) in enumerate(ends)
                for j, y in ends[n + 1 :]
                if (i < j and x > y) or (i > j and x < y)
            )
        return found

    def spread(self) -> dict[str, float]:
        """The middle of everything in every row."""
        middles: dict[str, float] = {}
        for row in self.rows:
            self._settle(row, middles, lambda _: 0.0)
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            for row in self.rows if down else reversed(self.rows):
                self._settle(row, middles, lambda name: self._wish(name, middles))
        for chain in self.chains:
            self._straighten(chain, middles)
        return middles

    def _straighten(self, chain: Sequence[str], middles: dict[str, float]) -> None:
        """Let an arrow go straight down past as many rows at once as have room for it."""
        passing = list(chain[1:-1])
        while passing:
            (lowest, highest), count = self._room(passing[0], middles), 1
            while count < len(passing):
                low, high = self._room(passing[count], middles)
                if max(lowest, low) > min(highest, high):
                    break
                lowest, highest, count = max(lowest, low), min(highest, high), count + 1
            wish = sum(middles[name] for name in passing[:count]) / count
            for name in passing[:count]:
                middles[name] = min(max(wish, lowest), highest)
            passing = passing[count:]

    def _room(self, name: str, middles: Mapping[str, float]) -> tuple[float, float]:
        """Where it may stand between its neighbours."""
        row = next(row.ids for row in self.rows if name in row.ids)
        at = row.index(name)
        apart = [(self.widths[name] + self.widths[other]) / 2 + GAP for other in row[max(0, at - 1) : at + 2]]
        low = middles[row[at - 1]] + apart[0] if at else float("-inf")
        high = middles[row[at + 1]] - apart[-1] if at + 1 < len(row) else float("inf")
        return low, high

    def _wish(self, name: str, middles: Mapping[str, float]) -> float:
        """Below the middle of what is above and above that of what is below, both in equal parts."""
        sides = [[middles[other] for other in ties[name]] for ties in (self.above, self.below)]
        means = [sum(side) / len(side) for side in sides if side]
        return sum(means) / len(means) if means else middles[name]

    def _settle(self, row: _Row, middles: dict[str, float], wish: Callable[[str], float]) -> None:
        """Put a row where it wishes to be, as nearly as its widths allow: least sum of squares."""
        offsets, offset = [], 0.0
        for number, name in enumerate(row.ids):
            if number:
                before = row.ids[number - 1]
                offset += (self.widths[before] + self.widths[name]) / 2 + GAP
            offsets.append(offset)
        pools: list[tuple[float, int]] = []  # (mean, how many), of wishes without the widths
        for name, shift in zip(row.ids, offsets, strict=True):
            mean, count = wish(name) - shift, 1
            while pools and pools[-1][0] > mean:
                other, many = pools.pop()
                mean, count = (other * many + mean * count) / (many + count), many + count
            pools.append((mean, count))
        starts = [mean for mean, count in pools for _ in range(count)]
        for name, start, shift in zip(row.ids, starts, offsets, strict=True):
            middles[name] = start + shift
