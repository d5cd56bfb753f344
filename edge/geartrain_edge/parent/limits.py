"""What one app's process may take of a device: memory, and its share of the processor.

Read from the device's file and kept by the parent, from outside: no code of a flow can lift them. Guarantees:
a process that takes more memory than it may is ended within a look of the parent, and sooner refused what it
asks for in one piece. Where memory runs out all the same, the kernel ends an app before the parent.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from geartrain_edge.quantities import size_bytes

NICE_MAX = 19
NICE_STEP = 1.25
"""By so much the kernel's share of the processor falls from one nice value to the next."""
FIRST_TO_GO = 500
"""The `oom_score_adj` of an app, where 0 is that of any process and 1000 is the first of all."""
BURST_BYTES = 128 << 20
"""So much above its limit may a process ask for at once, stacks of threads among it, before it is refused."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class LimitsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[apps.NAME.limits]` of a device's file. memory: such as "64MB", "" for no limit; cpu_weight: against
    the 100 of others.
    """

    memory: str = ""
    cpu_weight: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100


class Limits(msgspec.Struct, frozen=True):
    """memory_bytes: what a process may have to itself, 0 for no limit; nice: 0 for a full share."""

    memory_bytes: int = 0
    nice: int = 0

    @staticmethod
    def of(table: LimitsTable) -> Limits:
        """Those of a table; raises `ConfigError`."""
        nice = round(math.log(100 / table.cpu_weight, NICE_STEP))
        return Limits(size_bytes(table.memory) if table.memory else 0, min(nice, NICE_MAX))

    def set_on(self, pid: int) -> None:
        """Have the system keep them for the process `pid`; what a system has not, is left out."""
        with suppress(OSError):
            Path(f"/proc/{pid}/oom_score_adj").write_text(str(FIRST_TO_GO), encoding="ascii")
        if self.nice:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, pid, self.nice)
            with suppress(OSError):  # where each session has a share, it is that of the session
                Path(f"/proc/{pid}/autogroup").write_text(str(self.nice), encoding="ascii")
        if self.memory_bytes:
            import resource  # which few devices need

            most = data_bytes_of(pid) + self.memory_bytes + BURST_BYTES
            with suppress(OSError, AttributeError):
                resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))

    def exceeded_by(self, pid: int) -> str:
        """A sentence where the process takes more than it may, else empty."""
        if not self.memory_bytes or (taken := memory_of(pid)) <= self.memory_bytes:
            return ""
        took, may = (f"{number / 1_000_000:.0f} MB" for number in (taken, self.memory_bytes))
        return f"it took {took} of memory and may take {may}: see limits.memory in the device's file"


def memory_of(pid: int) -> int:
    """The bytes that a process has to itself, 0 where the system does not say."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_bytes().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE_BYTES


def data_bytes_of(pid: int) -> int:
    """The bytes that a process may write to, used or not; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[5]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
