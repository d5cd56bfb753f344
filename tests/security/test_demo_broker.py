"""A platform at a fleet's own broker: who has which certificate, and what is said where one is missing."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.adapters.tls import parse_broker
from geartrain.errors import ConfigError
from geartrain_cloud.broker import choose_broker
from geartrain_cloud.broker.ready import refusal
from geartrain_cloud.certs import CLOUD
from geartrain_cloud.control.fleet import write_local
from geartrain_cloud.errors import CertificateError
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.supervisor.child import ChildSpec
from geartrain_cloud.supervisor.platform import Processes
from geartrain_cloud.supervisor.up import platform_broker
from tests.security.fleet import Secured, secured

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as found:
        yield found


def told(broker: Secured, state: Path, *devices: str) -> list[ChildSpec]:
    """The processes of a platform with these devices; what they read is written."""
    config = PlatformConfig(state, broker=broker.address, broker_certs=broker.fleet.folder)
    write_local(config.places, devices)
    return Processes(config, platform_broker(config)).all()


@pytest.mark.mosquitto
def test_each_process_is_told_of_its_own_certificate(broker: Secured, tmp_path: Path) -> None:
    assert {spec.name for spec in told(broker, tmp_path, "d1", "d2")} >= {"ingest", "device d1", "device d2"}
    files = {"cloud/ingest": tmp_path / "ingest.toml"}
    files |= {f"device/{device}": tmp_path / "agents" / device / "device.toml" for device in ("d1", "d2")}
    for name, path in files.items():
        found = tomllib.loads(path.read_text())["broker"]
        kind, _, who = name.partition("/")
        assert found == broker.table(kind, who)
        assert path.stat().st_mode & 0o777 == 0o600
        context = parse_broker(found, tmp_path).tls_context
        assert refusal("localhost", broker.port, context=context) is None


@pytest.mark.mosquitto
def test_a_broker_that_asks_for_certificates_is_not_ready_without(broker: Secured) -> None:
    assert refusal("localhost", broker.port) is not None
    stranger = broker.table("device", "d1", broker.strangers)
    context = parse_broker(stranger, Path()).tls_context
    assert refusal("localhost", broker.port, context=context) is not None


@pytest.mark.mosquitto
def test_a_device_without_a_certificate_is_one_sentence(broker: Secured, tmp_path: Path) -> None:
    choice = choose_broker(broker.address, tmp_path, broker.fleet.folder)
    with pytest.raises(CertificateError, match=r"run gear certs issue device d9 --certs ") as caught:
        told(broker, tmp_path, "d1", "d9")
    assert "\n" not in str(caught.value)
    assert choice.of_cloud("down") == broker.table(CLOUD, "down")


@pytest.mark.parametrize("wanted", ["auto", "amqtt", "mosquitto"])
def test_certificates_are_for_a_broker_that_runs_already(tmp_path: Path, wanted: str) -> None:
    with pytest.raises(ConfigError, match="give --broker HOST:PORT"):
        choose_broker(wanted, tmp_path, tmp_path / "certs")
