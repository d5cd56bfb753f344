"""The small form of the fault suite and of the recoveries: real programs, and what became of each record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.process.catalogue import SCENARIOS
from tests.process.recovery import RECOVERIES, measure
from tests.process.suite import play, recovered
from tests.process.timings import Runs, table

IN_STREAMS = ("agent killed", "ingest killed", "broker back", "in a stream")
"""Words of the recoveries that the small form has; the long one has all."""
SMALL = [name for name, one in SCENARIOS.items() if one.small]


def recoveries() -> list[Any]:
    """The names of those without Spark; some are of the long form."""
    every = [name for name, one in RECOVERIES.items() if not one.spark]
    return [
        name if any(word in name for word in IN_STREAMS) else pytest.param(name, marks=pytest.mark.long)
        for name in every
    ]


@pytest.mark.slow
@pytest.mark.mosquitto
@pytest.mark.parametrize("name", SMALL)
def test_what_is_promised_holds(name: str, tmp_path: Path) -> None:
    outcome = play(SCENARIOS[name], tmp_path / "world", seed=1, small=True)
    print(f"{name}: {outcome.account}, recovered in {recovered(outcome)} s")
    assert outcome.held, outcome.verdict
    assert outcome.account.accepted


@pytest.mark.slow
@pytest.mark.mosquitto
@pytest.mark.parametrize("name", recoveries())
def test_nothing_is_lost_or_doubled_by_a_recovery(name: str, tmp_path: Path) -> None:
    """Its time is printed, and not judged."""
    figure, *others = measure(RECOVERIES[name], tmp_path / "world", Runs(1, small=True))
    print(table([figure, *others]))
    assert figure.held, figure.verdict
    assert (figure.account.lost, figure.account.duplicated) == (0, 0)
    assert figure.account.accepted
    assert len(figure.seconds) == 1


def test_all_faults_have_a_scenario() -> None:
    assert len(SCENARIOS) >= 40
    assert len(SMALL) >= 10
