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
from geartrain_cloud.supervisor.progress import Hops

FIRST_S = 2.0
PLAIN_INTERVAL_S = 5.0
LIVE_INTERVAL_S = 0.2
WIDTH_ELSEWHERE = 400


def results() -> Console:
    """Where results go."""
    return _console(sys.stdout)


def notices() -> Console:
    """Where progress and remarks go."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    # Beside a terminal nothing is folded to a width: each line stays one line.
    width = None if file.isatty() else WIDTH_ELSEWHERE
    return Console(file=file, markup=False, highlight=False, emoji=False, width=width)


def print_json(value: Any) -> None:
    """A result as JSON on stdout."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


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


class ProgressView:
    """Shows hops: one live block on a terminal, else a line every few seconds and when something happens."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._said_s = -PLAIN_INTERVAL_S
        self._last = ""
        # Without a refresh thread: the supervisor forks, and must have none.
        self._live = (
            Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        )

    @property
    def seconds(self) -> float:
        """How long it has been showing."""
        return time.monotonic() - self._began_s

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if kind is None and self._last:
            self._console.print(self._last, soft_wrap=True)

    def show(self, hops: Hops, happened: Sequence[str]) -> None:
        """Show the progress, and each thing that has happened as a line of its own."""
        seconds = self.seconds
        for line in happened:
            self._console.print(f"{seconds:6.1f} s  {printable(line)}", soft_wrap=True)
        self._last = f"{seconds:6.1f} s  {one_line(hops)}"
        if self._live is not None:
            self._live.update(self._block(seconds, hops), refresh=True)
        elif seconds - self._said_s >= PLAIN_INTERVAL_S:
            self._said_s = seconds
            self._console.print(self._last, soft_wrap=True)

    @staticmethod
    def _block(seconds: float, hops: Hops) -> Table:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold")
        grid.add_column(justify="right")
        grid.add_column(style="dim")
        grid.add_row("read", f"{hops.read:,}", "records, by the agents from their sources")
        grid.add_row(
            "spooled", f"{hops.spooled:,}", f"rows, in {hops.batches:,} batches on the devices' disks"
        )
        grid.add_row("acked", f"{hops.acked:,}", f"of {hops.batches:,} batches, durable in the data centre")
        grid.add_row("logged", f"{hops.logged:,}", "rows, by ingest in its log")
        grid.add_row("processed", f"{hops.processed:,}", f"of {hops.to_process:,} rows, by Spark into tables")
        grid.add_row("", f"{seconds:.0f} s", _remark(hops))
        return grid


def one_line(hops: Hops) -> str:
    """The hops in one line of plain text."""
    line = (
        f"read {hops.read:,} records, spooled {hops.spooled:,} rows in {hops.batches:,} batches, "
        f"acked {hops.acked:,} batches, logged {hops.logged:,} rows, "
        f"processed {hops.processed:,} of {hops.to_process:,} rows"
    )
    remark = _remark(hops)
    return f"{line} ({remark})" if remark else line


def _remark(hops: Hops) -> str:
    parts = []
    if hops.waiting_for:
        more = "" if len(hops.waiting_for) <= 3 else f" and {len(hops.waiting_for) - 3} more"
        parts.append(f"waiting for {', '.join(hops.waiting_for[:3])}{more}")
    if hops.driver in ("", "waiting", "starting"):
        parts.append("Spark is starting")
    return "; ".join(parts)
