"""Points in production code at which a simulator asks for a rare but lawful course: orders that hide bugs.

Beside the ports, since it is one more thing that only the world outside decides. Guarantees: without a
simulator every point says no, at the price of one comparison. Whatever a point decides, the code must keep
every promise. So a point is never where an effect fails, only where it comes early, late, or smaller.
"""

from __future__ import annotations

from collections.abc import Callable

Draw = Callable[[str, float], bool]
"""Whether the point of a name strikes now, which it should with a probability."""

_draw: Draw | None = None


def buggify(name: str, p: float) -> bool:
    """Whether to take the rare course here: never in production, with probability `p` in some simulated runs.

    `name`: the point's own, as a few words that say what happens.
    """
    return _draw is not None and _draw(name, p)


def let_points_strike(draw: Draw | None) -> None:
    """Have `draw` decide at every point of this process from now on; None: no point strikes any more."""
    global _draw  # noqa: PLW0603 - one simulator, one process: production code passes nothing through
    _draw = draw
