"""The agent's file: every mistake is one sentence that names the file and the key."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from geartrain.errors import ConfigError
from geartrain.operators.process import Process
from geartrain.operators.source import SourceOperator
from geartrain.revision import code_of, revision_of
from geartrain.runtime.opened import open_sources
from geartrain_edge.agent.config import AgentConfig, load, read_config
from geartrain_edge.settings import AgentSettings, UplinkSettings

GOOD = """
device = "device-1"
flow = "geartrain_examples.stocks.flow:flow"
state = "state/device-1"
"""


def config(tmp_path: Path, text: str) -> AgentConfig:
    (tmp_path / "agent.toml").write_text(text)
    return read_config(str(tmp_path / "agent.toml"))


def mistake(tmp_path: Path, text: str) -> str:
    """What is said of the file, without its folder."""
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, text).plan()
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}/agent.toml")
    assert "\n" not in said
    return said.removeprefix(f"{tmp_path}/")


def test_a_short_file_gets_the_defaults(tmp_path: Path) -> None:
    found = config(tmp_path, GOOD)
    assert found.settings == AgentSettings("device-1", policy=None)
    assert (found.broker.host, found.broker.port, found.cut) == ("127.0.0.1", 1883, "auto")
    assert found.spool_file == tmp_path / "state/device-1/spool.sqlite"
    assert found.status_file == tmp_path / "state/device-1/status.json"


def test_paths_of_a_file_are_relative_to_its_folder(tmp_path: Path) -> None:
    def source(text: str) -> Any:
        operator = config(tmp_path, text).plan().graph["quotes"].operator
        assert isinstance(operator, SourceOperator)
        return operator.source

    text = GOOD + '[sources.quotes]\npath = "data/prices.csv"\nspeed = "max"\n'
    assert source(text).path == str(tmp_path / "data/prices.csv")
    assert source(text).speed == "max"
    assert source(text.replace("data/", "/data/")).path == "/data/prices.csv"
    unreadable = '[broker]\naddress = "h:1"\ntls = true\nca = "no/ca.pem"\n'
    assert f"broker.ca: {tmp_path}/no/ca.pem" in mistake(tmp_path, GOOD + unreadable)


def test_every_setting_is_read(tmp_path: Path) -> None:
    text = (
        GOOD
        + """
broker = "[::1]:18830"
cut = ["quotes_by_symbol"]
[spool]
bytes_max = 1000000
free_floor = "20 MB"
[commit]
records_max = 10
interval_ms = 20
linger_ms = 0
durability = "1s"
claim_ms = 14
idle_ms_max = 13
[uplink]
window = 3
window_bytes = 4
resend_ms = 5
resend_ms_max = 6
backoff_ms = 7
backoff_ms_max = 8
silence_ms = 9
refused_ms_max = 10
denied_ms_max = 14
probe_ms_min = 11
trim_ms = 12
bytes_per_s_max = 13
[steps.drawdown]
period = "month"
[sources.quotes]
path = "prices.csv"
select = ["AAPL", "GT"]
others = true
"""
    )
    found = config(tmp_path, text)
    uplink = replace(UplinkSettings(3, 4, 5, 6, 7, 8, 9, 3, 3_600, 10, 14, 11, 12), bytes_per_s_max=13)
    assert found.settings == AgentSettings(
        *("device-1", 1_000_000, 10, 20, 0, 1_000),
        idle_ms_max=13,
        policy=None,
        claim_ms=14,
        free_floor_bytes=20_000_000,
        uplink=uplink,
    )
    assert (found.broker.host, found.broker.port, found.cut) == ("::1", 18830, ("quotes_by_symbol",))
    plan = found.plan()
    assert plan.edge == ("quotes",)  # the key is found in the cloud, where its reader is
    drawdown, quotes = plan.graph["drawdown"].operator, plan.graph["quotes"].operator
    assert isinstance(drawdown, Process)
    assert isinstance(quotes, SourceOperator)
    assert vars(drawdown.task)["period"] == "month"
    options, prices = vars(quotes.source), str(tmp_path / "prices.csv")  # beside the file that names it
    assert (options["path"], options["select"], options["others"]) == (prices, ["AAPL", "GT"], True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('flow = "a:b"\nstate = "s"', "agent.toml: device is missing"),
        (GOOD + "broken", "agent.toml is not a TOML file: "),
        (GOOD + "speed = 3", "agent.toml: speed is not a key of this file"),
        (GOOD + "[commit]\nrecords = 3", "agent.toml: commit.records is not a key of this file"),
        (GOOD + '[commit]\nrecords_max = "3"', "agent.toml: commit.records_max: expected `int`, got `str`"),
        (
            GOOD + '[commit]\ndurability = "fast"',
            "agent.toml: commit.durability: 'fast' is not a time, such as 1s",
        ),
        (GOOD + '[commit]\ndurability = "2min"', "agent.toml: commit.durability: 2min is too long: 1min is"),
        (
            GOOD + '[spool]\nfree_floor = "50"',
            "agent.toml: spool.free_floor: '50' is not a size, such as 50MB",
        ),
        (GOOD + "[commit]\nrecords_max = 0", "agent.toml: commit.records_max: expected `int` >= 1"),
        (GOOD + "[commit]\nrecords_max = 99999", "agent.toml: commit.records_max: expected `int` <= 10000"),
        (GOOD + "[spool]\nbytes_max = -1", "agent.toml: spool.bytes_max: expected `int` >= 1"),
        (GOOD + "[uplink]\nresend_ms = 1000000", "uplink.resend_ms is larger than uplink.resend_ms_max"),
        (GOOD + 'broker = "nowhere"', "broker: 'nowhere' is not HOST:PORT, such as 127.0.0.1:1883"),
        (GOOD + 'broker = "h:99999"', "agent.toml: broker: 'h:99999' is not HOST:PORT"),
        (GOOD.replace("device-1", "a/b", 1), "agent.toml: device 'a/b': use a name of 1 to 64 letters"),
        (GOOD.replace("state/device-1", ""), "agent.toml: state: name the folder"),
        (GOOD + "sources = 3", "agent.toml: sources: expected `object`, got `int`"),
        (
            GOOD.replace("stocks.flow:flow", "stocks.flow"),
            "agent.toml: flow: flow 'geartrain_examples.stocks.flow'",
        ),
        (GOOD.replace("flow:flow", "flow:other"), "has no 'other'"),
        (GOOD.replace("stocks.flow:flow", "nothing:flow"), "there is no module 'geartrain_examples.nothing'"),
        (GOOD + '[steps.nothing]\na = "1"', "[steps]: flow stocks has no step 'nothing'; its steps:"),
        (
            GOOD + '[steps.drawdown]\nyear = "1"',
            "agent.toml: [steps] drawdown: there is no option 'year'; options of Drawdown: period",
        ),
        (GOOD + '[steps.quotes_by_symbol]\nyear = "1"', "this step has no options"),
        (GOOD + '[steps.quotes]\npath = "1"', "agent.toml: [steps.quotes]: write [sources.quotes] instead"),
        (
            GOOD + '[sources.drawdown]\nperiod = "year"',
            "agent.toml: [sources.drawdown]: write [steps.drawdown] instead",
        ),
        (
            GOOD + "[sources.quotes]\nothers = 3",
            "agent.toml: [sources] quotes.others = 3: expected bool, got int",
        ),
        (
            GOOD + '[sources.quotes]\nselect = "AAPL"',
            "agent.toml: [sources] quotes.select = 'AAPL': a list is meant: write [\"AAPL\"]",
        ),
        (
            GOOD + '[sources.quotes]\nout_of_orderness_ms = "5"',
            "agent.toml: [sources] quotes.out_of_orderness_ms = '5': expected int, got str",
        ),
        (GOOD + 'cut = "nothing"', "agent.toml: cut: flow stocks has no step 'nothing'"),
    ],
)
def test_a_mistake_names_the_file_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    assert said in mistake(tmp_path, text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        read_config(str(tmp_path / "none.toml"))


def test_an_instance_is_the_name_under_which_its_flow_runs(tmp_path: Path) -> None:
    assert config(tmp_path, GOOD).plan().graph.name == "stocks"
    assert config(tmp_path, GOOD + 'instance = "prices.2"\n').plan().graph.name == "prices.2"
    assert mistake(tmp_path, GOOD + 'instance = "prices"\n').startswith(
        "agent.toml: instance: instance 'prices': write the app's name, a dot and a number"
    )


def test_a_device_may_lack_a_source(tmp_path: Path) -> None:
    traffic = GOOD.replace("stocks.flow", "traffic.flow")
    tables = "[sources.loops]\nenabled = false\n[sources.checkpoints]\nenabled = true\n"
    plan = config(tmp_path, traffic + tables).plan()
    has = {s.id: s.operator.enabled for s in plan.graph.sources() if isinstance(s.operator, SourceOperator)}
    assert has == {"passes": True, "loops": False, "checkpoints": True}
    whole = config(tmp_path, traffic).plan()
    assert [channel.id for channel in plan.channels] == [channel.id for channel in whole.channels]
    assert revision_of("", plan).hash == revision_of("", whole).hash  # of the flow, not of the device
    said = mistake(tmp_path, traffic + '[sources.loops]\nenabled = "no"\n')
    assert said == "agent.toml: [sources] loops.enabled = 'no': write true or false"


def test_a_label_says_which_sources_a_device_has_and_an_option_stands_above_it(tmp_path: Path) -> None:
    (tmp_path / "selected.py").write_text(
        "from geartrain import Flow, Table\n"
        "from geartrain.testing import TestingSource\n"
        "flow = Flow('selected')\n"
        "for name in ('gps', 'heat'):\n"
        "    devices = 'kind=truck' if name == 'gps' else 'all'\n"
        "    source = TestingSource(items=[(1, 1)])\n"
        "    flow.source(name, source, out=int, devices=devices).sink(name + '_out', Table(name))\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        text = 'device = "device-1"\nstate = "state"\nflow = "selected:flow"\n'
        for more, has in (
            ("", ["heat"]),
            ('[labels]\nkind = "truck"\n', ["gps", "heat"]),
            ('[labels]\nkind = "tank"\n', ["heat"]),
            ("[sources.gps]\nenabled = true\n", ["gps", "heat"]),
            ('[labels]\nkind = "truck"\n[sources.gps]\nenabled = false\n', ["heat"]),
        ):
            graph = config(tmp_path, text + more).plan().graph
            assert [one.step for one in open_sources(graph, "device-1")] == has
    finally:
        sys.path.remove(str(tmp_path))
    assert mistake(tmp_path, GOOD + '[labels]\n"a b" = "c"\n').startswith(
        "agent.toml: labels: label 'a b': use"
    )


def test_other_code_than_was_submitted_is_refused_unless_a_person_names_it(tmp_path: Path) -> None:
    ours = code_of("geartrain_examples.stocks.flow:flow").hash
    for more in (f'code = "{ours}"\n', f'code = "{"0" * 64}"\nmended = "{ours[:12]}"\n'):
        found = config(tmp_path, GOOD + more)
        assert found.revision(found.plan()).code.hash == ours
    other = config(tmp_path, GOOD + f'code = "{"0" * 64}"\n')
    with pytest.raises(ConfigError) as caught:
        other.revision(other.plan())
    assert (
        f"flow: package geartrain_examples of geartrain_examples.stocks.flow:flow is installed here with the "
        f"hash {ours[:12]}, and was submitted with 000000000000: install what was submitted"
    ) in str(caught.value)


def test_two_instances_of_one_flow_stand_side_by_side_on_a_device(tmp_path: Path) -> None:
    flow = 'flow = "geartrain_examples.stocks.flow:flow"\n'
    several = f'[[flows]]\n{flow}instance = "prices.1"\n[[flows]]\n{flow}instance = "prices.2"\n'
    path = tmp_path / "agent.toml"
    path.write_text(f'device = "device-1"\nstate = "state"\n{several}')
    found = {plan.graph.name: one.spool_file for one, plan in load(str(path))}
    assert found == {name: tmp_path / "state" / name / "spool.sqlite" for name in ("prices.1", "prices.2")}
    path.write_text(f'device = "device-1"\nstate = "state"\ninstance = "prices.1"\n{several}')
    with pytest.raises(ConfigError, match="instance: there are"):
        load(str(path))
