"""What the stock demo offers its launcher: sample, symbols, options, and the table at the end."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import ConfigError, SourceError
from geartrain.flow.loading import load_flow
from geartrain_client.terminal.screen import table_of
from geartrain_cloud.cli.demos import Demo, load_demo
from geartrain_examples.stocks import flow
from geartrain_examples.stocks.data import symbols_of, write_sample
from geartrain_examples.stocks.demo import DEMO, StockOptions


def test_demo_is_found_by_its_entry_point_and_is_all_that_is_asked() -> None:
    found: Demo = load_demo("stocks")
    typed: Demo = DEMO  # checked by mypy
    assert found is typed
    with pytest.raises(ConfigError, match="the demo 'weather' is not installed; there are: stocks, traffic"):
        load_demo("weather")


def test_sample_holds_the_adjusted_prices(tmp_path: Path) -> None:
    path = tmp_path / "input.csv"
    write_sample(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["symbol", "date", "price"]
    assert len(rows) == 1 + 12_154
    assert [row for row in rows if row[1] == "2005-02-28" and row[0] == "AAPL"] != []
    assert symbols_of(path) == ["AAPL", "FB", "GOOG", "IBM", "MSFT"]
    # Apple's price was cut in two by a split on that day: the adjusted one shows no crash.
    apple = {row[1]: float(row[2]) for row in rows if row[0] == "AAPL"}
    assert apple["2005-02-28"] / apple["2005-02-25"] > 0.9


def test_sample_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"the sample prices cannot be written to .*: No such file"):
        write_sample(tmp_path / "nowhere" / "input.csv")


def test_flow_reads_like_its_sentence() -> None:
    text = Path(flow.__file__).read_text(encoding="utf-8")
    assert text.count("\n") < 80
    assert not [word for word in ("edge", "cloud", "mqtt", "spark") if word in text.lower()]


def test_settings_fit_the_flow(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("symbol,date,price\nB,2020-01-01,1\nA,2020-01-01,1\nC,soon,1\n,2020-01-01,1\n")
    options = StockOptions(input=path, period="month")
    graph, setup = load_flow(DEMO.flow(options)).graph(), DEMO.set_up(tmp_path / "state", options, 2)
    assert setup.parts == {"device-1": ["A", "C"], "device-2": ["B"]}
    assert setup.steps == {"drawdown": {"period": "month"}}
    for device in (*setup.devices.values(), setup.whole):
        graph.with_options({**setup.steps, **device})
    assert [one["quotes"]["others"] for one in setup.devices.values()] == [True, False]
    assert setup.whole == {"quotes": {"path": str(path), "select": [], "others": True}}


def test_a_file_that_is_not_utf8_is_said_at_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes("symbol,date,price\nB,2020-01-01,1\nÄ,2020-01-01,1\nÖ,2020-01-01,1\n".encode("latin-1"))
    setup = DEMO.set_up(tmp_path / "state", StockOptions(input=path), 2)
    (sentence,) = setup.said
    assert sentence == (
        f"file {path}, line 3: it is not UTF-8 text, at its byte 1 (0xc4); such rows are dead letters: "
        "write it as UTF-8"
    )
    assert setup.parts == {"device-1": ["B"]}


def test_summary_has_a_line_a_stock() -> None:
    day = "2020-01-02T00:00:00Z"
    row = {"symbol": "B", "drawdown": 2.5, "peak": 10.0, "peak_time": day, "trough": 7.5, "trough_time": day}
    flat = {**row, "symbol": "A\x1b[31m", "drawdown": 0.0}

    def rows(table: str, where: Any) -> list[dict[str, Any]]:
        assert table == "drawdown_all"
        return [row | {"recovered_time": "2020-01-03T09:30:00Z"}, flat | {"recovered_time": None}]

    title, heads, lines = DEMO.summary(rows)
    assert title == "Worst drawdown of each stock"
    assert len(heads) == 6
    assert lines == [
        ["A\x1b[31m", "none", "", "", "", ""],
        ["B", "2.50", "25.0", "10.00, 2020-01-02", "7.50, 2020-01-02", "2020-01-03T09:30:00Z"],
    ]
    shown = [str(cell) for cell in table_of(title, heads, lines).columns[0].cells]
    assert shown == ["A\\x1b[31m", "B"]
