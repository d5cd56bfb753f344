"""Notes to the service manager that started this process: it is ready, it lives, it stops (sd_notify).

Around the programs of devices and of the data centre. Guarantees: a note that the process lives comes from
its own event loop or main loop. So a loop that hangs sends none, and systemd's watchdog ends it. Without a
manager nothing is sent. No child inherits the manager's socket. Nothing here raises: a note is a courtesy,
and one that did not go is sent with the next.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager

from geartrain.printable import printable

_SOCKET, _WATCHDOG, _WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
_VARIABLES = (_SOCKET, _WATCHDOG, _WATCHDOG_PID)
_INTERVAL_S = 5.0
"""Between two notes where the manager has no watchdog over this process."""
_START_S = 300
"""While it starts, each note asks for so much more time to start in."""
_STATUS_CHARS_MAX = 200


class ServiceNotes:
    """The notes of one process. It takes the manager's variables out of `environment`."""

    def __init__(
        self,
        environment: MutableMapping[str, str] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """now_s: seconds on a clock that never goes back."""
        found = os.environ if environment is None else environment
        self._taken = {key: found.pop(key) for key in _VARIABLES if key in found}
        name, span, pid = (self._taken.get(key, "") for key in _VARIABLES)
        # A name that begins with "@" is one without a file; the system writes it with a zero byte.
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._now_s, self._due_s = now_s, -math.inf
        is_watched = span.isascii() and span.isdecimal() and int(span) > 0 and pid in ("", str(os.getpid()))
        self.interval_s = int(span) / 2_000_000 if is_watched else _INTERVAL_S
        """Seconds between two notes that the process lives: half of what the manager waits."""
        self._unsent: list[str] = []
        self._is_ready, self._is_handed_on, self._status = False, False, ""

    def ready(self) -> None:
        """The process has started; its watchdog begins."""
        self._is_ready = True
        self._send("READY=1")

    def stopping(self) -> None:
        """The process ends by itself now."""
        if not self._is_handed_on:
            self._send("STOPPING=1")

    def hand_on(self) -> Mapping[str, str]:
        """The process goes on as another program, by `exec`, and is not said to stop.

        Returns the manager's variables, which that program needs in its environment.
        """
        self._is_handed_on = True
        return self._taken

    def alive(self, status: str = "") -> None:
        """Note that the loop that calls this goes round; called as often as it likes.

        status: one line for people; empty for the last one.
        """
        if not self._address or self._now_s() < self._due_s:
            return
        self._due_s = self._now_s() + self.interval_s
        notes = ["WATCHDOG=1"] if self._is_ready else [f"EXTEND_TIMEOUT_USEC={_START_S * 1_000_000}"]
        line = printable(status)[:_STATUS_CHARS_MAX]
        if line and line != self._status:
            notes.append(f"STATUS={line}")
        if self._send(*notes):
            self._status = line or self._status

    def _send(self, *notes: str) -> bool:
        """One datagram of these notes and of those that did not go before; whether it went."""
        if not self._address:
            return False
        said = [*self._unsent, *notes]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.setblocking(False)
                manager.sendto("\n".join(said).encode(), self._address)
        except OSError:
            # That it lives is said anew each time; that it is ready, or stops, must arrive once.
            self._unsent = [note for note in said if note in ("READY=1", "STOPPING=1")]
            return False
        self._unsent = []
        return True


@asynccontextmanager
async def noted_service(status: Callable[[], str] | None = None) -> AsyncIterator[ServiceNotes]:
    """Tell the service manager that this process is ready, and lives as long as its event loop goes round.

    Args:
        status: a line for people, asked at each note.

    Yields:
        The notes; `stopping` belongs where a signal is heard. It is said at the end of the block, too.
    """
    notes = ServiceNotes()
    beats = asyncio.create_task(_beat(notes, status))
    try:
        yield notes
    finally:
        beats.cancel()
        notes.stopping()


async def _beat(notes: ServiceNotes, status: Callable[[], str] | None) -> None:
    # By its first turn the block has come to wait, and hears the signal that a manager may send at once.
    notes.ready()
    while True:
        notes.alive("" if status is None else status())
        await asyncio.sleep(notes.interval_s)
