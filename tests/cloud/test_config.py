"""The configuration of ingest: what is read, and that each mistake names the file and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain.errors import ConfigError
from geartrain_cloud.ingest.config import IngestConfig, read_config
from geartrain_cloud.log.retention import Retention

GOOD = """
log = "data/log"
broker = "broker.example:8883"
group_commit_ms = 50

[flows.stocks]
devices = ["device-1", "device-2"]

[flows.stocks.sources]
ticks = ["device-1"]
desk = "all"

[flows.stocks.channels]
quotes = ["ticks"]
prices = "all"
"""


def read(folder: Path, text: str) -> IngestConfig:
    path = folder / "ingest.toml"
    path.write_text(text, encoding="utf-8")
    return read_config(path)


def test_good_file_is_read(tmp_path: Path) -> None:
    config = read(tmp_path, GOOD)
    assert config.log == tmp_path / "data/log"
    assert (config.broker.host, config.broker.port) == ("broker.example", 8883)
    assert (config.group_commit_ms, config.group_rows_max) == (50, 50_000)
    flow = config.flows["stocks"]
    both = ("device-1", "device-2")
    assert flow.devices == both
    assert dict(flow.sources) == {"ticks": ("device-1",), "desk": both}
    every = ("ticks", "desk")
    assert dict(flow.channels) == {
        "quotes": ("ticks",),
        "prices": every,
        "_late": every,
        "_dead_letters": every,
    }
    assert flow.sources_of("device-1") == ["desk", "ticks"]
    assert flow.fed_by("device-2") == ["_dead_letters", "_late", "prices"]


def test_flow_of_live_sources_says_how_long_it_waits(tmp_path: Path) -> None:
    flow = read(tmp_path, GOOD).flows["stocks"]
    assert (flow.bounded, flow.join_timeout_s, flow.idle_after_s) == (True, 60, 30)
    live = GOOD.replace("[flows.stocks]", "[flows.stocks]\nbounded = false\nidle_after_s = 2.5")
    flow = read(tmp_path, live).flows["stocks"]
    assert (flow.bounded, flow.join_timeout_s, flow.idle_after_s) == (False, 60, 2.5)


def test_log_may_be_a_table(tmp_path: Path) -> None:
    plain = read(tmp_path, GOOD)
    assert (plain.partitions, plain.retention, plain.merge, plain.merge_grace_s) == (1, Retention(), True, 60)
    more = "partitions = 4, retain_s = 3.5, retain_bytes = 9, merge = false, merge_grace_s = 1"
    table = f'{{ folder = "data/log", {more} }}'
    config = read(tmp_path, GOOD.replace('"data/log"', table))
    assert config.log == plain.log
    assert (config.partitions, config.retention) == (4, Retention(3.5, 9))
    assert (config.merge, config.merge_grace_s) == (False, 1)


def test_broker_has_a_default_and_may_be_ipv6(tmp_path: Path) -> None:
    config = read(tmp_path, GOOD.replace('broker = "broker.example:8883"', ""))
    assert (config.broker.host, config.broker.port) == ("127.0.0.1", 1883)
    config = read(tmp_path, GOOD.replace("broker.example:8883", "[::1]:1883"))
    assert (config.broker.host, config.broker.port) == ("::1", 1883)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('log = "data/log"', "", "log: give the folder"),
        ('"data/log"', "7", "log: give the folder"),
        ('"data/log"', "{ merge = true }", "log: give the folder"),
        ('"data/log"', '{ folder = "l", merges = true }', "log.merges: there is no such setting"),
        ('"data/log"', '{ folder = "l", merge = 1 }', "log.merge: give true or false, not 1"),
        ('"data/log"', '{ folder = "l", partitions = 0 }', "log.partitions: give a whole number above 0"),
        (
            '"data/log"',
            '{ folder = "l", partitions = 65 }',
            "log.partitions: at most 64, one for each",
        ),
        ('"data/log"', '{ folder = "l", retain_s = 0 }', "log.retain_s: give a number of seconds above 0"),
        ('"data/log"', '{ folder = "l", retain_bytes = 1.5 }', "log.retain_bytes: give a whole number"),
        ('"data/log"', '{ folder = "l", merge_grace_s = -1 }', "log.merge_grace_s: give a number of seconds"),
        ("group_commit_ms", "group_comit_ms", "group_comit_ms: there is no such setting"),
        ("= 50", '= "50"', "group_commit_ms: give a whole number above 0, not '50'"),
        ("= 50", "= true", "group_commit_ms: give a whole number above 0, not True"),
        ("= 50", "= 0", "group_commit_ms: give a whole number above 0, not 0"),
        ("broker.example:8883", "broker.example", "broker: 'broker.example' is not HOST:PORT"),
        ("broker.example:8883", "broker.example:99999", "99999' is not HOST:PORT"),
        ("[flows.stocks]", "[flows.'a/b']", "flows.a/b: flow 'a/b': use a name"),
        ("flows.stocks", "flows.'..'", "flows...: a flow cannot be called '..'"),
        ('["device-1", "device-2"]', "[]", "flows.stocks.devices: give a list"),
        ('["device-1", "device-2"]', '["a b"]', "flows.stocks.devices: device 'a b': use a name"),
        ('["device-1", "device-2"]', '["d", "d"]', "flows.stocks.devices: a device is named twice"),
        (
            '["device-1"]',
            '["device-3"]',
            "flows.stocks.sources.ticks: device-3 not among the devices of the flow",
        ),
        ("quotes =", '"../quotes" =', "flows.stocks.channels.../quotes: a channel's name"),
        ('ticks = ["device-1"]', 'ticks = "some"', "flows.stocks.sources.ticks: give a list"),
        ('ticks = ["device-1"]', "ticks = []", "flows.stocks.sources.ticks: give a list"),
        ("ticks =", '"a tick" =', "flows.stocks.sources.a tick: a source's name"),
        ('quotes = ["ticks"]', 'quotes = "some"', "flows.stocks.channels.quotes: give a list of the sources"),
        ('quotes = ["ticks"]', "quotes = []", "flows.stocks.channels.quotes: give a list of the sources"),
        (
            'quotes = ["ticks"]',
            'quotes = ["device-1"]',
            "flows.stocks.channels.quotes: device-1 not among the sources of the flow: desk, ticks",
        ),
        (
            "[flows.stocks.sources]",
            "[flows.stocks.members]",
            "flows.stocks.members: there is no such setting",
        ),
        (
            "[flows.stocks.channels]",
            "[flows.stocks.chanels]",
            "flows.stocks.chanels: there is no such setting",
        ),
        ("[flows.stocks]", "[[flows.stocks]", "is not a TOML file"),
        ("[flows.stocks]", "[flows.stocks]\nbounded = 0", "flows.stocks.bounded: give true or false, not 0"),
        (
            "[flows.stocks]",
            "[flows.stocks]\nidle_after_s = 3",
            "flows.stocks.idle_after_s: nobody is excluded from a flow unless it has bounded = false",
        ),
        (
            "[flows.stocks]",
            "[flows.stocks]\nbounded = false\njoin_timeout_s = -1",
            "flows.stocks.join_timeout_s: give a number of seconds above 0, not -1",
        ),
    ],
)
def test_each_mistake_names_the_file_and_the_key(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, GOOD.replace(old, new))
    assert str(caught.value).startswith(str(tmp_path / "ingest.toml"))
    assert sentence in str(caught.value)


def test_file_that_is_not_there_or_names_no_flow(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"flows: give each flow as .* or leave flows out"):
        read(tmp_path, 'log = "x"\nflows = 3')
    assert read(tmp_path, 'log = "x"').follows_roster
    assert not read(tmp_path, GOOD).follows_roster
    with pytest.raises(ConfigError, match=r"flows\.stocks: give a table"):
        read(tmp_path, 'log = "x"\n[flows]\nstocks = 1')
    flow = 'log = "x"\n[flows.stocks]\ndevices = ["d"]\n'
    with pytest.raises(ConfigError, match=r"flows\.stocks\.sources: give each source step of the flow"):
        read(tmp_path, flow + '[flows.stocks.channels]\nquotes = "all"')
    with pytest.raises(ConfigError, match=r"flows\.stocks\.channels: give each channel the sources"):
        read(tmp_path, flow + '[flows.stocks.sources]\nquotes = "all"')
