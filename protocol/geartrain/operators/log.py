"""log: write records to the program's log as they pass, and change nothing.

A restart repeats what was not committed, and a batch may be run twice: the lines are for people, not for
counting.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from geartrain.graph.conform import raw_form
from geartrain.graph.operator import Plain, Services, StreamProperties, Transform
from geartrain.records.batch import Batch
from geartrain.records.event_time import format_time

_CHARS_MAX = 1_000


class Log(Plain, frozen=True):
    """Log one record of `every`, at level INFO of the logger `geartrain.flow.<step>`."""

    every: int = 1
    kind = "log"
    keeps_key = True

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """All is kept."""
        return inputs[0]

    def open(self, services: Services) -> Transform:
        """A function that hands on the batch it is given."""
        logger, seen = logging.getLogger(f"geartrain.flow.{services.step}"), 0

        def run(batch: Batch) -> Batch:
            nonlocal seen
            if logger.isEnabledFor(logging.INFO):
                for row in range(-seen % self.every, len(batch), self.every):
                    text = escaped(raw_form(batch.values[row]).decode(errors="backslashreplace"))
                    logger.info("%s %s: %s", services.step, _when(batch.times[row]), text)
            seen += len(batch)
            return batch

        return run


def escaped(text: str) -> str:
    """Text of a device without its control characters, at most 1,000 characters."""
    cut = text if len(text) <= _CHARS_MAX else f"{text[:_CHARS_MAX]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def _when(time_us: int) -> str:
    try:
        return format_time(time_us)
    except OverflowError:  # no calendar reaches there
        return f"{time_us} us"
