"""An uplink with a bound sends no more than its rate allows, and loses nothing by it."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec.structs import replace

from geartrain.wire.envelope import Control
from geartrain_edge.uplink.pace import Pace
from tests.edge.agents import QUICK, SETTINGS, agent_of, run
from tests.edge.flows import expected, items, plan_of
from tests.edge.network import MemoryNet, NaiveIngest

BYTES_PER_S = 20_000


class Timed(NaiveIngest):
    """It notes when each publish came, and how large it was."""

    def take(self, payload: bytes) -> list[Control]:
        came.append((time.monotonic(), len(payload)))
        return super().take(payload)


came: list[tuple[float, int]] = []


def test_a_batch_waits_until_the_one_before_is_paid_for() -> None:
    pace = Pace(100)
    assert pace.wait_s(5.0) == 0
    pace.sent(50, 5.0)
    assert (pace.wait_s(5.0), pace.wait_s(5.25), pace.wait_s(7.0)) == (0.5, 0.25, 0)
    pace.sent(10, 5.25)  # a resend that did not wait is paid for as well
    assert round(pace.wait_s(5.25), 6) == 0.35
    pace.sent(100, 9.0)  # what was saved up while nothing was sent is gone
    assert pace.wait_s(9.0) == 1
    free = Pace(0)
    free.sent(1 << 40, 1.0)
    assert free.wait_s(1.0) == 0


def test_an_agent_sends_at_its_rate_and_all_arrives(tmp_path: Path) -> None:
    came.clear()
    plan = plan_of(items(200))
    ingest, began_s = Timed(plan), time.monotonic()
    slow = replace(QUICK, resend_ms=60_000, resend_ms_max=60_000, probe_ms_min=60_000)
    settings = replace(SETTINGS, uplink=replace(slow, bytes_per_s_max=BYTES_PER_S))
    assert run(agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest), settings).run())
    assert ingest.sorted_rows() == expected(plan)
    paid = [size for _, size in came[2:-1]]  # behind the question and the schemas, which are not bounded
    assert len(paid) > 10
    assert came[-1][0] - began_s > sum(paid) / BYTES_PER_S
