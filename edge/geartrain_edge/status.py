"""What an agent says of itself, and the file that says it to people and programs beside it.

Guarantees: a reader of `status.json` sees one whole status or the one before; the file is readable by its
user only. It is a report and never an input: nothing is decided from it.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class AgentStatus(msgspec.Struct, frozen=True):
    """An agent at one moment.

    state: `starting`, `greeting` (a fresh spool asks where its device stands), `running`, `blocked` (the
    spool is full), `draining` (all sources ended), `finished`, `stopped` or `failed`; reason: a sentence for
    `failed`; epoch: 16 hexadecimal digits;
    spooled_seq, acked_seq: last committed and last trimmed batch; watermarks: by channel, microseconds;
    counters: totals by name since the spool began; written_at_us: wall clock, microseconds.
    """

    device: str
    flow: str
    state: str
    finished: bool
    connected: bool
    ended: bool
    reason: str
    alarm: str
    epoch: str
    spooled_seq: int
    acked_seq: int
    spool_bytes: int
    records_read: int
    batches_spooled: int
    rejected: int
    late: int
    watermarks: dict[str, int]
    counters: dict[str, int]
    written_at_us: int
    pid: int = 0


def write_status(path: Path, status: AgentStatus) -> None:
    """Replace the file by `status` in one step; raises `OSError`."""
    fresh = path.with_name(f"{path.name}.new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n")
    fresh.replace(path)
