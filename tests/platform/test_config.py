"""`platform.toml`: defaults, what a file says, and mistakes in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geartrain.errors import ConfigError
from geartrain_cloud.platform.config import read_platform
from geartrain_cloud.platform.places import PlatformPlaces, default_state, read_report, write_report


def test_with_no_file_all_is_default_below_the_state_folder(tmp_path: Path) -> None:
    config = read_platform(state=tmp_path)
    assert config.state == tmp_path
    assert config.broker == "auto"
    assert config.control.host == "127.0.0.1"
    assert config.spark.master == "local[2]"
    assert config.arguments == ("--state", str(tmp_path))


def test_a_file_in_the_state_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "platform.toml").write_text('broker = "10.0.0.5:1883"\n[spark]\nmaster = "local[1]"\n')
    config = read_platform(state=tmp_path)
    assert config.spark.master == "local[1]"
    broker = config.broker_now("ingest")
    assert (broker.host, broker.port) == ("10.0.0.5", 1883)


def test_what_devices_of_this_machine_are_told_besides_is_kept_as_it_is(tmp_path: Path) -> None:
    text = "[local.commit]\nrecords_max = 60\n[local.apps.shop.sources.prices]\nspeed = 60\n"
    (tmp_path / "platform.toml").write_text(text)
    assert read_platform(state=tmp_path).local.tables == {
        "commit": {"records_max": 60},
        "apps": {"shop": {"sources": {"prices": {"speed": 60}}}},
    }
    assert read_platform(state=tmp_path / "other").local.tables == {}


def test_the_state_of_a_file_is_taken_from_its_folder_and_an_option_is_over_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('state = "run"\n')
    assert read_platform(file).state == tmp_path / "run"
    assert read_platform(file, tmp_path / "other").state == tmp_path / "other"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("brocker = 1", "brocker is not a key of this file"),
        ("[spark]\nrows_max = 0", "spark.rows_max"),
        ("[log]\npartitions = 65", "log.partitions"),
        ('broker = "nowhere"', "broker: 'nowhere' is not HOST:PORT"),
        ("[control]\nport = 70000", "control.port"),
        ('[control]\nhost = "0.0.0.0"', "control.host: 0.0.0.0 is reached from other machines"),
        ('[control]\nhost = "rest.example"', "write tls = true beside it"),
        ('[control]\nkey = "k"', "control.key is for TLS: write tls = true beside it"),
        ('[control]\ntls = true\nkey = "k"', "control.certificate and control.key belong together"),
        ("[control]\ntls = true", "write [fleet] address, or name files of your own"),
        (
            '[control]\ntls = true\nhost = "::"\ncertificate = "c"\nkey = "k"',
            "write in control.address the name that the certificate is for",
        ),
        ('[tables]\nstore = "db.example"', "tables.store is no address such as postgresql://"),
        ('[tables]\nstore = "postgresql://[::1"', "tables.store is no address such as postgresql://"),
        ('[tables]\nstore = "postgresql://me:secret@db/x"', "use PGPASSWORD or ~/.pgpass"),
        ('[tables]\nstore = "postgresql://me@db/x?password=secret"', "use PGPASSWORD or ~/.pgpass"),
        ("x = [", "is not a TOML file"),
    ],
)
def test_a_mistake_is_one_sentence_with_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "platform.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_platform(file)
    assert str(file) in str(caught.value)
    assert "secret" not in str(caught.value)
    assert said in str(caught.value)


def test_a_postgresql_for_tables_is_read(tmp_path: Path) -> None:
    assert read_platform(state=tmp_path).tables.store == ""
    (tmp_path / "platform.toml").write_text('[tables]\nstore = "postgresql://me@db.example/fleet"\n')
    assert read_platform(state=tmp_path).tables.store == "postgresql://me@db.example/fleet"


def test_without_a_broker_that_runs_the_sentence_says_what_to_start(tmp_path: Path) -> None:
    config = read_platform(state=tmp_path)
    with pytest.raises(ConfigError, match="start gear up there"):
        config.broker_now("ingest")
    write_report(config.places.broker, {"cloud": {"ingest": "127.0.0.1:1999"}})
    assert config.broker_now("ingest").port == 1999


def test_the_default_folder_is_the_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEARTRAIN_STATE", str(tmp_path / "a"))
    assert default_state() == tmp_path / "a"
    monkeypatch.delenv("GEARTRAIN_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "b"))
    assert default_state() == tmp_path / "b" / "geartrain" / "platform"


def test_a_report_is_written_once_privately_and_read_back(tmp_path: Path) -> None:
    path = PlatformPlaces(tmp_path).spark_wanted
    assert write_report(path, {"b": 1, "a": "ü"})
    assert not write_report(path, {"a": "ü", "b": 1})
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_report(path) == json.loads(path.read_text()) == {"a": "ü", "b": 1}
    path.write_text("[1]")
    assert read_report(path) == {}
    assert read_report(tmp_path / "none") == {}


def test_an_open_platform_says_how_devices_reach_it(tmp_path: Path) -> None:
    assert not read_platform(state=tmp_path).is_open
    file = tmp_path / "platform.toml"
    file.write_text('[fleet]\naddress = "platform.example"\ndevice_port = 9443\n')
    config = read_platform(state=tmp_path)
    assert config.is_open
    assert config.device_url == "https://platform.example:9443"
    assert config.device_broker == "platform.example:8883"
    assert config.certs == tmp_path / "fleet"
    file.write_text('broker = "mq.example:8884"\nbroker_certs = "pki"\n[fleet]\naddress = "2001:db8::1"\n')
    config = read_platform(state=tmp_path)
    assert config.device_url == "https://[2001:db8::1]:8443"
    assert config.device_broker == "mq.example:8884"
    assert config.certs == tmp_path / "pki"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[fleet]\naddress = "host:8443"\n', "without a port"),
        ('broker = "amqtt"\n[fleet]\naddress = "host.example"\n', "amqtt listens to this machine only"),
        ('broker = "10.0.0.5:1883"\n[fleet]\naddress = "host.example"\n', "broker_certs"),
        ('[fleet]\naddress = "host.example"\nmqtt_port = 0\n', "fleet.mqtt_port"),
    ],
)
def test_an_address_that_cannot_be_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "platform.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_platform(state=tmp_path)
    assert said in str(caught.value)
