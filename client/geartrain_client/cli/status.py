"""`gear status`: the processes of a platform, and what each waits for."""

from __future__ import annotations

from geartrain.printable import printable
from geartrain_client.rest.answers import Process, Status, answer_as
from geartrain_client.rest.platform import Platform
from geartrain_client.terminal.screen import print_json, results, table_of

MIB = 1 << 20


def show_status(platform: Platform, *, as_json: bool) -> None:
    """Print them; raises `GeartrainError`."""
    found = platform.get("/status")
    if as_json:
        print_json(found)
        return
    status, out = answer_as(Status, found), results()
    out.print(printable(f"platform {status.version} at {status.url or platform.door.url}"), soft_wrap=True)
    heads = ["process", "state", "pid", "restarts", "memory", "CPU", "version", "waits for"]
    lines = [_line(one) for one in status.processes]
    out.print(table_of("", heads, lines, numbers=(2, 3, 4, 5)))


def _line(one: Process) -> list[str]:
    waits = one.waits_for or ""
    return [
        one.name,
        one.state,
        "" if one.pid is None else str(one.pid),
        str(one.restarts),
        "" if one.rss_bytes is None else f"{one.rss_bytes / MIB:,.0f} MiB",
        "" if one.cpu_percent is None else f"{one.cpu_percent:.0f} %",
        one.version or "",
        waits if isinstance(waits, str) else "; ".join(waits),
    ]
