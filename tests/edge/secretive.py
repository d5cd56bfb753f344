"""A flow whose source asks for a secret: it gives a digest of it, and breaks where it is told to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from geartrain import Flow, Record, Table
from geartrain.source import Batch, Source, Split


class Digest(Record):
    digest: str


class Once:
    """One record, then nothing more, without an end."""

    def __init__(self, digest: str) -> None:
        self.name, self.out_of_orderness_us, self._digest = "digest", 0, digest

    async def read(self, position: int, limit: int) -> Batch:
        if position:
            return Batch([], [], range(0), position)
        return Batch([Digest(self._digest)], [1_600_000_000_000_000], range(1), 1)

    async def close(self) -> None:
        return


class Secretive(Source[Digest]):
    password: str = "secret:db_password"
    breaks: bool = False

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        if self.breaks:
            raise ValueError(f"no login with {self.password}")
        return [Once(hashlib.sha256(self.password.encode()).hexdigest())]


flow = Flow("secretive")
flow.source("asks", Secretive(), out=Digest).sink("digests", Table("digests"))
