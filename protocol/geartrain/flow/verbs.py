"""What the verbs of the fluent face check before they declare an operator: durations, choices, states.

Guarantees: a mistake is a `FlowError` of one sentence that names the step and what to write. An operator that
only some flows have is imported where it is declared, so that no other flow pays for it on a device.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from geartrain.errors import FlowError, GeartrainError, SchemaError
from geartrain.flow.step_types import check_types
from geartrain.schema import derive

if TYPE_CHECKING:
    from geartrain.declarations.calendars import Calendar
    from geartrain.declarations.task import Task
    from geartrain.graph.operator import Operator
    from geartrain.operators.join import IntervalJoin, WindowJoin
    from geartrain.operators.process import Process

_MICROSECOND = timedelta(microseconds=1)


def microseconds(where: str, name: str, length: object) -> int:
    """A duration in microseconds; raises `FlowError` for what is no timedelta."""
    if not isinstance(length, timedelta):
        raise FlowError(f"{where}: {name}={length!r} must be a datetime.timedelta")
    return length // _MICROSECOND


def process_of(
    where: str,
    task: Task[Any, Any],
    ttl: timedelta | None,
    initial: Mapping[Any, Any] | None,
    order: Literal["canonical", "arrival"],
    keeps: Iterable[str] = (),
) -> Process:
    """A checked process operator."""
    from geartrain.operators.process import Process
    from geartrain.state.state_type import StateType
    from geartrain.tasks.migration import check_former
    from geartrain.tasks.task_calls import initial_states

    if order not in ("canonical", "arrival"):
        raise FlowError(f"{where}: order={order!r} must be 'canonical' or 'arrival'")
    ttl_us = None if ttl is None else microseconds(where, "ttl", ttl)
    if ttl_us is not None and ttl_us < 1:
        raise FlowError(f"{where}: ttl={ttl} must be longer than nothing")
    try:
        if task.state is not None:
            StateType.check(where, task.state)
        check_former(where, task)
        initial_states(where, task.state, initial)
    except SchemaError as error:
        raise FlowError(str(error)) from None
    return Process(task, ttl_us, None if initial is None else dict(initial), order, frozenset(keeps))


_COROUTINE, _GENERATOR = 0x280, 0x20
"""Flags of a function's code, as `inspect` has them; the first is of both kinds of `async def`."""

_CALLS = ("on_start", "on_next", "on_watermark", "on_notify", "on_stop")


def check_step(where: str, operator: Operator, kind: Any) -> None:
    """Raise `FlowError` unless a step may put out records of the type `kind`, and each call of its user's
    code would run it; kind None: it puts out nothing.
    """
    _check_kind(where, kind)
    _check_functions(where, operator)
    check_types(where, operator, kind)


def _check_functions(where: str, operator: Operator) -> None:
    """Raise `FlowError` for user code that a call would not run: a coroutine, a generator, what is no
    function, or one that takes another number of arguments.
    """
    arguments = _arguments(type(operator))
    for name in getattr(operator, "__struct_fields__", ()):
        value = getattr(operator, name)
        if name in arguments and value is not None:
            _check_callable(where, "key" if operator.kind == "key_by" else name, value)
            _check_arguments(where, value, arguments[name])
        if name == "task":
            _check_names(where, type(value))
            for call in _CALLS:
                function = getattr(value, call, None)
                _check_runs(f"{where}: {type(value).__name__}.{call}", function, "emit by ctx.emit(...)")
        elif operator.kind == "flat_map":
            _check_runs(f"{where}: {name_of(value)}", value, None)
        else:
            _check_runs(f"{where}: {name_of(value)}", value, "return the value")


@cache
def _arguments(operator: type) -> dict[str, int]:
    """With how many arguments an operator calls the user's function in each field that holds one; without
    those that may hold the name of a record's field instead.
    """
    counts = dict[str, int]()
    for name, kind in typing.get_type_hints(operator).items():
        choices = (kind,) if typing.get_origin(kind) is Callable else typing.get_args(kind)
        functions = [choice for choice in choices if typing.get_origin(choice) is Callable]
        if functions and str not in choices:
            counts[name] = len(typing.get_args(functions[0])[0])
    return counts


def _check_callable(where: str, name: str, value: object) -> None:
    if not callable(value):
        raise FlowError(f"{where}: {name}={value!r} must be a function")


def _check_arguments(where: str, function: Callable[..., object], count: int) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some of C's functions have none
    try:
        signature.bind(*[None] * count)
    except TypeError:
        many = "argument" if count == 1 else "arguments"
        bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
        takes = f"{name_of(function)}{inspect.Signature(bare)}"
        raise FlowError(f"{where}: {takes} is called with {count or 'no'} {many}") from None


def _check_names(where: str, task: type) -> None:
    """Raise `FlowError` for a method that looks like a call of a task and is none, such as `on_timer`; one
    that the task's other methods call may be named so.
    """
    methods = [value for base in task.__mro__ for value in vars(base).values() if hasattr(value, "__code__")]
    called = {*_CALLS, *(name for method in methods for name in method.__code__.co_names)}
    for method in methods:
        name = method.__name__
        if name.startswith("on_") and name not in called:
            raise FlowError(
                f"{where}: {task.__name__}.{name} is never called: a task has {', '.join(_CALLS)}"
            )


def _check_runs(where: str, function: object, instead: str | None) -> None:
    """`instead` is what to do in place of yielding; None where that is right."""
    while (wrapped := getattr(function, "func", None)) is not None:  # functools.partial
        function = wrapped
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    if flags & _COROUTINE:
        raise FlowError(f"{where} is async, and would never run: write def in the place of async def")
    if flags & _GENERATOR and instead is not None:
        raise FlowError(f"{where} has a yield, so that a call would run none of it: {instead} instead")


def task_kind(where: str, task: object, out: Any) -> Any:
    """The type of what a task emits: `out`, or what its class says; raises `FlowError` for neither."""
    from geartrain.declarations.task import Task, task_output

    if not isinstance(task, Task):
        name = name_of(task)
        hint = f"write {name}(), not {name}" if isinstance(task, type) else "give it a geartrain.Task"
        raise FlowError(f"{where}: {hint}")
    if type(task).on_next is Task.on_next:
        raise FlowError(f"{where}: {type(task).__name__} must define on_next(value, ctx)")
    kind = out or task_output(task)
    if kind is None:
        raise FlowError(f"{where}: declare class {type(task).__name__}(Task[In, Out]) or pass out=...")
    return kind


def join_of(
    where: str,
    function: Callable[[Any, Any], Any],
    within: object,
    bounds: tuple[timedelta | None, timedelta | None],
    how: Literal["inner", "left"],
    keeps: Iterable[str],
) -> WindowJoin | IntervalJoin:
    """A checked join operator."""
    from geartrain.declarations.calendars import Calendar
    from geartrain.declarations.windows import Global, Sliding, Tumbling
    from geartrain.operators.join import IntervalJoin, WindowJoin

    if how not in ("inner", "left"):
        raise FlowError(f"{where}: how={how!r} must be 'inner' or 'left'")
    if bounds.count(None) == 1 or (within is None) == (None in bounds):
        raise FlowError(
            f"{where}: say when two records meet: within=tumbling(...), or lower=timedelta(...) and "
            "upper=timedelta(...)"
        )
    if within is None:
        lower, upper = bounds
        after_us, before_us = microseconds(where, "lower", lower), microseconds(where, "upper", upper)
        if after_us > before_us:
            raise FlowError(f"{where}: lower={lower!r} is after upper={upper!r}: exchange them")
        return IntervalJoin(after_us, before_us, how, function, frozenset(keeps))
    if not isinstance(within, Tumbling | Sliding | Global | Calendar):
        raise FlowError(f"{where}: within={within!r} must be a tumbling, sliding, global or calendar window")
    if how == "left" and not isinstance(within, Tumbling | Calendar):
        raise FlowError(
            f"{where}: how='left' needs a tumbling or calendar window, or lower=... and upper=..."
        )
    if isinstance(within, Calendar):
        check_zone(where, within)
    return WindowJoin(within, how, function, frozenset(keeps))


def check_zone(where: str, window: Calendar) -> None:
    """Raise `FlowError` where the time zone database is at hand, and has no such zone."""
    if window.rules:
        return
    from geartrain.declarations.zone_data import check_zone_name

    try:
        check_zone_name(window.zone)
    except GeartrainError as error:
        raise FlowError(f"{where}: {error}") from None


def name_of(kind: Any) -> str:
    """What to call a type."""
    return str(getattr(kind, "__name__", kind))


def named_after(where: str, function: Callable[..., Any], verb: str) -> str:
    """The name that a step takes from its function; raises `FlowError` for a lambda, which has none."""
    name = str(getattr(function, "__name__", "<lambda>"))
    if name == "<lambda>":
        raise FlowError(f'{where} needs a name: write .{verb}(..., name="...")')
    return name


def returned_by(where: str, function: Callable[..., Any], *, of_iterable: bool) -> Any:
    """The type that a function is annotated to return, or to return many of; raises `FlowError` where it is
    not.
    """
    _check_callable(where, "function", function)
    try:
        found = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        found = None
    if found is not None and of_iterable:
        found = next(iter(typing.get_args(found)), None)
    if found is None:
        raise FlowError(f"{where}: what type comes out? annotate the function's return or pass out=...")
    return found


def _check_kind(where: str, kind: Any) -> None:
    if kind is None:
        return
    try:
        derive(kind)
    except GeartrainError as error:
        raise FlowError(f"{where}: {error}") from None
    if not isinstance(kind, type) or not vars(kind).get("upgrade"):
        return
    from geartrain.schema.upgrading import check_upgrade

    try:
        check_upgrade(where, kind)
    except SchemaError as error:
        raise FlowError(str(error)) from None


def check_field(where: str, kind: Any, field: str | None) -> None:
    """Raise `FlowError` unless `field` is None or a field of the record type `kind`."""
    names = [f.name for f in derive(kind).fields]
    if field is not None and field not in names:
        raise FlowError(f"{where}: {kind.__name__} has no field {field!r}; its fields: {', '.join(names)}")
