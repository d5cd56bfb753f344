"""The broker of an open platform: its authority, its files, and another version for each revocation."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from geartrain_cloud.broker.open_broker import open_broker, open_fleet
from geartrain_cloud.certs import CLOUD, CLOUD_ROLES, DEVICE, SERVER, Fleet
from geartrain_cloud.errors import BrokerError, CertificateError
from geartrain_cloud.platform.config import FleetSection, PlatformConfig
from geartrain_cloud.programs import WITHOUT
from tests.control.enrolled import Key


def config_of(state: Path, address: str = "platform.example") -> PlatformConfig:
    return PlatformConfig(state, fleet=FleetSection(address=address, mqtt_port=18_883))


def test_an_authority_is_made_once_and_has_what_this_machine_needs(tmp_path: Path) -> None:
    fleet = open_fleet(config_of(tmp_path))
    made = {path: path.read_bytes() for path in fleet.folder.rglob("*") if path.is_file()}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in made)
    assert [fleet.paths(CLOUD, role).key.is_file() for role in CLOUD_ROLES] == [True] * 3
    open_fleet(config_of(tmp_path))
    assert {path: path.read_bytes() for path in fleet.folder.rglob("*") if path.is_file()} == made


def test_an_authority_that_was_cut_off_in_the_making_is_made_whole(tmp_path: Path) -> None:
    """What a kill leaves: any file after some other is missing."""
    names = [path.relative_to(tmp_path) for path in open_fleet(config_of(tmp_path)).folder.rglob("*.pem")]
    assert len(names) >= 6
    for name in names:
        folder = tmp_path / "other" / name.stem
        fleet = open_fleet(config_of(folder))
        missing = folder / name
        if missing not in (fleet.ca, fleet.crl):  # these two appear in one step, the authority last
            missing.unlink()
        open_fleet(config_of(folder))
        assert missing.is_file()
    fleet = open_fleet(config_of(tmp_path / "last"))
    fleet.ca.unlink()
    for role in CLOUD_ROLES:
        fleet.paths(CLOUD, role).certificate.unlink()
    fleet.paths(SERVER, "platform.example").certificate.unlink()
    assert open_fleet(config_of(tmp_path / "last")).ca.is_file()


@pytest.mark.mosquitto
def test_a_revocation_makes_another_version_with_another_list(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    broker = open_broker(config, tmp_path / "broker")
    assert broker.host == "127.0.0.1"
    configuration = (tmp_path / "broker" / "mosquitto.conf").read_text()
    assert "listener 18883\n" in configuration
    assert "require_certificate true" in configuration
    version, fleet = broker.version(), Fleet(config.certs)
    fleet.sign("truck-1", Key().request.encode(), timedelta(days=1))
    assert broker.version() == version
    before = (tmp_path / "broker" / "crl.pem").read_bytes()
    fleet.revoke(DEVICE, "truck-1")
    assert broker.version() != version
    assert (tmp_path / "broker" / "crl.pem").read_bytes() == fleet.crl.read_bytes() != before


@pytest.mark.mosquitto
def test_an_address_of_this_machine_is_listened_to_here_only(tmp_path: Path) -> None:
    open_broker(config_of(tmp_path, "localhost"), tmp_path / "broker")
    assert "listener 18883 127.0.0.1\n" in (tmp_path / "broker" / "mosquitto.conf").read_text()


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = PlatformConfig(
        tmp_path,
        broker="mq.example:8883",
        broker_certs=tmp_path / "pki",
        fleet=FleetSection(address="x.example"),
    )
    with pytest.raises(CertificateError, match="gear certs init"):
        open_fleet(foreign)
    monkeypatch.setenv(WITHOUT, "mosquitto")
    with pytest.raises(BrokerError, match="apt-get install mosquitto"):
        open_broker(config_of(tmp_path), tmp_path / "broker")
