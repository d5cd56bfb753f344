"""The broker: which one is chosen, that it serves, and that what is wrong is said in a sentence."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from geartrain.errors import ConfigError
from geartrain_cloud.broker import BrokerChoice, choice, choose_broker, is_ready, ready, wait_until_ready
from geartrain_cloud.broker.choice import parse_address
from geartrain_cloud.broker.ready import refusal
from geartrain_cloud.errors import BrokerError
from tests.ports import free_port
from tests.waiting import WAIT_S


@contextmanager
def started(broker: BrokerChoice) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(broker.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        wait_until_ready(broker.host, broker.port, timeout_s=WAIT_S)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["auto", "amqtt"])
def test_chosen_broker_accepts_a_connection_and_ends_on_sigterm(wanted: str, tmp_path: Path) -> None:
    broker = choose_broker(wanted, tmp_path)
    with started(broker) as process:
        assert is_ready(broker.host, broker.port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WAIT_S) == 0
        assert not is_ready(broker.host, broker.port)


@pytest.mark.slow
def test_taken_port_is_a_sentence_of_the_amqtt_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "geartrain_cloud.broker.amqtt_broker", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 1
    assert f"the amqtt broker cannot listen on 127.0.0.1:{port}" in done.stderr
    assert done.stderr.endswith("stop what listens there, or give another --port\n")
    assert "Traceback" not in done.stderr


def test_auto_prefers_mosquitto_and_falls_back_to_amqtt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker_kind: Literal["mosquitto", "amqtt"]
) -> None:
    assert choose_broker("auto", tmp_path).kind == broker_kind
    monkeypatch.setattr(choice, "find_mosquitto", lambda: None)
    assert choose_broker("auto", tmp_path).kind == "amqtt"
    with pytest.raises(BrokerError, match=r"mosquitto is not installed: .* --broker amqtt"):
        choose_broker("mosquitto", tmp_path)


def test_mosquitto_config_is_private_and_stays_on_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "find_mosquitto", lambda: "/usr/sbin/mosquitto")
    broker = choose_broker("mosquitto", tmp_path / "broker")
    config = tmp_path / "broker" / "mosquitto.conf"
    assert config.stat().st_mode & 0o777 == 0o600
    lines = config.read_text(encoding="utf-8").splitlines()
    assert f"listener {broker.port} 127.0.0.1" in lines
    assert {
        "persistence false",
        "set_tcp_nodelay true",
        "max_queued_messages 100000",
        "max_packet_size 1114112",
    } <= set(lines)


def test_external_broker_is_used_and_not_started(tmp_path: Path) -> None:
    broker = choose_broker("broker.example:1884", tmp_path)
    assert broker == BrokerChoice("external", "broker.example", 1884)
    assert broker.address == "broker.example:1884"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["nats", ":1883", "host:", "host:0", "host:65536", "host:x", "host:\u0661"])
def test_other_words_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write auto, amqtt, mosquitto or HOST:PORT"):
        choose_broker(text, tmp_path)


def test_a_broker_gets_a_port_that_no_outgoing_connection_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = {ready.free_port() for _ in range(200)}
    assert len(ports) > 150
    assert min(ports) >= 20_000
    assert max(ports) < 32_768  # where Linux begins with those of outgoing connections
    monkeypatch.setattr(ready, "is_free", lambda port: False)
    assert ready.free_port() not in ready._PORTS  # all are taken: the system finds another


def test_address_of_ipv6() -> None:
    assert parse_address("[::1]:1883") == ("::1", 1883)


def test_waiting_ends_with_the_reason() -> None:
    port = free_port()
    with pytest.raises(
        BrokerError, match=rf"no MQTT broker answers at 127\.0\.0\.1:{port} \(Connection refused\)"
    ):
        wait_until_ready("127.0.0.1", port, timeout_s=0.2)
    with pytest.raises(BrokerError, match="it has ended"):
        wait_until_ready("127.0.0.1", port, timeout_s=WAIT_S, gone=lambda: "it has ended")


def test_listener_that_speaks_something_else_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert refusal("127.0.0.1", port, timeout_s=0.2) == "it did not answer within 0.2 s"
