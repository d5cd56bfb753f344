"""The signals that end a program: SIGTERM and Ctrl-C.

Around the programs of devices and of the data centre. Guarantees: a program is asked to stop, and then
commits what it has; after Ctrl-C its exit code is 130, as a shell expects it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

EXIT_INTERRUPTED = 130
"""Ended by Ctrl-C, in good order."""


class EndSignals:
    """Calls each of `stops` on SIGTERM and SIGINT; made inside a running event loop.

    was_heard: whether one of them came; was_interrupted: whether one of them was SIGINT.
    """

    def __init__(self, *stops: Callable[[], None]) -> None:
        self._stops, self.was_heard, self.was_interrupted = stops, False, False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        self.was_heard = True
        self.was_interrupted = self.was_interrupted or number is signal.SIGINT
        for stop in self._stops:
            stop()
