"""The progress of a whole run: each hop of a record's path, as a live block on a terminal, else as lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from geartrain.printable import printable
from geartrain_client.terminal.screen import PLAIN_INTERVAL_S
from geartrain_cloud.cli.hops import Hops

_NOT_YET = ("", "starting")
"""States of an app in which Spark has not looked at its log, so that nobody knows how many entries wait."""


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
        entries = f"of {hops.to_process:,} log entries, " if hops.host not in _NOT_YET else ""
        grid.add_row("processed", f"{hops.processed:,}", f"{entries}by Spark into tables")
        grid.add_row("", f"{seconds:.0f} s", _remark(hops))
        return grid


def one_line(hops: Hops) -> str:
    """The hops in one line of plain text."""
    line = (
        f"read {hops.read:,} records, spooled {hops.spooled:,} rows in {hops.batches:,} batches, "
        f"acked {hops.acked:,} batches, logged {hops.logged:,} rows"
    )
    if hops.host not in _NOT_YET:
        line += f", processed {hops.processed:,} of {hops.to_process:,} entries"
    remark = _remark(hops)
    return f"{line} ({remark})" if remark else line


def _remark(hops: Hops) -> str:
    parts = []
    if hops.waiting_for:
        more = "" if len(hops.waiting_for) <= 3 else f" and {len(hops.waiting_for) - 3} more"
        parts.append(f"waiting for {', '.join(hops.waiting_for[:3])}{more}")
    if hops.host in _NOT_YET:
        parts.append("Spark is starting")
    return "; ".join(parts)
