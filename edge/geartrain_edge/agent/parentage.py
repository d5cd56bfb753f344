"""The tie of an agent to the parent process that started it: it does not outlive it.

Around one app on a device. Guarantees: after kill -9 of the parent no agent goes on unseen beside those of
the next one. On Linux the system kills the agent at once; elsewhere the agent looks twice a second and stops.
"""

from __future__ import annotations

import os
import sys

from geartrain_edge.settings import PARENT_VARIABLE


def parent_pid() -> int:
    """The process that started this agent as its own, 0 for none."""
    text = os.environ.get(PARENT_VARIABLE, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def is_orphan() -> bool:
    """Whether the parent that this agent belongs to is gone."""
    parent = parent_pid()
    return parent != 0 and os.getppid() != parent


def die_with_parent() -> None:
    """Have the system kill this process when its parent dies; ends it now where that is too late."""
    if not parent_pid():
        return
    if sys.platform == "linux":
        from geartrain_edge import libc  # which an agent that stands alone has no use for

        libc.die_with_parent()
    if is_orphan():
        os._exit(1)
