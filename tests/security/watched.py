"""Runs a program's `main` and writes down what it executed that did not come from its own source files.

`python -m tests.security.watched REPORT MODULE ARGUMENT...`. Under the test of execution. Guarantees: what
unpickles, unmarshals, compiles, evaluates or starts a program is in the report, with the function that did
it, but for what an import does to load a module and for the callers below, each of which works on source.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

EVENTS = frozenset(
    {"pickle.find_class", "marshal.load", "marshal.loads", "compile", "exec", "code.__new__"}
    | {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen"}
)
OF_SOURCE = frozenset(
    {
        ("dataclasses", "_create_fn"),  # writes the methods of a class from its field names
        ("collections", "namedtuple"),  # the same
        ("inspect", "get_annotations"),  # the hints of a command's function, which typer reads
        ("inspect", "<dictcomp>"),  # the same, in Python 3.11
        ("ast", "parse"),  # the imports of a flow's own files; what it gives is a tree, and no code
        ("typing", "__init__"),  # a type hint that a source file holds as text
        ("typing", "_evaluate"),  # the same
    }
)
_LOADING = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")


def watch() -> set[str]:
    """From now on: what was executed, as `event by function in file`."""
    seen: set[str] = set()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS:
            frame = sys._getframe(1)
            if not _is_of_source(event, frame):
                seen.add(f"{event} by {frame.f_code.co_name} in {frame.f_code.co_filename}")

    sys.addaudithook(hook)
    return seen


def _is_of_source(event: str, frame: FrameType) -> bool:
    if (frame.f_globals.get("__name__"), frame.f_code.co_name) in OF_SOURCE:
        return event in ("compile", "exec", "code.__new__")
    found: FrameType | None = frame
    while (
        found is not None
    ):  # a module that is being loaded may do what it likes: it is a source file of ours
        if found.f_code.co_filename in _LOADING:
            return not event.startswith(("pickle", "os.", "subprocess"))
        found = found.f_back
    return False


def main(report: str, module: str, *arguments: str) -> int:
    """Run `main` of the module, and write the report; returns its exit code."""
    seen = watch()
    run: Callable[[list[str]], int] = importlib.import_module(module).main
    try:
        return run(list(arguments))
    finally:
        Path(report).write_text(json.dumps(sorted(seen)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
