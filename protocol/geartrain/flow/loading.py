"""Load a user's flow by `module:name`, as agent, control and command line do when they start.

Before any record moves. Guarantees: whatever is wrong with the name or with the user's module is one
`ConfigError` in one sentence that says where and what to do. The module is found on `sys.path` or in the
working directory. What it prints goes to stderr.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import redirect_stdout
from types import ModuleType

from geartrain.errors import ConfigError, GeartrainError
from geartrain.flow.flow import Flow


class NoModuleError(ConfigError):
    """There is no module of the flow's name where it is looked for. what: the same, without what to do."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}: {fix}")
        self.what = what


def load_flow(spec: str) -> Flow:
    """The flow that `spec` names, such as `geartrain_examples.stocks.flow:flow`.

    Raises `ConfigError` for a name of another form, a module that is missing or raises, an attribute that is
    missing, or one that is not a `Flow`.
    """
    module_name, _, attribute = spec.partition(":")
    parts = module_name.split(".")
    if not all(part.isidentifier() for part in parts) or not attribute.isidentifier():
        raise ConfigError(f"flow {spec!r}: write module:name, such as my_flows.stocks:flow")
    found = getattr(import_module_of(module_name, spec), attribute, None)
    if isinstance(found, Flow):
        return found
    if found is None:
        raise ConfigError(
            f'flow {spec!r}: module {module_name} has no {attribute!r}: add {attribute} = Flow("...") to it'
        )
    raise ConfigError(f"flow {spec!r}: {attribute} is a {type(found).__name__}, not a Flow")


def import_module_of(module_name: str, spec: str) -> ModuleType:
    """A module of a user's flow, which `spec` names; raises `ConfigError` where it is missing or raises."""
    if "" not in sys.path:
        sys.path.append("")  # the working directory, which a console script does not search
    importlib.invalidate_caches()
    try:
        with redirect_stdout(sys.stderr):  # standard output is for results
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            fix = "install it or run in the folder that holds it"
            raise NoModuleError(f"flow {spec!r}: there is no module {missing!r}", fix) from None
        raise ConfigError(
            f"flow {spec!r}: {module_name} imports {missing!r}, which is not installed"
        ) from None
    except GeartrainError as error:
        raise ConfigError(f"flow {spec!r}{_place(error, module_name)}: {error}") from None
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        kind = type(error).__name__
        raise ConfigError(
            f"flow {spec!r}{_place(error, module_name)}: its module raised {kind}: {said}"
        ) from error


def _place(error: BaseException, module_name: str) -> str:
    """Where in the user's module the error came up, as ` (file, line n)`, or nothing if it did not."""
    place, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == module_name:
            place = f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place
