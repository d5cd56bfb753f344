"""window join: pairs of records of one key that lie in a window together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from geartrain.declarations.windows import Global, Sliding, Tumbling
from geartrain.graph.operator import Keyed, Running, Services, StreamProperties
from geartrain.joining.joined import Joining, paired


class WindowJoin(Keyed, frozen=True):
    """Join what shares a window; where windows overlap, a pair still leaves once.

    A pair's event time is the later of its two. With `how="left"` (tumbling windows only) a left record
    without any right one in its window leaves as `function(left, None)` when the window ends.
    """

    window: Tumbling | Sliding | Global
    how: Literal["inner", "left"]
    function: Callable[[Any, Any], Any]
    keeps: frozenset[str] = frozenset()
    kind = "window_join"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order is lost; a domain that both sides are keyed by is kept, if it is among `keeps`."""
        return paired(inputs, self.keeps)

    def open(self, services: Services) -> Running:
        """The operator at work; its cells hold what may still be joined."""
        return Joining(services, self, self.function, outer=self.how == "left")

    def of(self, side: int, time: int) -> tuple[int, int] | None:
        """The times that share a window with `time`, both ends in; None in a gap between windows."""
        windows = self.window.assign(time)
        return (windows[0][0], windows[-1][1] - 1) if windows else None

    def last(self, side: int, time: int) -> int:
        """The last time that shares a window with `time`, itself in a gap between windows."""
        reach = self.of(side, time)
        return time if reach is None else reach[1]

    def unmatched_time(self, time: int) -> int:
        """When a left record without a match leaves: the last microsecond of its window."""
        return self.last(0, time)
