"""interval join: pairs of one key whose right record lies in an interval of time around the left one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from geartrain.graph.operator import Keyed, Running, Services, StreamProperties
from geartrain.joining.joined import LEFT, Joining, paired


class IntervalJoin(Keyed, frozen=True):
    """Join where left.time + after_us <= right.time <= left.time + before_us, microseconds.

    A pair's event time is the later of its two. With `how="left"` a left record without any right one leaves
    as `function(left, None)` once none can come, at the end of its interval or its own time if that is later.
    """

    after_us: int
    before_us: int
    how: Literal["inner", "left"]
    function: Callable[[Any, Any], Any]
    keeps: frozenset[str] = frozenset()
    kind = "interval_join"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order is lost; a domain that both sides are keyed by is kept, if it is among `keeps`."""
        return paired(inputs, self.keeps)

    def open(self, services: Services) -> Running:
        """The operator at work; its cells hold what may still be joined."""
        return Joining(services, self, self.function, outer=self.how == "left")

    def of(self, side: int, time: int) -> tuple[int, int]:
        """The times of the other side for a record of `side` at `time`, both ends in."""
        if side == LEFT:
            return time + self.after_us, time + self.before_us
        return time - self.before_us, time - self.after_us

    def last(self, side: int, time: int) -> int:
        """The last time of the other side for a record of `side` at `time`."""
        return time + self.before_us if side == LEFT else time - self.after_us

    def unmatched_time(self, time: int) -> int:
        """When a left record without a match leaves."""
        return max(time, time + self.before_us)
