"""What the code of each step rests on: the user's functions, classes, constants and options as by default.

Beside the revision, for the one question whether a step does the same after a change. Guarantees: a part is
the user's where its module is among the files of the flow's code. What a function calls, what it reads of its
module, what it closes over and its defaults count, and so do the attributes and bases of a class. What is
found only at run time (`getattr` with a variable) is not seen. Comments and blank lines are no difference.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from geartrain.declarations.options import path_options
from geartrain.graph.graph import Graph
from geartrain.revision.code import Code
from geartrain.revision.plain import plain

PARTS_MAX = 200
"""Of one step that are named; the others are one part together."""
OTHERS = "others"
_DEPTH_MAX = 40
_DIGITS = 16
HASHED = "#"
"""Begins the hash of a value that is not shown: a text may be a secret, and others are long."""
_PLAIN = (type(None), bool, int, float, str, bytes)

Parts = Mapping[str, Mapping[str, str]]
"""By step, each part by its kind and name, such as `function water.is_low`: the hash of its source, or a
number as it is.
"""


def parts_of(graph: Graph, code: Code) -> dict[str, dict[str, str]]:
    """What each step of a graph rests on; code: the files that are the user's."""
    modules, assigned = frozenset(map(_module_of, code.files)), dict[str, dict[str, str]]()
    searched = ((step.id, _Search(modules, assigned).run(step.operator)) for step in graph.steps)
    return {step: found for step, found in searched if found}


def part_clauses(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """How what a step rests on differs, a clause each: values one by one, then all code together."""
    code = []
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name), new.get(name)
        if was == now:
            continue
        kind, _, what = name.partition(" ")
        shows = was is not None and now is not None and HASHED not in (was[0], now[0])
        if kind == "option" and was is not None and now is not None:
            said = f"was {was} by default, is now {now}" if shows else "is another by default"
            yield f"its option {what} {said}"
        elif kind == "constant" and shows:
            yield f"the constant {what} was {was}, is now {now}"
        elif kind != "option":
            code.append(f"{name} {'is gone' if now is None else 'is new' if was is None else 'has changed'}")
    if code:
        more = f", and {len(code) - 3} more" if len(code) > 3 else ""
        yield f"its code differs: {', '.join(code[:3])}{more}"


def _module_of(file: str) -> str:
    """The module that a file of the code is, such as `coldchain.tasks`."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class _Search:
    """The search for the parts of one step."""

    def __init__(self, modules: frozenset[str], assigned: dict[str, dict[str, str]]) -> None:
        """`assigned`: the statements of modules, as far as they are known, which steps share."""
        self._modules, self._assigned, self._seen = modules, assigned, set[int]()
        self._alive: list[Any] = []  # so that no id is given twice
        self._parts: dict[str, str] = {}

    def run(self, operator: Any) -> dict[str, str]:
        """The parts, at most `PARTS_MAX` and one for all others."""
        self._look(operator, 0)
        found = dict(sorted(self._parts.items()))
        if len(found) <= PARTS_MAX:
            return found
        names = list(found)
        rest = "\n".join(f"{name}={found.pop(name)}" for name in names[PARTS_MAX:])
        return {**found, OTHERS: _digest(rest)}

    def _look(self, value: Any, depth: int) -> None:
        """Note what is the user's of a value, and look further from there."""
        if isinstance(value, _PLAIN) or depth > _DEPTH_MAX or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._alive.append(value)
        below = depth + 1
        if isinstance(value, types.MethodType):
            self._look(value.__func__, below)
            self._look(value.__self__, below)
        elif isinstance(value, types.FunctionType):
            self._function(value, below)
        elif isinstance(value, partial):
            for part in (value.func, value.args, value.keywords):
                self._look(part, below)
        elif isinstance(value, type):
            self._class(value, below)
        elif isinstance(value, Mapping):
            for one in value.values():
                self._look(one, below)
        elif isinstance(value, list | tuple | set | frozenset):
            for one in value:
                self._look(one, below)
        else:
            self._object(value, below)

    def _is_ours(self, value: Any) -> bool:
        return str(getattr(value, "__module__", "") or "") in self._modules

    def _function(self, value: types.FunctionType, depth: int) -> None:
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None:
            self._look(wrapped, depth)
        for cell in value.__closure__ or ():
            try:
                self._value(f"{_name(value)} closes over", cell.cell_contents, depth)
            except ValueError:  # nothing is in it yet
                continue
        if not self._is_ours(value):
            return
        self._parts[f"function {_name(value)}"] = _source(value, value.__code__)
        for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            self._value(f"{_name(value)} by default", default, depth)
        names = set(_names(value.__code__))
        for name in sorted(names & value.__globals__.keys()):
            self._global(value.__globals__[name], f"{value.__module__}.{name}", names, depth)

    def _global(self, value: Any, name: str, names: set[str], depth: int) -> None:
        """What a function finds in its module; of a module of the user's, what is asked of that."""
        if not isinstance(value, types.ModuleType):
            self._value(name, value, depth)
        elif value.__name__ in self._modules:
            for one in sorted(names & vars(value).keys()):
                if not isinstance(vars(value)[one], types.ModuleType):
                    self._value(f"{value.__name__}.{one}", vars(value)[one], depth)

    def _value(self, name: str, value: Any, depth: int) -> None:
        """A named value: a constant by what it is, anything else by what it rests on."""
        if callable(value) or isinstance(value, types.ModuleType):
            self._look(value, depth)
            return
        module, _, own = name.rpartition(".")
        said = "" if isinstance(value, _PLAIN) else self._statements(module).get(own, "")
        text = _text(value, said)
        key = f"constant {name}"
        known = self._parts.get(key, text)
        self._parts[key] = text if known == text else HASHED + _digest(f"{known} {text}")
        self._look(value, depth)

    def _statements(self, module: str) -> dict[str, str]:
        if module not in self._assigned:
            self._assigned[module] = _assigned(module)
        return self._assigned[module]

    def _class(self, kind: type, depth: int) -> None:
        if not self._is_ours(kind):
            return
        self._parts[f"class {_name(kind)}"] = _source(kind, None)
        for base in kind.__bases__:
            self._look(base, depth)
        for name, one in sorted(vars(kind).items()):
            if isinstance(one, classmethod | staticmethod):
                self._look(one.__func__, depth)
            elif isinstance(one, property):
                for part in (one.fget, one.fset):
                    self._look(part, depth)
            elif isinstance(one, types.FunctionType | type):
                self._look(one, depth)
            elif not name.startswith("_") and isinstance(one, (*_PLAIN, list, tuple, dict, set, frozenset)):
                self._value(f"{_name(kind)}.{name}", one, depth)

    def _object(self, value: Any, depth: int) -> None:
        """An object: its class, and what its parts rest on; of a user's class the options as by default."""
        kind = type(value)
        self._look(kind, depth)
        fields = _fields(value)
        left_out = path_options(kind) if dataclasses.is_dataclass(kind) else ()
        for name, (one, is_default) in fields.items():
            if is_default and self._is_ours(kind) and name not in left_out and not callable(one):
                self._parts[f"option {name}"] = _text(one)
            self._look(one, depth)


def _fields(value: Any) -> dict[str, tuple[Any, bool]]:
    """The parts of an object, and whether each is as its class has it by default."""
    kind = type(value)
    known: list[tuple[str, Any]] = []
    if isinstance(value, msgspec.Struct):
        known = [(field.name, field.default) for field in msgspec.structs.fields(kind)]
    elif dataclasses.is_dataclass(value):
        known = [(field.name, field.default) for field in dataclasses.fields(value) if field.init]
    else:
        known = [(name, dataclasses.MISSING) for name in sorted(getattr(value, "__dict__", {}))]
    held = [(name, getattr(value, name, None), default) for name, default in known]
    return {name: (one, isinstance(one, _PLAIN) and one == default) for name, one, default in held}


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that code asks for, of functions within it too."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _names(one)


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _source(value: Any, code: types.CodeType | None) -> str:
    """The hash of a source, without comments on lines of their own; of code that has none, of its bytes."""
    try:
        lines = inspect.getsource(value).splitlines()
    except (OSError, TypeError):
        return _digest("" if code is None else f"{code.co_code.hex()} {_text(_consts(code))}")
    kept = (line.rstrip() for line in lines)
    return _digest("\n".join(line for line in kept if line and not line.lstrip().startswith("#")))


def _consts(code: types.CodeType) -> list[Any]:
    return [_consts(one) if isinstance(one, types.CodeType) else one for one in code.co_consts]


def _text(value: Any, said: str = "") -> str:
    """A number as it is shown, else the hash of a value; said: the statement that made it."""
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    return HASHED + _digest(msgspec.json.encode([plain(value), said], order="sorted").decode())


def _assigned(module: str) -> dict[str, str]:
    """By name, the statements of a module that give it a value; nothing for what is no module."""
    try:
        source = inspect.getsource(sys.modules[module])
        tree = ast.parse(source)
    except (KeyError, OSError, TypeError, SyntaxError, ValueError):
        return {}
    found: dict[str, str] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        text = ast.get_source_segment(source, statement) or ""
        stored = (
            n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        )
        for name in stored:
            found[name] = f"{found.get(name, '')}{text}\n"
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
