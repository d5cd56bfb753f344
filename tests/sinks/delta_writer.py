"""A process that writes micro-batches to a Delta table, as a query does that is started again."""

from __future__ import annotations

import sys
from pathlib import Path

from geartrain.sinks import DeltaTable
from tests.sinks.test_stores import Pair, columns, tables_of

BATCHES, ROWS = 60, 3


def main(folder: Path) -> None:
    """Write what lacks of all micro-batches; say each that is written."""
    tables = tables_of(folder, DeltaTable("trades"), kind=Pair)
    tables.attach("q", "c", has_run=False)
    held = tables.progress("q")
    for number in range(0 if held is None else held.batch_id + 1, BATCHES):
        times = range(number * ROWS, (number + 1) * ROWS)
        rows = [columns(Pair, *((time, Pair("a", float(time))) for time in times))]
        tables.write("q", number, {"c": number + 1}, {"sink0": rows if number % 3 else []})
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
    tables.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
