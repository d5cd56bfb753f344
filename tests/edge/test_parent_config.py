"""What a device's file adds to the configuration of each app's agent."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from geartrain.control.states import App
from geartrain_edge.parent.config import DeviceConfig, read_device

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
