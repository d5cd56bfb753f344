"""A process's log on stderr, in characters that cannot steer the terminal or the reader of its lines.

Around agent, ingest and the sender. Guarantees: whatever a device, a file or a broker wrote into a line stays
on that line, with everything escaped that is not printable; only a trace of our own has several lines.
"""

from __future__ import annotations

import logging

FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class PlainFormatter(logging.Formatter):
    """Escapes what came from outside."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The line without a trace."""
        return escaped(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the trace if there is one, whose last line may quote anything."""
        return escaped(super().format(record), but="\n")


def escaped(text: str, but: str = "") -> str:
    """`text` with everything escaped that is not printable, except the characters in `but`."""
    return "".join(c if c.isprintable() or c in but else repr(c)[1:-1] for c in text)


def log_to_stderr() -> None:
    """From now on, log to stderr what is worth knowing."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter(FORM))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
