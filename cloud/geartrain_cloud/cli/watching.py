"""`gear run --watch`: run a flow, show the last records of each stream, and do so again when a file changes.

The files are asked for their times and sizes several times a second. Guarantees: a run ends before the next
one begins; a flow that cannot be loaded is one sentence, and is watched all the same; Ctrl-C leaves no
process behind. Nothing is written.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from geartrain.printable import printable
from geartrain_client.terminal.screen import notices, results, table_of
from geartrain_cloud.cli.watched import Seen, Wish

LOOK_S = 0.2
FILES_MAX = 5_000
"""Of the flow that are watched."""
SHOW_S = 5.0
"""How often a run that goes on is shown."""
END_S = 5.0
"""How long a run has to end when it is told to."""
_SKIPPED = frozenset({"__pycache__", "node_modules", "build", "dist"})
Stamp = tuple[int, int]
"""Time of change in nanoseconds, and size."""


def watch(wish: Wish, folder: Path | None, going: Callable[[], bool]) -> None:
    """Run and show until `going` says no more.

    folder: that of the project, None to find it by the flow's module.
    """
    notice = notices()
    root = folder or root_of(wish.flow)
    while going():
        before = stamps(code_of(root))
        with _Run(wish) as run:
            changed = _follow(run, root, before, going)
        if changed:
            _settle(root, run.inputs, going)
            notice.print(printable(f"changed: {changed}; runs again"), soft_wrap=True)


def root_of(flow: str) -> Path:
    """The folder of the flow's files; the working directory where its module is not found."""
    top = flow.partition(":")[0].partition(".")[0]
    importable = top.isidentifier() and top not in sys.builtin_module_names
    try:
        found = find_spec(top) if importable else None
    except (ImportError, ValueError):
        found = None
    return Path(found.origin).parent if found is not None and found.origin else Path.cwd()


def code_of(root: Path) -> Iterator[Path]:
    """The Python files and settings of a project, up to `FILES_MAX` of them."""
    return islice(_code_below(root), FILES_MAX)


def _code_below(root: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(root):
        folders[:] = sorted(one for one in folders if one not in _SKIPPED and not one.startswith("."))
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        yield from (Path(place, name) for name in sorted(files) if name.endswith((".py", ".toml")))


def stamps(paths: Iterator[Path]) -> dict[Path, Stamp]:
    """When each file was changed, and its size; those that are not there are left out."""
    found = {}
    for path in paths:
        try:
            told = path.stat()
        except OSError:
            continue
        found[path] = (told.st_mtime_ns, told.st_size)
    return found


def _difference(before: Mapping[Path, Stamp], after: Mapping[Path, Stamp]) -> str:
    """The name of a file that came, went or changed, "" where none did."""
    return next((one.name for one in {**before, **after} if before.get(one) != after.get(one)), "")


def _follow(run: _Run, root: Path, code: Mapping[Path, Stamp], going: Callable[[], bool]) -> str:
    """Show what a run sees, until a file changes: its name, "" where nobody watches any more."""
    inputs: dict[Path, Stamp] | None = None
    shown_s = time.monotonic()
    while going():
        for seen in run.told(LOOK_S):
            if inputs is None:
                inputs = stamps(iter(run.inputs))
            if seen.ended or time.monotonic() - shown_s >= SHOW_S:
                shown_s = time.monotonic()
                _show(seen)
        changed = _difference(code, stamps(code_of(root)))
        if not changed and inputs is not None:
            changed = _difference(inputs, stamps(iter(run.inputs)))
        if changed:
            return changed
    return ""


def _settle(root: Path, inputs: list[Path], going: Callable[[], bool]) -> None:
    """Wait until no file changes any more: an editor writes several, and not at once."""
    before: dict[Path, Stamp] = {}
    while going():
        after = stamps(iter([*code_of(root), *inputs]))
        if after == before:
            return
        before = after
        time.sleep(LOOK_S)


def _show(seen: Seen) -> None:
    out = results()
    for one in seen.streams:
        title = printable(f"{one.name}: {one.count:,} records")
        out.print(table_of(title, one.heads, one.rows) if one.rows else title)
    if seen.streams:
        out.print(f"read {seen.read:,} records; dead letters {seen.letters:,}")
    if seen.reason:
        out.print(printable(f"the last dead letter: {seen.reason}"), soft_wrap=True)
    if seen.error:
        notices().print(printable(f"gear: {seen.error}"), soft_wrap=True)
    if seen.ended:
        notices().print("waits for a change; Ctrl-C ends it")


class _Run:
    """One run in a process of its own, in a session of its own: Ctrl-C reaches who watches alone."""

    def __init__(self, wish: Wish) -> None:
        self.inputs: list[Path] = []
        self._ended = False
        self._lines: queue.Queue[bytes] = queue.Queue(maxsize=16)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "geartrain_cloud.cli.watched"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if self._process.stdin is not None:
            with self._process.stdin as stdin:
                stdin.write(msgspec.json.encode(wish))
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def _read(self, lines: Any) -> None:
        for line in lines:
            self._lines.put(line)
        self._lines.put(b"")

    def told(self, seconds: float) -> Iterator[Seen]:
        """What the run says within a time; its end is always told."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return
        if line:
            seen = msgspec.json.decode(line, type=Seen)
            self.inputs = [Path(one) for one in seen.inputs]
            self._ended = self._ended or seen.ended
            yield seen
        elif not self._ended:
            self._ended = True
            code = self._process.wait()
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            yield Seen(error=f"the run ended {how}, and its last words are above", ended=True)

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
