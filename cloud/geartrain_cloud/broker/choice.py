"""Which broker: mosquitto where the machine has it, else amqtt in its own process, or one that runs already.

Guarantees: a broker that is started here listens on the loopback interface only, on a port that was free. It
keeps nothing on disk but its configuration (mode 0600). One that runs already is reached over mutual TLS
where a fleet's certificates are given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from geartrain.adapters.configuration import host_and_port
from geartrain.adapters.files import write_private
from geartrain.errors import ConfigError
from geartrain.wire.limits import LIMITS
from geartrain_cloud.broker.ready import LOOPBACK, free_port
from geartrain_cloud.errors import BrokerError
from geartrain_cloud.programs import SBIN, find_program

BROKERS = ("auto", "amqtt", "mosquitto")
QUEUED_BATCHES_MAX = 100_000
QUEUED_BYTES_MAX = 256 << 20
PACKET_OVERHEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class BrokerChoice:
    """A broker to use. `command` starts it; empty where it runs already and is not ours to start; certs: the
    folder of the certificates with which it is reached, as `gear certs` makes it; version: of what it reads
    when it starts, brought up to date by the question; with another one it is started anew.
    """

    kind: Literal["mosquitto", "amqtt", "external"]
    host: str
    port: int
    command: tuple[str, ...] = ()
    certs: Path | None = None
    version: Callable[[], str] = str

    @property
    def address(self) -> str:
        """`host:port`, as configuration files have it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def of_device(self, name: str) -> str | dict[str, Any]:
        """The key `broker` in the configuration of a device; raises `CertificateError` if it has none."""
        return self._key("device", name)

    def of_cloud(self, role: str) -> str | dict[str, Any]:
        """The same of a part of the cloud, `ingest` or `down`."""
        return self._key("cloud", role)

    def _key(self, kind: str, name: str) -> str | dict[str, Any]:
        if self.certs is None:
            return self.address
        from geartrain_cloud.certs import Fleet  # only who has certificates waits for cryptography

        return Fleet(self.certs.absolute()).broker_key(kind, name, self.address)


def find_mosquitto() -> str | None:
    """The mosquitto program on PATH, or where Debian and Homebrew put it off a user's PATH."""
    return find_program("mosquitto", SBIN)


def choose_broker(wanted: str, folder: Path, certs: Path | None = None, port: int = 0) -> BrokerChoice:
    """The broker for `auto`, `amqtt`, `mosquitto` or `HOST:PORT`; writes its configuration into `folder`.

    certs: the folder of a fleet's certificates, for `HOST:PORT` only. port: of one that is to be started, 0
    for any free one. Raises `ConfigError` for anything else, and `BrokerError` when mosquitto is asked for
    and not there, or its configuration cannot be written.
    """
    if wanted not in BROKERS:
        return BrokerChoice("external", *parse_address(wanted), certs=certs)
    if certs is not None:
        raise ConfigError(
            f"--certs {certs}: certificates are for a fleet's own broker: start it, give --broker HOST:PORT"
        )
    mosquitto = find_mosquitto() if wanted != "amqtt" else None
    port = port or free_port()
    if mosquitto is not None:
        config = folder / "mosquitto.conf"
        try:
            write_private(config, mosquitto_config(port))
        except OSError as error:
            raise BrokerError(
                f"{config} cannot be written: {error.strerror or error}; make room on its disk, or name a "
                "folder on another one"
            ) from None
        return BrokerChoice("mosquitto", LOOPBACK, port, (mosquitto, "-c", str(config)))
    if wanted == "mosquitto":
        raise BrokerError(
            "mosquitto is not installed: install it (on Debian: apt-get install mosquitto), "
            "or use --broker amqtt"
        )
    command = (sys.executable, "-m", "geartrain_cloud.broker.amqtt_broker", "--port", str(port))
    return BrokerChoice("amqtt", LOOPBACK, port, command)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` (`[::1]:1883` for IPv6); raises `ConfigError`."""
    try:
        return host_and_port(text)
    except ConfigError:
        raise ConfigError(
            f"broker {text!r}: write auto, amqtt, mosquitto or HOST:PORT, such as 10.0.0.5:1883"
        ) from None


def mosquitto_config(port: int) -> str:
    """mosquitto's configuration: loopback only, nothing kept on disk, queues that hold a whole backlog.

    Its default drops what is queued beyond 1,000 without a word; dropped batches would come again by
    resending, but slowly.
    """
    return f"""\
listener {port} {LOOPBACK}
allow_anonymous true
persistence false
set_tcp_nodelay true
max_queued_messages {QUEUED_BATCHES_MAX}
max_queued_bytes {QUEUED_BYTES_MAX}
max_packet_size {LIMITS.payload_bytes_max + PACKET_OVERHEAD_BYTES}
connection_messages false
log_dest stderr
log_type error
log_type warning
log_type notice
"""
