"""What people should know of the fields of an app's tables: units and descriptions, read from a revision.

Behind `gear info`. Guarantees: it needs no code of the flow.
"""

from __future__ import annotations

from collections.abc import Iterator

from geartrain.revision.revision import Revision
from geartrain.schema import Note


def table_notes(revision: Revision) -> Iterator[tuple[str, str, Note]]:
    """(table, field, its notes) of the fields that have some, of the tables that a revision writes."""
    for step in revision.steps:
        if step.kind == "sink" and step.tier == "cloud":
            above = step.inputs[0].partition(":")[0]
            for field, note in revision.notes.get(above, {}).items():
                yield step.options["name"], field, note
