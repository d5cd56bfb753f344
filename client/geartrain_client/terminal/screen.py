"""What `gear` shows: results on stdout, progress on stderr, with colours and a live line only on a terminal.

Guarantees: whatever comes from a flow, a file or a device is shown as text. Its control characters are
escaped, and it is not read as markup.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from geartrain.printable import printable

FIRST_S = 2.0
PLAIN_INTERVAL_S = 5.0
LIVE_INTERVAL_S = 0.2
WIDTH_ELSEWHERE = 400
REPORT_WIDTH = 100
"""Columns of a report where there is no terminal."""


def results() -> Console:
    """Where results go."""
    return _console(sys.stdout)


def notices() -> Console:
    """Where progress and remarks go."""
    return _console(sys.stderr)


def reports(file: TextIO | None = None) -> Console:
    """Where a report goes that people read and programs do not: it is folded to the terminal's width, or to
    100 columns where there is none. file: stdout where it is not given.
    """
    return _console(file or sys.stdout, REPORT_WIDTH)


def _console(file: TextIO, width_elsewhere: int = WIDTH_ELSEWHERE) -> Console:
    # Beside a terminal no result is folded to a width: each line stays one line.
    width = None if file.isatty() else width_elsewhere
    return Console(file=file, markup=False, highlight=False, emoji=False, width=width)


def print_json(value: Any) -> None:
    """A result as JSON on stdout: what does not print is written as JSON's own escapes."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    shown = text if text.isprintable() else "".join(map(_json_form, text))
    sys.stdout.write(shown + "\n")


def _json_form(character: str) -> str:
    # Outside of its strings JSON has no other character that does not print than its line breaks.
    return character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1]


def table_of(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()
) -> Table:
    """A table of text; `numbers`: which columns are set to the right."""
    right = set(numbers)
    table = Table(
        title=Text(title) if title else None, title_justify="left", title_style="bold", box=SIMPLE_HEAD
    )
    for index, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


class ProgressLine:
    """One line of text for what takes longer than `FIRST_S`: renewed in place on a terminal, else printed
    again every few seconds, and ever less often.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._next_s = FIRST_S
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, text: Callable[[], str]) -> None:
        """Show `text()` where it is time for it."""
        seconds = time.monotonic() - self._began_s
        if seconds < self._next_s:
            return
        line = f"{seconds:6.1f} s  {printable(text())}"
        if not self._console.is_terminal:
            self._next_s = seconds + max(PLAIN_INTERVAL_S, seconds / 10)
            self._console.print(line, soft_wrap=True)
            return
        self._next_s = seconds + LIVE_INTERVAL_S
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Text(line), refresh=True)
