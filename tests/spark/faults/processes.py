"""Who runs below a process: Spark's Java and its Python workers, which the tests kill."""

from __future__ import annotations

from pathlib import Path


def below(pid: int) -> list[int]:
    """The processes that `pid` has started, and all that these have, parents first."""
    parents = {int(one.name): _parent(one) for one in Path("/proc").iterdir() if one.name.isdecimal()}
    found, fresh = list[int](), [pid]
    while fresh:
        fresh = [child for child, parent in parents.items() if parent in fresh]
        found += fresh
    return found


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1  # it has ended


def command_of(pid: int) -> str:
    """The command line of a process, empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
