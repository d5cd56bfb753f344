"""How long sentences are in README and docs, and in the docstrings of modules and of what is public.

A sentence ends with a full stop, a question mark or an exclamation mark, and with its paragraph, list item or
table cell; in `name: what it is; other: what that is`, each part is one. Code counts as one word, and blocks
of code do not count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.source import ROOT, Source

WORDS_MAX = 30

CLEANED = (
    "client/geartrain_client",
    "README.md",
    "cloud/geartrain_cloud",
    "devices/geartrain_devices",
    "docs/ARCHITECTURE.md",
    "docs/concepts.md",
    "docs/data_files.md",
    "docs/delivery.md",
    "docs/demo_stocks.md",
    "docs/demo_traffic.md",
    "docs/glossary.md",
    "docs/nexmark.md",
    "docs/operators.md",
    "docs/performance.md",
    "docs/placement.md",
    "docs/reference",
    "docs/reliability.md",
    "docs/rest.md",
    "docs/security.md",
    "docs/sinks.md",
    "docs/sources.md",
    "docs/sources",
    "docs/testing.md",
    "docs/time.md",
    "docs/wire.md",
    "edge/geartrain_edge",
    "examples/geartrain_examples",
    "protocol/geartrain",
    "simulation/geartrain_simulation",
)
"""Pages, and folders of Python files, in which no sentence is longer. Add one when you have cleaned it."""

_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]+`")
_END = re.compile(r"(?<=[.?!])[\s)*\"”]+(?=\S)|;\s+(?=\w+(?:, \w+)*: )")
_ITEM = re.compile(r"^\s*([-*+]|\d+\.)\s+|^#+ ")
_NAMED = re.compile(r"^\s+[\w.]+: ")


def long_sentences(text: str) -> list[tuple[int, str]]:
    """(words, sentence) of each sentence in Markdown or a docstring that has too many words."""
    found = []
    for paragraph in _paragraphs(_BLOCK.sub("\n\n", text)):
        plain = _CODE.sub("code", _LINK.sub(r"\1", paragraph))
        for sentence in _END.split(plain):
            words = len([word for word in sentence.split() if any(map(str.isalnum, word))])
            if words > WORDS_MAX:
                found.append((words, sentence))
    return found


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs, list items, cells and sections of a text, each on one line; without examples."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        alone = line.strip().endswith(":") and " " not in line.strip()
        starts = _ITEM.match(line) or _NAMED.match(line) or line.startswith("|")
        if lines and (starts or alone or not line.strip() or line.lstrip().startswith((">>>", "..."))):
            yield " ".join(lines)
            lines = []
        if line.startswith("|"):
            yield from (cell.strip() for cell in line.strip("|").split("|"))
        elif line.lstrip().startswith((">>>", "...")):
            lines = []
        elif line.strip() and not alone:
            lines.append(_ITEM.sub("", line).strip())


def offences(path: Path) -> Iterator[str]:
    """A sentence for each that is too long, of a page or of a Python file."""
    text = (ROOT / path).read_text(encoding="utf-8")
    texts = _docstrings(Source(path, text)) if path.suffix == ".py" else [(1, text)]
    for line, part in texts:
        for words, sentence in long_sentences(part):
            where = f"{path}:{line}" if path.suffix == ".py" else str(path)
            yield f"{where} {words} words, {WORDS_MAX} are the most: {sentence[:90]}..."


def _docstrings(source: Source) -> list[tuple[int, str]]:
    """Line and docstring of the module and of all in it that is public."""
    found = [(1, ast.get_docstring(source.tree) or "")]
    waiting: list[ast.AST] = [*source.tree.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
            found.append((node.lineno, ast.get_docstring(node) or ""))
            if isinstance(node, ast.ClassDef):
                waiting += node.body
    return found


def cleaned_files() -> Iterator[Path]:
    """The files that are measured."""
    for name in CLEANED:
        top = ROOT / name
        for path in (
            [top] if top.is_file() else sorted(top.rglob("*.md" if name.startswith("docs/") else "*.py"))
        ):
            if not path.stem.endswith("_pb2"):
                yield path.relative_to(ROOT)
