"""Dead letters of steps in the cloud: they are in the flow's tables only, never in the log.

For `gear deadletters`. Guarantees: each has one id, made of its step and its origin. That is the key of its
row, and it is the same at every run of the flow. Nothing is written.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from geartrain.adapters.sqlite import open_to_read, translated
from geartrain_cloud.inspecting.places import run_folder
from geartrain_cloud.platform.runs import served_run, tables_of_run
from geartrain_cloud.sinks.layout import ORDER_COLUMNS, TableError
from geartrain_cloud.sinks.refused_state import TABLE
from geartrain_cloud.sinks.tables import table_names

_BUSY_S = 30.0


@dataclass(frozen=True, slots=True)
class TableLetter:
    """One dead letter; event_time: microseconds since 1970 UTC; flow: the instance of a platform's app, ""
    for that of a run.
    """

    flow: str
    step: str
    code: str
    reason: str
    raw: bytes
    event_time: int
    origin: tuple[str, int, bytes]

    @property
    def id(self) -> str:
        """By what a person names it: `STEP@SPLIT:NUMBER`, behind it the path of its origin if it has one, and
        before it the instance of a platform's app.
        """
        name, number, path = self.origin
        begin = f"{self.flow}/" if self.flow else ""
        return f"{begin}{self.step}@{name}:{number}" + (f":{path.hex()}" if path else "")


def letters_in_tables(state: Path) -> list[TableLetter]:
    """The dead letters in the tables of a run, or in those that each app of a platform serves: of each split
    by number. Raises `TableError`. Tables in PostgreSQL are passed over.
    """
    folder = run_folder(state)
    firsts = [("", folder / "tables.sqlite")]
    firsts += [(path.parent.name, path) for path in sorted(folder.glob("apps/*/tables.sqlite"))]
    served = [(flow, tables_of_run(first, served_run(first))) for flow, first in firsts]
    return [letter for flow, path in served for letter in _letters_in(flow, path)]


def _letters_in(flow: str, path: Path) -> list[TableLetter]:
    if not path.is_file() or TABLE not in table_names(path):
        return []
    by_number = ", ".join((*ORDER_COLUMNS[1:], "step"))
    with (
        translated(TableError, f"the file of tables {path}"),
        closing(open_to_read(path, busy_s=_BUSY_S)) as tables,
    ):
        columns = ", ".join(("step", "code", "reason", "raw", *ORDER_COLUMNS))
        query = f"SELECT {columns} FROM {TABLE} ORDER BY {by_number}"  # noqa: S608
        rows = tables.execute(query).fetchall()
    return [
        TableLetter(flow, step, code, reason, raw, time, tuple(origin))
        for step, code, reason, raw, time, *origin in rows
    ]
