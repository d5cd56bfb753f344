"""A flow that tries to get at what is not its own, and says what it got."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from geartrain import Flow, Record, Table
from geartrain.errors import ConfigError
from geartrain.source import Source, Split


class Nothing(Record):
    number: int


class Prying(Source[Nothing]):
    folder: str = ""

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        state = Path(self.folder)
        agent = os.getppid()
        tries: dict[str, Callable[[], object]] = {
            "own": (state / "prying.1" / "agent.toml").read_bytes,
            "identity": (state / "identity" / "identity.pem").read_bytes,
            "spool": (state / "stocks.1" / "spool.sqlite").read_bytes,
            "options": (state / "stocks.1" / "agent.toml").read_bytes,
            "later": (state / "stocks.2" / "agent.toml").read_bytes,
            "secrets": (state / "secrets" / "stocks" / "db").read_bytes,
            "desired": (state / "desired.bin").read_bytes,
            "change": lambda: (state / "stocks.1" / "drain").write_bytes(b""),
            "forge": lambda: (state / "identity" / "identity.pem").write_bytes(b""),
            "memory": lambda: Path(f"/proc/{agent}/mem").open("rb").close(),
            "signal": lambda: os.kill(agent, 0),
        }
        got = []
        for name, attempt in tries.items():
            try:
                attempt()
                got.append(name)
            except OSError:
                continue
        raise ConfigError(f"got at {', '.join(got)}")


flow = Flow("prying")
flow.source("pried", Prying(), out=Nothing).sink("none", Table("none"))
