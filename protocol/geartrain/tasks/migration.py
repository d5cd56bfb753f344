"""States of a task that were kept by its former code, in the form of the present one.

Where a flow goes over to a revision whose task keeps another type, before the first record of that. The task
names by each former type the function that makes a later one of it. Guarantees: a state goes from type to
type until none of these functions takes it, and is then of the task's own type. Timers stay as they are, and
go where the task has no call for them any more. A time to live counts from a key's last call, also where it
was another one before.
Pure, but for what a user's function does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from geartrain.declarations.task import Task
from geartrain.errors import USER_ERRORS, SchemaError
from geartrain.graph.conform import describe
from geartrain.schema.logical import type_text
from geartrain.state.keyed import NEVER, saved_cell
from geartrain.state.state_type import StateType
from geartrain.tasks.timed_calls import cell_type, due_at

_FORM_BYTES = 8
_DUE_BYTES = 8
_TIMED = "+"
"""Stands in the form of cells with timers, before the time to live by which they are due."""
UNKNOWN_TTL = "?"
"""Stands there where that may be any."""


def form_of(kind: Any, *, timed: bool = False, ttl_us: int | None = None) -> str:
    """What stands for the layout of a step's cells beside them; "" where it keeps none.

    kind: the type of the state, None for none; timed: whether cells have timers beside it; ttl_us: by which
    the cells are due, None where they have none, or nobody is to know it.
    """
    form = form_of_text("" if kind is None else type_text(kind), timed=timed)
    return form if ttl_us is None else f"{form}{ttl_us}"


def form_of_text(text: str, *, timed: bool = False) -> str:
    """The same of a type as a revision says it; "" for none."""
    form = blake2b(text.encode(), digest_size=_FORM_BYTES).hexdigest() if text else ""
    return form + _TIMED if timed else form


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


def migrated(
    step: str,
    task: Task[Any, Any],
    form: str,
    cell: bytes,
    *,
    timed: bool,
    ttl_us: int | None = None,
    arrival: bool = False,
) -> bytes:
    """A saved cell of the form `form`, in the form in which the task keeps it now.

    timed: whether cells of the step have timers beside the state. Those of a task that has none any more go;
    nothing would be called for them. Where none were noted, a key is first touched by its next call. ttl_us,
    arrival: of the step, by which the cell is due from now on. Raises `SchemaError` for a cell that cannot be
    read, where a user's function raises or makes what is no state of the task, and where the task keeps
    nothing.
    """
    own_class: Any = type(task)
    kinds, ours = _forms(own_class)
    text, _, said_ttl = form.partition(_TIMED)
    if text not in kinds:
        raise SchemaError(f"step {step!r}: its migrate does not name the type of the saved state")
    if task.state is None and not timed:
        raise SchemaError(f"step {step!r}: its task keeps nothing")
    was_timed, kept = _read(step, kinds[text], cell, was_timed=_TIMED in form)
    stateless = task.state is None and not arrival
    if was_timed == timed and text == ours:
        is_due = not timed or said_ttl == ("" if ttl_us is None else str(ttl_us))
        return cell if is_due else saved_cell(due_at(kept, ttl_us, stateless=stateless), cell[_DUE_BYTES:])
    own = StateType(step, cell_type(task.state) if timed else task.state)
    value = kept.state if was_timed else kept
    if task.state is not None:
        value = StateType(step, task.state).fitted(_brought(step, task, value))
    if not timed:
        return saved_cell(NEVER, own.save(value))
    whole = own.make()
    for name in whole.__struct_fields__ if was_timed else ():
        setattr(whole, name, getattr(kept, name))
    whole.state = value
    return saved_cell(due_at(whole, ttl_us, stateless=stateless), own.save(whole))


@lru_cache(maxsize=64)
def _forms(kind: type[Task[Any, Any]]) -> tuple[Mapping[str, Any], str]:
    """By its form, each type that a task's state may have had; and the form of that of now. Kept, since to
    find them takes longer than to make a cell anew.
    """
    kinds = {form_of_text(type_text(former)): former for former in kind.migrate}
    ours = form_of(kind.state)
    return {**kinds, ours: kind.state}, ours


def _read(step: str, kind: Any, cell: bytes, *, was_timed: bool) -> tuple[bool, Any]:
    """Whether a cell has timers, and what it keeps; was_timed: what is to be tried first."""
    ways = [way for way in (was_timed, not was_timed) if way or kind is not None]
    for way in ways:
        try:
            return way, StateType(step, cell_type(kind) if way else kind).load(cell[_DUE_BYTES:])
        except SchemaError:
            if way == ways[-1]:
                raise
    raise SchemaError(f"step {step!r}: the saved state cannot be read")


def _brought(step: str, task: Task[Any, Any], value: Any) -> Any:
    """A former state as the functions of a task leave it, each of which is asked once at the most."""
    functions = dict(type(task).migrate)
    while (function := functions.pop(type(value), None)) is not None:
        try:
            value = function(value)
        except USER_ERRORS as error:
            raise SchemaError(f"step {step!r}: its migrate has raised: {describe(error)}") from None
    return value
