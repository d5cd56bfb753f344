"""Geartrain: one dataflow, from the sensor to the data centre. What a user's flow file imports.

The public names are listed once, in `__init__.pyi` beside this file. Type checkers read it, and so does this
module, which imports a name when it is first asked for (PEP 562). Importing `geartrain` itself costs nothing.
"""

from importlib import import_module

__version__ = "0.2.0"

_STUB = __spec__.loader.get_data(f"{__path__[0]}/__init__.pyi").decode()
_LINES = [line.split() for line in _STUB.splitlines() if line.startswith("from ")]
_MODULES = {words[-1]: words[1] for words in _LINES}
"""Each public name, and the module that has it."""

__all__ = list(_MODULES)


def __getattr__(name):
    """Import a public name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    module = _MODULES[name]
    if module == __name__:
        return import_module(f"{__name__}.{name}")
    found = globals()[name] = getattr(import_module(module), name)
    return found


def __dir__():
    """The public names, and what every module has."""
    return sorted(globals().keys() | _MODULES)
