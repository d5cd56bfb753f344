"""A broker is given ids that no two clients share, and that a restart does not change."""

from __future__ import annotations

import string
from collections.abc import Sequence

from geartrain import Flow, Source, Table
from geartrain.concurrency.client_id import ID_BYTES, ROLE_CHARS_MAX, client_id
from geartrain.concurrency.takeover import IN_ROW, SHORT_S, Takeovers
from geartrain.runtime.local import LocalRun
from geartrain.runtime.opened import open_sources
from geartrain.source import Batch, Split
from geartrain.testing import SeededRandomness


class Client:
    """A split that is told its id."""

    out_of_orderness_us = 0

    def __init__(self, name: str, ids: list[str]) -> None:
        self.name, self._ids = name, ids

    def name_client(self, client_id: str) -> None:
        self._ids.append(client_id)

    async def read(self, position: int, limit: int) -> Batch:
        return Batch([], [], [], position, ended=True)

    async def close(self) -> None:
        return None


class Clients(Source[float]):
    """As many splits as it is told, each with a connection of its own."""

    splits: int = 1

    def open(self, device: str, step: str, out: type[float]) -> Sequence[Split]:
        return [Client(f"{device}/{step}/{number}", IDS) for number in range(self.splits)]


IDS: list[str] = []


def named(app: str, device: str, life: str, steps: Sequence[str] = ("s",), splits: int = 1) -> list[str]:
    flow = Flow(app)
    for step in steps:
        flow.source(step, Clients(splits=splits), out=float).sink(f"{step}_out", Table(step))
    IDS.clear()
    open_sources(flow.graph(), device, None, life)
    return list(IDS)


def test_no_two_clients_share_an_id_and_a_restart_changes_none() -> None:
    first = named("prod", "here", "spool-1", ("s", "t"), 2)
    assert named("prod", "here", "spool-1", ("s", "t"), 2) == first
    others = [
        *named("test", "here", "spool-1", ("s", "t"), 2),
        *named("prod", "there", "spool-1", ("s", "t"), 2),
        *named("prod", "here", "spool-2", ("s", "t"), 2),
    ]
    assert len({*first, *others}) == len(first) + len(others) == 16


def test_two_runs_on_one_machine_have_ids_of_their_own() -> None:
    flow = Flow("prod")
    flow.source("s", Clients(), out=float).sink("out", Table("out"))
    IDS.clear()
    for seed in (1, 2):
        LocalRun(flow.graph(), randomness=SeededRandomness(seed))
    assert len(set(IDS)) == len(IDS) == 2


def test_each_broker_has_to_accept_an_id() -> None:
    found = client_id("x" * 40, "a" * 1_000, "\udcff", "straße/7")
    assert len(found) == ROLE_CHARS_MAX + 2 * ID_BYTES == 23
    assert set(found) <= set(string.ascii_letters + string.digits)
    assert client_id("s", "a", "bc") != client_id("s", "ab", "c")


def test_only_short_sessions_in_a_row_are_a_takeover() -> None:
    sessions = Takeovers()
    assert [sessions.ended(1.0) for _ in range(IN_ROW + 1)] == [False] * (IN_ROW - 1) + [True, True]
    assert sessions.count == 2
    for between in (None, SHORT_S):
        others = Takeovers()
        assert not any(others.ended(one) for one in (1.0, 1.0, between, 1.0, 1.0))
