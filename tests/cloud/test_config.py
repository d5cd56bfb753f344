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
        ("broker =", "[broker", "is not a TOML file"),
    ],
)
def test_each_mistake_names_the_file_and_the_key(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, GOOD.replace(old, new))
    assert str(caught.value).startswith(str(tmp_path / "ingest.toml"))
    assert sentence in str(caught.value)


def test_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        read_config(tmp_path / "none.toml")


@pytest.mark.parametrize("flows", ['[flows.stocks]\ndevices = ["device-1"]\n', "[flows]\n"])
def test_a_file_that_names_flows_is_told_where_they_come_from(tmp_path: Path, flows: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, GOOD + flows)
    assert str(caught.value) == (
        f"{tmp_path / 'ingest.toml'}, flows: ingest takes them from the log's roster, which control writes: "
        "leave flows out, and give each flow to `gear submit`"
    )
