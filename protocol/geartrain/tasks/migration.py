"""States of a task that were kept by its former code, in the form of the present one.

Where a flow goes over to a revision whose task keeps another type, before the first record of that. The task
names by each former type the function that makes a later one of it. Guarantees: a state goes from type to
type until none of these functions takes it, and is then of the task's own type; timers stay as they are.
Pure, but for what a user's function does.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from geartrain.declarations.task import Task
from geartrain.errors import USER_ERRORS, SchemaError
from geartrain.graph.conform import describe
from geartrain.schema.logical import type_text
from geartrain.state.keyed import due_of, saved_cell
from geartrain.state.state_type import StateType
from geartrain.tasks.timed_calls import cell_type

_FORM_BYTES = 8


def form_of(kind: Any) -> str:
    """What stands for the layout of a state's type beside saved cells; "" for no state."""
    return "" if kind is None else form_of_text(type_text(kind))


def form_of_text(text: str) -> str:
    """The same of a type as a revision says it; "" for none."""
    return blake2b(text.encode(), digest_size=_FORM_BYTES).hexdigest() if text else ""


def former_states(task: Task[Any, Any]) -> Mapping[str, Any]:
    """By its text, each former type of a task's state that it can make into a later one."""
    return {type_text(kind): kind for kind in type(task).migrate}


def check_former(where: str, task: Task[Any, Any]) -> None:
    """Raise `SchemaError`, which begins with `where`, where a task's `migrate` cannot be meant."""
    migrate, present = type(task).migrate, type(task).state
    if migrate and present is None:
        raise SchemaError(f"{where}: migrate names former states, and the task keeps none")
    for kind, function in migrate.items():
        StateType.check(f"{where}, migrate", kind)
        if not callable(function):
            raise SchemaError(f"{where}: migrate[{type_text(kind)}] is no function of the former state")
    texts = [type_text(kind) for kind in (*migrate, present)]
    if twice := next((text for text in texts if texts.count(text) > 1), ""):
        raise SchemaError(f"{where}: migrate or state names two types of the layout {twice}: leave one out")


def migrated(step: str, task: Task[Any, Any], former: Any, cell: bytes, *, timed: bool) -> bytes:
    """A saved cell whose state is of the type `former`, with the state in the task's own type.

    timed: whether cells of the step have timers beside the state. Raises `SchemaError` for a cell that cannot
    be read, and where a user's function raises or makes what is no state of the task.
    """
    was = StateType(step, cell_type(former) if timed else former)
    own = StateType(step, cell_type(task.state) if timed else task.state)
    kept = was.load(cell[8:])
    if not timed:
        return saved_cell(due_of(cell), own.save(own.fitted(_brought(step, task, kept))))
    whole = own.make()
    for name in whole.__struct_fields__:
        setattr(whole, name, getattr(kept, name))
    whole.state = StateType(step, task.state).fitted(_brought(step, task, kept.state))
    return saved_cell(due_of(cell), own.save(whole))


def _brought(step: str, task: Task[Any, Any], value: Any) -> Any:
    """A former state as the functions of a task leave it, each of which is asked once at the most."""
    functions = dict(type(task).migrate)
    while (function := functions.pop(type(value), None)) is not None:
        try:
            value = function(value)
        except USER_ERRORS as error:
            raise SchemaError(f"step {step!r}: its migrate has raised: {describe(error)}") from None
    return value
