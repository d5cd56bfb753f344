"""log: write records to the program's log as they pass, and change nothing.

A restart repeats what was not committed, and a batch may be run twice: the lines are for people, not for
counting.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from geartrain.graph.conform import raw_form
from geartrain.graph.operator import Plain, Services, StreamProperties, Transform
from geartrain.printable import TEXT_CHARS_MAX, printable
from geartrain.records.batch import Batch
from geartrain.records.event_time import format_time


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
                    text = raw_form(batch.values[row]).decode(errors="backslashreplace")
                    text = printable(text, TEXT_CHARS_MAX)
                    logger.info("%s %s: %s", services.step, _when(batch.times[row]), text)
            seen += len(batch)
            return batch

        return run


def _when(time_us: int) -> str:
    try:
        return format_time(time_us)
    except OverflowError:  # no calendar reaches there
        return f"{time_us} us"
