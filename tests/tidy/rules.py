"""The house's rules on a Python file: each is a function from a file to its offences, a sentence each."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator

from tests.tidy.messages import read_messages
from tests.tidy.source import PARTS, Source

Rule = Callable[[Source], Iterator[str]]

MODULE_LINES_USUAL = 500
FUNCTION_LINES_MAX = 60

MAY_IMPORT = {
    "geartrain": set[str](),
    "geartrain_devices": {"geartrain"},
    "geartrain_edge": {"geartrain"},
    "geartrain_client": {"geartrain"},
    "geartrain_cloud": {"geartrain", "geartrain_client"},
    "geartrain_examples": {"geartrain", "geartrain_devices"},
    "geartrain_simulation": set(PARTS.values()),
}
"""What each part may import of the others."""

EFFECTS = frozenset(
    {"aiomqtt", "asyncio", "concurrent", "multiprocessing", "os", "random", "secrets", "select", "selectors"}
    | {"signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time", "urllib"}
)
"""Modules of effects: in `geartrain` only its adapters import them; all else asks a port."""

OUTSIDE = ("geartrain.adapters", "geartrain.concurrency", "geartrain.testing.clock")
"""What stands outside the ports: their production forms, the forms that a test moves by hand, and the shared
rules of asyncio."""

EXECUTABLE = frozenset({"pickle", "cloudpickle", "dill", "marshal", "shelve"})
VAGUE = frozenset({"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"})
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
LEFT_OUT = frozenset({"skip", "skipif", "skipIf", "skipTest", "xfail", "importorskip"})
PROVES = re.compile(r"assert|check|compare|expect|fail|raises|verify|warns")

LIMITED = {"wait_for": 1, "timeout": 0, "wait": 0, "join": 0, "result": 0, "settimeout": 0}
"""Functions that take a limit, and which argument that is."""
SHORT_S = 5
MAY_LIMIT = ("tests/bench/", "tests/spark/", "tests/hosting/hosted.py", "tests/process/sparks.py")
"""Files that are still to be freed from limits of their own."""


def import_direction(source: Source) -> Iterator[str]:
    """Imports go one way: devices, edge, client and cloud to geartrain; only cloud to another, the client."""
    allowed = MAY_IMPORT.get(source.package)
    for line, name in source.imports():
        top = name.split(".")[0]
        if allowed is None or top == source.package or top in allowed:
            continue
        if top in MAY_IMPORT or top == "tests":
            yield f"{source.path}:{line} {source.package} may not import {top}"


def effects(source: Source) -> Iterator[str]:
    """In geartrain, effects enter through ports: only the adapters import their modules or open files."""
    if source.package != "geartrain" or source.module.startswith(OUTSIDE):
        return
    for line, name in source.imports():
        if name.split(".")[0] in EFFECTS:
            yield f"{source.path}:{line} only geartrain.adapters may import {name.split('.')[0]}"
        if name.startswith("geartrain.adapters"):
            yield f"{source.path}:{line} geartrain may not import its own adapters: they are handed in"
    for node in source.nodes:
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "open" or re.search(r"\b(datetime|date)\.(now|utcnow|today)$", called):
                yield f"{source.path}:{node.lineno} only geartrain.adapters may call {called}"


def undeclared(source: Source, declared: dict[str, frozenset[str]]) -> Iterator[str]:
    """A package that a part imports is in its pyproject.toml, or in that of a part it depends on."""
    known = (
        declared.get(source.package, frozenset()) | sys.stdlib_module_names | MAY_IMPORT.keys() | {"tests"}
    )
    for line, name in source.imports():
        top = name.split(".")[0]
        if top not in known:
            yield f"{source.path}:{line} {top} is imported, but no dependency of {source.package} declares it"


def lengths(source: Source) -> Iterator[str]:
    """Functions stay short enough to be read at once."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                most = f"{FUNCTION_LINES_MAX} are the most"
                yield f"{source.path}:{node.lineno} {node.name} has {lines} lines; {most}"


def long_module(source: Source) -> Iterator[str]:
    """A warning, not an offence: a module is one concept, whole, but a long one may hold two."""
    count = source.text.count("\n")
    if count > MODULE_LINES_USUAL:
        yield f"{source.path} has {count} lines, more than {MODULE_LINES_USUAL}: is it one concept?"


def names(source: Source) -> Iterator[str]:
    """A module or class says what it holds; a drawer for odds and ends has no place."""
    for part in source.module.split("."):
        if VAGUE & set(part.split("_")):
            yield f"{source.path} is called {part}: name it after what it holds"
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and re.search(r"(Manager|Helpers?|Utils?)$", node.name):
            yield f"{source.path}:{node.lineno} {node.name}: name it after what it does"


def docstrings(source: Source) -> Iterator[str]:
    """Each module says what it is."""
    if not ast.get_docstring(source.tree):
        yield f"{source.path} has no docstring: say what it is, where it stands, what it guarantees"


def unfinished(source: Source) -> Iterator[str]:
    """Nothing is left for later inside the code."""
    is_named = UNFINISHED.search(source.text)
    texts = list(source.comments()) if is_named else []  # to take a file apart takes long
    for node in source.nodes:
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if is_named and isinstance(node, documented) and (text := ast.get_docstring(node)):
            texts.append((getattr(node, "lineno", 1), text))
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            yield f"{source.path}:{node.lineno} NotImplementedError: finish it, or make it a Protocol or ABC"
    for line, text in texts:
        if found := UNFINISHED.search(text):
            yield f"{source.path}:{line} {found[0]}: do it now, or open an issue"


def executable_data(source: Source) -> Iterator[str]:
    """Nothing executable crosses a boundary: no pickle, marshal, eval, exec, yaml.load."""
    for line, name in source.imports():
        if name.split(".")[0] in EXECUTABLE:
            yield f"{source.path}:{line} {name.split('.')[0]}: encode with msgspec or protobuf"
    for node in source.nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("eval", "exec", "yaml.load"):
            yield f"{source.path}:{node.lineno} {ast.unparse(node.func)} runs what it reads"


def left_out(source: Source) -> Iterator[str]:
    """No test is skipped or expected to fail."""
    for line, name in source.imports():
        if re.fullmatch(rf"(pytest|unittest)\.({'|'.join(LEFT_OUT)})", name):
            yield f"{source.path}:{line} {name}: a test runs, or it goes"
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr in LEFT_OUT:
            whole = ast.unparse(node)
            if re.match(r"(pytest|unittest|self)\.", whole):
                yield f"{source.path}:{node.lineno} {whole}: a test runs, or it goes"


def tests_prove(source: Source) -> Iterator[str]:
    """A test asserts something, itself or by a function whose name says so."""
    if not source.path.name.startswith("test_"):
        return
    for node in source.nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        inside = list(ast.walk(node))
        asserts = any(isinstance(one, ast.Assert) for one in inside)
        calls = (ast.unparse(one.func) for one in inside if isinstance(one, ast.Call))
        if not asserts and not any(PROVES.search(called) for called in calls):
            yield f"{source.path}:{node.lineno} {node.name} asserts nothing"


def own_limits(source: Source) -> Iterator[str]:
    """A test waits for `WAIT_S`: a shorter limit is what the test is about, as a refusal after 1 s is."""
    if source.package != "tests" or any(part in source.path.as_posix() for part in MAY_LIMIT):
        return
    for node in source.nodes:
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            limits = [one.value for one in node.keywords if one.arg == "timeout"]
            if called in LIMITED:
                limits += node.args[LIMITED[called] :][:1]
        elif isinstance(node, ast.BinOp) and ast.unparse(node.left).endswith("monotonic()"):
            limits = [node.right] if isinstance(node.op, ast.Add) else []
        else:
            continue
        for limit in limits:
            seconds = limit.value if isinstance(limit, ast.Constant) else None
            if isinstance(seconds, int | float) and seconds > SHORT_S:
                yield f"{source.path}:{node.lineno} waits for {seconds:g} s: wait with tests.waiting"


def raised_in_groups(source: Source) -> Iterator[str]:
    """Nothing is raised in an `except*`: up to Python 3.11.3 it comes out in a group."""
    for node in source.nodes:
        if isinstance(node, ast.TryStar):
            inside = (one for handler in node.handlers for one in ast.walk(handler))
            for one in inside:
                if isinstance(one, ast.Raise) and one.exc is not None:
                    yield f"{source.path}:{one.lineno} raises in an except*: note it, and raise it behind"


RULES: tuple[Rule, ...] = (
    docstrings,
    effects,
    executable_data,
    import_direction,
    left_out,
    lengths,
    names,
    own_limits,
    raised_in_groups,
    read_messages,
    tests_prove,
    unfinished,
)
