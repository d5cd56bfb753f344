"""Which files of history come before the live records of a source, as the spool has noted it.

Between the agent and its spool. Positions in such a source are counted from the files. Guarantees: a source
of which something was read goes on only with the files that it was begun with. The note is in the spool
before the first position, or in one commit with it.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import msgspec

from geartrain.operators.source import HISTORY, SourceOperator
from geartrain.planning import Plan
from geartrain.ports import SpoolImage
from geartrain_edge.errors import ChangedFlowError

Notes = dict[tuple[str, bytes], bytes | None]


class _Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """files: their names without folders, since a state folder may move; options: how they are written."""

    files: list[str]
    time: str
    alone: bool
    options: dict[str, Any] = {}

    def __str__(self) -> str:
        written = "".join(f", {name} = {value!r}" for name, value in sorted(self.options.items()))
        return f"{', '.join(self.files)}, by {self.time}{written}"


def changed_histories(image: SpoolImage, plan: Plan) -> Notes:
    """What the spool is to note of histories from now on; nothing where it has all of it.

    Raises `ChangedFlowError` for a source that has others now, and of which something was read.
    """
    found: Notes = {}
    for step in plan.graph.sources():
        cell = "_agent", f"{HISTORY} {step.id}".encode()
        was, now = image.state.get(cell), _note_of(step.operator)
        if was == now:
            continue
        if any(one == step.id and at.position for (one, _), at in image.positions.items()):
            raise ChangedFlowError(
                f"the history of source {step.id} was {_said(was)} and is {_said(now)} now, which would lose "
                "records or read them twice: write its lines as they were, or begin anew with a new state "
                "folder"
            )
        found[cell] = now
    return found


def _note_of(operator: object) -> bytes | None:
    if not isinstance(operator, SourceOperator) or operator.history is None:
        return None
    history = operator.history
    files = [PurePath(one).name for one in history.files]
    return msgspec.json.encode(_Note(files, history.time, history.alone, history.options))


def _said(note: bytes | None) -> str:
    return "none" if note is None else f"({msgspec.json.decode(note, type=_Note)})"
