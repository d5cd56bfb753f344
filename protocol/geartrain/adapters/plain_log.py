"""A process's log on stderr, in characters that cannot steer the terminal or the reader of its lines.

Around agent, ingest and the sender. Guarantees: whatever a device, a file or a broker wrote into a line stays
on that line, with everything escaped that is not printable. Only a trace of our own has several lines.
"""

from __future__ import annotations

import logging

from geartrain.printable import printable

FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class PlainFormatter(logging.Formatter):
    """Escapes what came from outside."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The line without a trace."""
        return printable(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the trace if there is one, whose last line may quote anything."""
        return printable(super().format(record), keep="\n")


def log_to_stderr() -> None:
    """From now on, log to stderr what is worth knowing."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter(FORM))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
