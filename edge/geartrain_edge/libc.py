"""What the C library and the kernel do for a process and Python has no call for; Linux only.

Used by the parent of a device's agents and by these. An agent that stands alone loads none of it. Guarantees:
a call that this system does not have changes nothing.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_M_ARENA_MAX = -8


def die_with_parent() -> None:
    """Have this process killed when its parent dies."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL.value, 0, 0, 0)


def adopt_orphans() -> None:
    """Have processes whose parent dies become this one's children, where it is above that parent."""
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def have_one_heap() -> None:
    """Have all threads allocate from one heap: a heap more costs more memory than threads here save time."""
    _call("mallopt", _M_ARENA_MAX, 1)


def _call(name: str, *arguments: int) -> Any:
    if sys.platform != "linux":
        return None
    with suppress(AttributeError):  # a C library that has it not
        return getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)
    return None
