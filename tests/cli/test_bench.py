"""`gear bench`: a mistake is one sentence before anything is started, and figures are what was counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain_client.cli import main
from geartrain_client.terminal.screen import results
from geartrain_cloud.cli.bench_result import BenchResult, as_json, as_tables, remarks

FLOW = "geartrain_examples.stocks.flow:flow"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device-set", "d3:quotes.path=a.csv"], "--device-set d3: there is no such device; there are d1"),
        (["--device-set", "quotes.path=a.csv"], "write DEVICE:STEP.OPTION=VALUE"),
        (["--cut", "drawdwn"], "drawdwn"),
        (["--for", "1"], "--for 1: write a number above 0 with its unit"),
        (["--set", "quotes.pth=a.csv"], "pth"),
    ],
)
def test_a_mistake_is_told_before_a_platform_comes_up(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    assert main(["bench", FLOW, "--state", str(state), *options]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert not state.exists()


def test_a_folder_that_holds_something_is_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("1")
    assert main(["bench", FLOW, "--set", "quotes.path=a.csv", "--state", str(tmp_path)]) == 2
    assert "holds something already: name a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def result(number: int, seconds: float, records: int = 40_000) -> BenchResult:
    return BenchResult(
        cut="cloud",
        number=number,
        records=records,
        log_rows=records,
        seconds=seconds,
        first_record_s=1.5,
        first_row_s=None if not records else 2.5,
        cpu_s={"spark": 2.0, "broker": 0.001},
    )


def test_the_figures_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [result(1, 8.0), result(2, 4.0)]
    told = as_json(runs)["runs"]
    assert isinstance(told, list)
    assert [run["records_per_s"] for run in told] == [5_000.0, 10_000.0]
    for table in as_tables(runs):
        results().print(table)
    shown = capsys.readouterr().out
    assert "10,000" in shown
    assert "2.0 s, 50.0 us" in shown
    assert "broker" not in shown
    short, warm = remarks(runs)
    assert "less than 5 s" in short
    assert "before Spark's code is warm" in warm
    assert remarks([result(1, 8.0)]) == []


def test_a_run_without_records_has_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert result(1, 0.0, records=0).records_per_s == 0.0
    for table in as_tables([result(1, 0.0, records=0)]):
        results().print(table)
    assert "0" in capsys.readouterr().out
