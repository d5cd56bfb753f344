"""The rule that no program reads a message: what was wrong is compared by its code, never by its wording."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.tidy.source import Source

LIBRARY_TEXTS = {
    "geartrain.adapters.paho_log": "paho tells why a connection was lost to its log alone",
    "geartrain.errors.conversion": "msgspec names the field of a mistake in its sentence alone",
    "geartrain_client.cli.usage": "click names what is missing or unknown in its sentences alone",
    "geartrain_cloud.spark.error_texts": "Spark's errors come through py4j as text",
    "geartrain_cloud.spark.java": "java says its version in what it prints",
}
"""The modules that read the sentences of a library, each tested against the version that is installed."""

_MESSAGE = re.compile(r"(?:\w+_)?(?:reason|why|message|sentence|detail|alarm|complaint|refusal)")
_TEXT = re.compile(r"(?:\w+_)?said")
_CAUGHT = frozenset({"error", "exc", "exception", "failure", "problem"})
_SEARCHES = frozenset(
    {"startswith", "endswith", "partition", "rpartition", "removeprefix", "removesuffix", "find", "rfind"}
    | {"index", "rindex", "count", "rsplit", "split"}
)
_MATCHES = frozenset({"match", "search", "fullmatch", "findall", "finditer", "sub", "subn", "split"})
_WORDS = re.compile(r"[\w',.:-]+")


def read_messages(source: Source) -> Iterator[str]:
    """No program compares, searches, splits or matches a message, nor keeps a constant for that."""
    if source.package == "tests" or source.module in LIBRARY_TEXTS or source.module.startswith("scripts"):
        return
    reading = _Reading(source)
    for node in source.nodes:
        if what := reading.find_misuse(node):
            yield f"{source.path}:{node.lineno} {what}: give it a code, and compare that"  # type: ignore[attr-defined]


class _Reading:
    """What a file does to messages."""

    def __init__(self, source: Source) -> None:
        self._constants = {
            target.id: node.value.value
            for node in source.tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name) and isinstance(node.value.value, str)
        }
        self._made = {
            id(name)
            for function in source.nodes
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for name in _names_of_texts(function)
        }

    def find_misuse(self, node: ast.AST) -> str:
        """What a node does to a message, "" for nothing."""
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node.ops[0], node.left, node.comparators[0])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self._called(node.func, node)
        return ""

    def _compared(self, how: ast.cmpop, left: ast.expr, right: ast.expr) -> str:
        if isinstance(how, ast.In | ast.NotIn):
            if self._is_message(right) or self._words(left) > 1:
                return f"{ast.unparse(left)} is looked for in a message"
            if self._is_message(left) and not isinstance(right, ast.Name) and self._is_literal(right):
                return f"the message {ast.unparse(left)} is compared"
        elif isinstance(how, ast.Eq | ast.NotEq):
            for one, other in ((left, right), (right, left)):
                if self._is_message(one) and self._is_literal(other):
                    return f"the message {ast.unparse(one)} is compared"
                if self._words(one) > 3:
                    return f"{ast.unparse(one)[:40]} is compared with a message"
        return ""

    def _called(self, function: ast.Attribute, call: ast.Call) -> str:
        subject, name = function.value, function.attr
        if name in _SEARCHES and call.args and not _divides_lines(call):
            if self._is_message(subject) or _is_name(subject, _TEXT):
                return f"the message {ast.unparse(subject)} is read by {name}()"
            if any(self._words(one) > 1 for one in _flat(call.args[:1])):
                return f"{ast.unparse(subject)} is searched for a sentence"
        if name in _MATCHES and any(self._is_message(one) for one in call.args):
            return f"the message {ast.unparse(call.args[-1])} is matched"
        return ""

    def _is_message(self, node: ast.expr) -> bool:
        """Whether an expression is the text of an error, or is named as a message."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "lower":
            return self._is_message(node.func.value)
        named = node.func if isinstance(node, ast.Call) else node
        return _is_name(named, _MESSAGE) or _is_text_of_error(node) or id(node) in self._made

    def _words(self, node: ast.expr) -> int:
        """How many words a constant text has, 0 for what is none."""
        text = self._constants.get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        if text is None or "\n" in text or not all(map(_WORDS.fullmatch, text.split())):
            return 0
        return len(text.split())

    def _is_literal(self, node: ast.expr) -> bool:
        """Whether an expression is a text that is not empty, several, or a constant's name. A single word in
        capitals is a code, as OpenSSL has it; so is a member of an enumeration.
        """
        if isinstance(node, ast.Tuple | ast.Set | ast.List):
            return any(self._is_literal(one) for one in node.elts)
        if isinstance(node, ast.Constant):
            return isinstance(node.value, str) and node.value != "" and not node.value.isupper()
        return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Name) and node.id.isupper())


def _names_of_texts(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Name]:
    """The names in a function that stand for the text of an error there."""
    inside, made = list(ast.walk(function)), set[str]()
    for node in inside:
        if isinstance(node, ast.Assign | ast.NamedExpr) and _is_text_of_error(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            made |= {one.id for one in targets if isinstance(one, ast.Name)}
    yield from (node for node in inside if isinstance(node, ast.Name) and node.id in made)


def _is_text_of_error(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        if ast.unparse(node.func) in ("str", "repr"):
            return any(isinstance(one, ast.Name) and one.id in _CAUGHT for one in node.args)
        inside = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
        return any(_is_text_of_error(one) for one in inside)
    return ast.unparse(node) == "error.args[0]"


def _is_name(node: ast.expr, pattern: re.Pattern[str]) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return pattern.fullmatch(name) is not None


def _divides_lines(call: ast.Call) -> bool:
    return all(isinstance(one, ast.Constant) and one.value == "\n" for one in call.args)


def _flat(nodes: list[ast.expr]) -> Iterator[ast.expr]:
    for node in nodes:
        yield from node.elts if isinstance(node, ast.Tuple) else (node,)
