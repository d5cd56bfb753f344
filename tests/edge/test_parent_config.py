"""What a device's file adds to the configuration of each app's agent."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from typing import Any

from geartrain.control.states import WAITS, App
from geartrain.operators.source import SourceOperator
from geartrain_edge.agent.config import read_config
from geartrain_edge.parent.config import DeviceConfig, read_device
from geartrain_examples.stocks.drawdown import Quote

FLOW = "geartrain_examples.stocks.flow:flow"


def device(tmp_path: Path, text: str) -> DeviceConfig:
    """The file of a device with this text below its head."""
    file = tmp_path / "device.toml"
    file.write_text(f'device = "d1"\nstate = "state"\n{text}')
    file.chmod(0o600)
    return read_device(str(file))


def agent(config: DeviceConfig, instance: str) -> dict[str, Any]:
    """The configuration of an app's agent."""
    return tomllib.loads(config.agent_toml(App(instance, FLOW), config.state / instance))


def test_an_app_gives_way_only_where_another_is_urgent(tmp_path: Path) -> None:
    text = "[commit]\ninterval_ms = 50\n[apps.alarms]\nurgent = true\n[apps.slow.uplink]\nwindow = 3\n"
    config = device(tmp_path, text)
    urgent, plain, slow = (agent(config, name) for name in ("alarms.1", "bulk.7", "slow.1"))
    assert urgent["urgent"] is True
    assert (urgent["commit"], "uplink" in urgent) == ({"interval_ms": 50}, False)
    assert plain["urgent"] is False
    assert (plain["commit"], plain["uplink"]) == ({"records_max": 1_000, "interval_ms": 50}, {"window": 1})
    assert slow["uplink"] == {"window": 3}  # the file stands above
    assert {one["claims"] for one in (urgent, plain, slow)} == {str(tmp_path / "state" / "urgent.lock")}
    assert {one["shared"] for one in (urgent, plain, slow)} == {str(tmp_path / "state" / "shared")}
    alone = agent(device(tmp_path, "[commit]\ninterval_ms = 50\n"), "bulk.7")
    assert (alone["commit"], "uplink" in alone) == ({"interval_ms": 50}, False)


def test_the_cut_of_a_device_stands_above_that_of_the_app(tmp_path: Path) -> None:
    config = device(tmp_path, "")
    plain, own = (
        tomllib.loads(config.agent_toml(App("bulk.7", FLOW, cut="cloud", own_cut=cut), config.state))
        for cut in ("", "drawdown,highs")
    )
    assert (plain["cut"], "base_cut" in plain) == ("cloud", False)
    assert (own["cut"], own["base_cut"]) == ("drawdown,highs", "cloud")


def test_a_device_of_the_platforms_machine_runs_the_bundles_that_are_unpacked_there(tmp_path: Path) -> None:
    code, other = "c" * 64, "d" * 64
    (tmp_path / "unpacked" / code).mkdir(parents=True)
    config = device(tmp_path, '[bundles]\nfolder = "unpacked"\n')
    signed, unsigned, elsewhere = (
        tomllib.loads(one.agent_toml(App("bulk.7", FLOW, code=code), one.state))
        for one, code in ((config, code), (config, other), (device(tmp_path, ""), code))
    )
    assert signed["bundle"] == str(tmp_path / "unpacked" / code)
    assert "bundle" not in unsigned
    assert "bundle" not in elsewhere


def test_a_device_reads_history_from_its_own_files_before_what_its_source_gives(tmp_path: Path) -> None:
    past, live = tmp_path / "past.csv", tmp_path / "live.csv"
    for path, day in ((past, 1), (live, 2)):
        path.write_text(f"symbol,day,date,price\nA,{day},2026-01-0{day},{day}.5\n", encoding="utf-8")
    text = f'[apps.stocks.sources.quotes.history]\nfiles = ["{past}"]\ntime = "date"\n'
    config, file = device(tmp_path, text), tmp_path / "agent.toml"
    options = json.dumps({"sources": {"quotes": {"path": str(live), "speed": "max"}}})
    file.write_text(config.agent_toml(App("stocks.1", FLOW, options=options), tmp_path / "own"))
    (source,) = read_config(str(file)).plan().graph.sources()
    assert isinstance(source.operator, SourceOperator)
    (split,) = source.operator.source.open("d1", "quotes", Quote)

    async def read() -> list[float]:
        prices, position, ended = list[float](), 0, False
        while not ended:
            batch = await split.read(position, 10)
            prices += [one.price for one in batch.values]
            position, ended = batch.position, batch.ended
        await split.close()
        return prices

    assert asyncio.run(read()) == [1.5, 2.5]


def test_a_device_says_whether_its_file_has_sources_wait(tmp_path: Path) -> None:
    assert device(tmp_path, '[spool]\npolicy = "block"\n').waits == (WAITS,)
    assert device(tmp_path, '[spool]\npolicy = "drop_oldest"\n').waits == ()
    assert device(tmp_path, "").waits == ()
