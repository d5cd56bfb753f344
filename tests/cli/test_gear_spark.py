"""`gear` about Spark: what runs a step there, and queries that dead letters have stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geartrain_client.cli import main
from geartrain_cloud.spark.breaker import Breaker
from geartrain_cloud.spark.errors import BreakerError


def test_a_stopped_query_is_named_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "driver" / "checkpoints" / "keyed"
    folder.mkdir(parents=True)
    with pytest.raises(BreakerError):
        Breaker("keyed", folder).count(400, 400, "why")
    assert main(["deadletters", "resume", "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == "may go on: keyed; start the driver again"
    assert main(["deadletters", "resume", "--state", str(tmp_path / "driver")]) == 0
    assert capsys.readouterr().out.strip() == "no query was stopped so"
    assert list(folder.iterdir()) == []


def test_a_folder_without_checkpoints_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deadletters", "resume", "--state", str(tmp_path)]) != 0
    assert "there are no checkpoints in" in capsys.readouterr().err


def test_a_plan_says_what_runs_each_step_in_spark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "geartrain_examples.stocks.flow:flow", "--cut", "cloud", "--json"]) == 0
    steps = {
        step["id"]: (step["stage"], step["engine"]) for step in json.loads(capsys.readouterr().out)["steps"]
    }
    assert steps["quotes"] == (None, None)
    assert steps["drawdown"] == (1, "embedded")
    assert main(["plan", "geartrain_examples.stocks.flow:flow", "--cut", "cloud"]) == 0
    assert "stage 1, embedded" in capsys.readouterr().out
