"""The clock of a machine's boot as a port, and whether the wall clock can be believed yet.

A machine without a battery begins in 1970, or at a time that was saved long ago, and is told the time later.
Beside `Clock`: what the agent needs to keep records until then.
"""

from __future__ import annotations

from typing import Protocol


class BootClock(Protocol):
    """The time since the machine was switched on, one for all processes of that boot."""

    def boot(self) -> bytes:
        """What no other boot of the machine is called."""
        ...

    def since_boot_us(self) -> int:
        """Microseconds since this boot began; never less than before, in whichever process."""
        ...

    def wall_is_known(self) -> bool:
        """Whether the wall clock shows the time; once true, it stays so for this process."""
        ...
