"""A breach of a rule, and how those who watch a world are told what happens in it.

Under the checkers, which are the watchers. Guarantees: a watcher reports a breach, and raises nothing else.
Where it can make nothing of a broken world, that is a breach which names the watcher. Production code, which
stands between, cannot take the watcher's error for a failure of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, ParamSpec

from geartrain_simulation.machine.world import Node, World, running_process

P = ParamSpec("P")
UNREADABLE = "checker"
"""The rule that is broken by a world that a checker can make nothing of."""
_OURS = "geartrain_simulation."
_WATCHERS = (f"{_OURS}checkers.", f"{_OURS}fleet.")
_PRODUCTION = ("geartrain.", "geartrain_edge.", "geartrain_cloud.", "geartrain_devices.")


class ViolationError(AssertionError):
    """Something that must always hold did not. rule: which, in a few words; detail: how, one sentence."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule, self.detail = rule, detail


Breach = Callable[[str, str], NoReturn]
"""Ends the run: given the rule and what happened."""


def tell(watcher: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call a watcher in the middle of a run; raises `ViolationError`, whatever else the watcher raises."""
    try:
        watcher(*args, **kwargs)
    except ViolationError:
        raise
    except Exception as error:
        violation = _broken(_innermost(error.__traceback__, within_process=True), error)
        if (process := running_process()) is not None:
            process.world.fail(violation)
        raise violation from error


def as_violation(error: Exception) -> Exception:
    """What a run has raised: a violation in its place where a checker raised it, else itself."""
    if isinstance(error, AssertionError):
        return error
    where = _innermost(error.__traceback__, within_process=False)
    return _broken(where, error) if where else error


def _broken(where: str, error: Exception) -> ViolationError:
    return ViolationError(
        UNREADABLE, f"{where or 'a watcher'} cannot judge this world: {type(error).__name__}: {error}"
    )


def _innermost(traceback: TracebackType | None, *, within_process: bool) -> str:
    """The innermost function of a checker, or of a fleet that checks; empty where there is none.

    within_process: whether production code has called it. Else a function of a fleet that stands behind
    production code is a part of that, as the source of a device is.
    """
    found, is_process = "", False
    while traceback is not None:
        code = traceback.tb_frame.f_code
        module = str(traceback.tb_frame.f_globals.get("__name__", ""))
        if code is World.run.__code__:
            found = ""  # whoever runs a world is no checker
        is_process = is_process or code is Node.live.__code__ or module.startswith(_PRODUCTION)
        checks = module.startswith(_WATCHERS) and (within_process or not is_process)
        if checks or module.startswith(_WATCHERS[0]):
            found = code.co_qualname
        traceback = traceback.tb_next
    return found
