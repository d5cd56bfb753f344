"""The project's own files, as the tidy tests see them: which there are, and what part each belongs to."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = {
    "protocol": "geartrain",
    "devices": "geartrain_devices",
    "edge": "geartrain_edge",
    "client": "geartrain_client",
    "cloud": "geartrain_cloud",
    "simulation": "geartrain_simulation",
    "examples": "geartrain_examples",
}
"""Folder of each distribution, and the package in it."""

PROSE = (".md", ".toml", ".txt", ".py", ".sh", ".yml", ".yaml", ".cfg", ".html", ".js", ".css", ".proto", "")
"""Endings of the files that people read; the rule on machine paths covers them all."""


@dataclass(frozen=True)
class Source:
    """One Python file: `path` relative to the root, and its text. Parsed when first asked."""

    path: Path
    text: str

    @property
    def module(self) -> str:
        """Its dotted name as Python imports it: the part's folder is no part of the name."""
        parts = self.path.with_suffix("").parts
        parts = parts[1:] if parts[0] in PARTS else parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def package(self) -> str:
        """The first name of the module: "geartrain_edge", or "tests"."""
        return self.module.split(".")[0]

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.text, str(self.path))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and dotted name of each import; `from a import b` counts as `a.b`, to find submodules, too."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield node.lineno, f"{node.module or ''}.{alias.name}"

    def comments(self) -> Iterator[tuple[int, str]]:
        """Line and text of each comment."""
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def python_files() -> list[Source]:
    """Each Python file of the parts and the tests, without what is generated."""
    found = []
    for folder in (*PARTS, "tests", "scripts"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if not path.stem.endswith("_pb2") and not _is_build(relative):
                found.append(Source(relative, path.read_text(encoding="utf-8")))
    return found


def readable_files() -> Iterator[tuple[Path, str]]:
    """Path relative to the root and text of each file that people read."""
    for top in sorted(ROOT.iterdir()):
        if top.name.startswith(".") and top.name not in (".ci", ".gitignore"):
            continue
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            relative = path.relative_to(ROOT)
            if path.is_file() and path.suffix in PROSE and not _is_build(relative):
                yield relative, path.read_text(encoding="utf-8")


def _is_build(path: Path) -> bool:
    return any(part in ("build", "dist", "__pycache__", "spark-warehouse") for part in path.parts)
