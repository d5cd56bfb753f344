"""Lazy imports: a module that a library imports and an agent does not use is loaded at its first use.

The agent's process calls this before everything else. Guarantees: whoever does use such a module finds it
whole, in every thread. Python's own `LazyLoader` does not help here: before 3.12, an `import` of the module
loads it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands in `sys.modules` for a module until anything is asked of it."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = import_module(self.__name__)
        vars(self).update(vars(module))
        return getattr(module, name)


def load_later(name: str) -> None:
    """Load the module `name`, which lies in a package, at its first use; one that is loaded already, or that
    is not there, stays as it is.
    """
    spec = None if name in sys.modules else find_spec(name)
    if spec is None:
        return
    package, _, child = name.rpartition(".")
    sys.modules[name] = later = _Later(name)
    later.__spec__ = spec
    setattr(import_module(package), child, later)
