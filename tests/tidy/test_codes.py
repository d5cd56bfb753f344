"""The list of dead letters' codes in docs/dead_letters.md is that of the code, in both directions."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

import pytest

from geartrain.records.codes import CODE, Code
from tests.tidy.source import ROOT, python_files

ROW = re.compile(r"^\| `([a-z0-9_]+)` \| (.+) \|$", re.MULTILINE)
HOLDERS = ("geartrain_devices", "geartrain_edge.sources", "geartrain.declarations")
"""Where sources stand, which have codes of their own."""


def documented() -> tuple[dict[str, str], dict[str, str]]:
    """Meanings by code: those of the runtime, and those of sources."""
    text = (ROOT / "docs/dead_letters.md").read_text(encoding="utf-8").split("\n## ")
    of_runtime, of_sources = text[1:]
    return dict(ROW.findall(of_runtime)), dict(ROW.findall(of_sources))


def codes_given(tree: ast.AST) -> Iterator[str]:
    """Texts that a module gives as a code: to a parameter or a name that says so, by themselves or by the
    name of a constant of the module, and constants whose docstring begins with "The code".
    """
    assigned: list[tuple[str, ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "code":
            assigned.append(("code", node.value))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned += [(ast.unparse(one), node.value) for one in targets]
    constants = {name: value.value for name, value in assigned if isinstance(value, ast.Constant)}
    body = tree.body if isinstance(tree, ast.Module) else []
    for node, below in itertools.pairwise(body):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            said = below.value if isinstance(below, ast.Expr) else None
            if isinstance(said, ast.Constant) and str(said.value).startswith("The code"):
                yield str(node.value.value)
    for name, value in assigned:
        if not re.search(r"(?i)(^|_)codes?$", name):
            continue
        for node in ast.walk(value):
            text = constants.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
            if isinstance(text, str) and text != "code" and CODE.fullmatch(text):
                yield text


def test_codes_of_the_runtime_are_documented() -> None:
    of_runtime, of_sources = documented()
    assert of_runtime.keys() == {str(one) for one in Code}
    assert not of_runtime.keys() & of_sources.keys()


def test_codes_of_sources_are_documented() -> None:
    of_runtime, of_sources = documented()
    files = [one for one in python_files() if one.module.startswith(HOLDERS)]
    given = {code: one.path for one in files for code in codes_given(one.tree)}
    assert "not_a_record" in given
    missing = {code: str(path) for code, path in given.items() if code not in of_runtime | of_sources}
    assert not missing, "add each to the table of sources' codes in docs/dead_letters.md"
    unused = {code for code in of_sources if not any(f'"{code}"' in one.text for one in files)}
    assert not unused, "no source gives these: take them out of docs/dead_letters.md"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('Reject(1, "why", b"", code="bad_time")', ["bad_time"]),
        ('code = "a" if x else "b"', ["a", "b"]),
        ('class A:\n    code: str = "not_it"', ["not_it"]),
        ('TEXT_CODES = {"x_1": 1}', ["x_1"]),
        ('LONG = "too_long"\nCODES = frozenset((LONG, OTHER))', ["too_long"]),
        ('ODD: Final = "odd"\n"""The code of an odd row."""\nNAME = "x"', ["odd"]),
        ('Reject(1, "why", b""); name = "bad_time"; code = "Not one"', []),
    ],
)
def test_codes_are_found(text: str, found: list[str]) -> None:
    assert list(codes_given(ast.parse(text))) == found
