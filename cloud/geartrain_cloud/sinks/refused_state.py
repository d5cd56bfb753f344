"""The cells of state that could not be taken in: what the dead letters of an app's tables say of them.

Beside the Spark host, which writes them; for the answer about an app. Guarantees: nothing is written, and the
answer is bounded, whatever the letters hold.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from geartrain.adapters.sqlite import open_to_read, translated
from geartrain.records.codes import Code
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.retention import BUSY_S
from geartrain_cloud.sinks.tables import table_names

TABLE = "dead_letters"
REASONS_MAX = 10
"""Reasons that are told, those of most cells first."""
QUERY = (
    f"SELECT step, reason, count(*) FROM {TABLE} WHERE code = '{Code.STATE_NOT_TAKEN}' "  # noqa: S608 - ours
    f"GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT {REASONS_MAX}"
)

Refused = list[tuple[str, str, int]]
"""By step and reason, how many cells."""


def refused_state(path: Path) -> Refused:
    """Of the tables in an SQLite file; raises `TableError`."""
    if TABLE not in table_names(path):
        return []
    with (
        translated(TableError, f"the file of tables {path}"),
        closing(open_to_read(path, busy_s=BUSY_S)) as file,
    ):
        return [(str(step), str(reason), int(count)) for step, reason, count in file.execute(QUERY)]
