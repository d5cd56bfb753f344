"""The small form of the fault suite: real agents, ingest and broker, and what became of each record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.catalogue import SCENARIOS
from tests.process.suite import play, recovered

SMALL = [name for name, one in SCENARIOS.items() if one.small]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_what_is_promised_holds(name: str, tmp_path: Path) -> None:
    outcome = play(SCENARIOS[name], tmp_path / "world", seed=1, small=True)
    print(f"{name}: {outcome.account}, recovered in {recovered(outcome)} s")
    assert outcome.held, outcome.verdict
    assert outcome.account.accepted


def test_all_faults_have_a_scenario() -> None:
    assert len(SCENARIOS) >= 40
    assert len(SMALL) >= 10
