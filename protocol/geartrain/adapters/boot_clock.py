"""The machine's boot, and when its wall clock can be believed, behind `geartrain.ports.boot_clock`.

Guarantees: a wall clock below the floor is not believed, whatever the system says of it. Where it is asked
for, neither is one that nobody has set by a time server since the machine was switched on.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

FLOOR_US = 1_735_689_600_000_000
"""2025-01-01: no agent of this version was there before."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIMESYNCD = Path("/run/systemd/timesync/synchronized")
_TIMEX_BYTES, _TIME_ERROR = 512, 5


class SystemBootClock:
    """`BootClock` of this machine. Where the system names no boot, each process counts as one."""

    def __init__(
        self,
        floor_us: int = FLOOR_US,
        *,
        synchronized: bool = False,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
        is_synchronized: Callable[[], bool] | None = None,
    ) -> None:
        """floor_us: an earlier wall clock is wrong, microseconds since 1970; synchronized: whether a later
        one is believed only once a time server has set it.
        """
        self._floor_us, self._wall_us = floor_us, wall_us
        asked = is_synchronized or clock_is_synchronized
        self._is_set: Callable[[], bool] = asked if synchronized else lambda: True
        self._is_known = False
        try:
            self._boot = _BOOT_ID.read_text(encoding="ascii").strip().encode()
        except OSError:
            self._boot = os.urandom(16).hex().encode()

    def boot(self) -> bytes:
        """The system's own name of this boot."""
        return self._boot

    def since_boot_us(self) -> int:
        """Microseconds since this boot began, those that the machine slept among them."""
        kind = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC
        return time.clock_gettime_ns(kind) // 1_000

    def wall_is_known(self) -> bool:
        """Whether the wall clock is beyond the floor, and set by a time server where that is asked for."""
        self._is_known = self._is_known or (self._wall_us() >= self._floor_us and self._is_set())
        return self._is_known


def clock_is_synchronized() -> bool:
    """Whether a time server has set the clock: systemd's word for it, or the kernel's (adjtimex)."""
    if _TIMESYNCD.exists():
        return True
    if sys.platform != "linux":
        return False
    import ctypes  # which most agents have no use for

    asking = ctypes.create_string_buffer(_TIMEX_BYTES)  # its first word, what to change, stays 0
    state = int(ctypes.CDLL(None).adjtimex(asking))
    return 0 <= state < _TIME_ERROR
