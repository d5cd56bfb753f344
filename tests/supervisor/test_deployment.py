"""The files of a deployment are what each process reads, and the progress is what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import ConfigError, FlowError
from geartrain_cloud.broker import BrokerChoice
from geartrain_cloud.ingest.config import read_config as read_ingest_config
from geartrain_cloud.spark.config import read_config as read_driver_config
from geartrain_cloud.supervisor.deployment import Deployment, Places, read_status, write_deployment
from geartrain_cloud.supervisor.progress import Accounts, Hops, read_accounts, read_hops
from geartrain_devices.csv_replay import CsvReplay
from geartrain_edge.agent.config import read_config as read_agent_config
from geartrain_examples.demo import deal

BROKER = BrokerChoice("external", "127.0.0.1", 18_830)
DEVICES = ["device-1", "device-2"]


def deployment(cut: str = "cloud", period: str = "month") -> Deployment:
    devices = {
        name: {"quotes": {"path": "prices.csv", "select": parts, "others": index == 0, "speed": "86400"}}
        for index, (name, parts) in enumerate(deal(["A", "B", "C"], 2).items())
    }
    steps = {"drawdown": {"period": period}}
    return Deployment(
        "geartrain_examples.stocks.flow:flow", cut, steps, devices, "local[1]", driver={"rows_max": 7}
    )


def test_all_processes_are_given_one_flow_cut_and_options(tmp_path: Path) -> None:
    wanted = deployment()
    specs = write_deployment(wanted, BROKER, Places(tmp_path))
    assert [spec.name for spec in specs] == ["ingest", "driver", "agent device-1", "agent device-2"]
    plan = wanted.plan()

    ingest = read_ingest_config(tmp_path / "ingest.toml")
    assert (ingest.log, ingest.broker.port) == (tmp_path / "log", 18_830)
    assert ingest.flows["stocks"].devices == ("device-1", "device-2")
    assert set(ingest.flows["stocks"].channels) == {channel.id for channel in plan.channels}
    assert dict(ingest.flows["stocks"].partitioned_by) == {
        channel.id: "symbol" for channel in plan.channels if not channel.id.startswith("_")
    }

    driver = read_driver_config(tmp_path / "driver.toml")
    assert (driver.log, driver.tables) == (ingest.log, tmp_path / "tables.sqlite")
    assert (driver.master, driver.rows_max) == ("local[1]", 7)
    assert driver.plan().graph.name == plan.graph.name
    assert driver.plan().channels == plan.channels

    agents = [read_agent_config(str(tmp_path / "agents" / device / "agent.toml")) for device in DEVICES]
    assert [agent.sources["quotes"]["select"] for agent in agents] == [["A", "C"], ["B"]]
    assert [agent.sources["quotes"]["others"] for agent in agents] == [True, False]
    for agent in agents:
        assert agent.plan().channels == plan.channels
        assert agent.steps == driver.steps == {"drawdown": {"period": "month"}}


def test_nobody_is_excluded_unless_a_source_is_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_deployment(deployment(), BROKER, Places(tmp_path))
    assert read_ingest_config(tmp_path / "ingest.toml").flows["stocks"].bounded
    monkeypatch.setattr(CsvReplay, "bounded", False)
    write_deployment(deployment(), BROKER, Places(tmp_path))
    assert not read_ingest_config(tmp_path / "ingest.toml").flows["stocks"].bounded


def test_files_are_private(tmp_path: Path) -> None:
    write_deployment(deployment(), BROKER, Places(tmp_path / "state"))
    for path in (tmp_path / "state").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_flow_that_cannot_be_cut_so_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match="flow stocks has no step 'nothing'"):
        write_deployment(deployment(cut="nothing"), BROKER, Places(tmp_path))
    with pytest.raises(ConfigError, match=r"drawdown\.period = 'week'"):
        write_deployment(deployment(period="week"), BROKER, Places(tmp_path))


def put(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_statuses(places: Places, *, logged: int = 30, processed: int = 30) -> None:
    for device, rows in (("device-1", 20), ("device-2", 10)):
        counters = {"rows.quotes": rows, "rows._dead_letters": 1, "resends": 5}
        status = {"records_read": rows, "spooled_seq": 3, "acked_seq": 2, "counters": counters}
        put(places.agent_status(device), status)
    channels = {
        "quotes": {"rows": logged},
        "_dead_letters": {"rows": 2},
    }
    sources = {"quotes": {"missing": ["device-2"]}, "desk": {"missing": []}}
    put(places.ingest_status, {"flows": {"stocks": {"channels": channels, "sources": sources}}})
    queries = {
        "stateless": {"log_rows": processed + 2, "channels": ["quotes", "_dead_letters"]},
        "stateful": {"log_rows": processed, "channels": ["quotes"]},
    }
    put(places.driver_status, {"state": "running", "queries": queries})


def test_progress_is_the_sum_of_what_is_said(tmp_path: Path) -> None:
    write_statuses(Places(tmp_path), processed=15)
    assert read_hops(Places(tmp_path), "stocks", DEVICES) == Hops(
        read=30,
        spooled=32,
        batches=6,
        acked=4,
        logged=32,
        processed=32,
        to_process=62,
        dead_letters=2,
        waiting_for=("device-2",),
        driver="running",
    )


def test_nothing_said_is_no_progress(tmp_path: Path) -> None:
    assert read_hops(Places(tmp_path), "stocks", DEVICES) == Hops()
    put(tmp_path / "x", [1])
    assert read_status(tmp_path / "x") == {}


def test_accounts_show_what_is_lost_and_what_is_doubled(tmp_path: Path) -> None:
    write_statuses(Places(tmp_path))
    assert all(one.is_even for one in read_accounts(Places(tmp_path), "stocks", DEVICES))
    write_statuses(Places(tmp_path), logged=29, processed=31)
    uneven = [one for one in read_accounts(Places(tmp_path), "stocks", DEVICES) if not one.is_even]
    assert uneven == [
        Accounts("channel quotes", 30, 29),
        Accounts("query stateful", 29, 31),
        Accounts("query stateless", 31, 33),
    ]


def test_parts_are_dealt_in_turn_and_no_device_is_left_without() -> None:
    assert deal(["a", "b", "c"], 5) == {"device-1": ["a"], "device-2": ["b"], "device-3": ["c"]}
    assert deal(["a", "b", "c", "d", "e"], 2) == {"device-1": ["a", "c", "e"], "device-2": ["b", "d"]}
