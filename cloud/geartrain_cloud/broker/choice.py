"""Which broker: mosquitto where the machine has it, else amqtt in its own process, or one that runs already.

Guarantees: what is started here listens on the loopback interface only, on a port that was free, and keeps
nothing on disk but its configuration (mode 0600).
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from geartrain.adapters.configuration import host_and_port
from geartrain.errors import ConfigError
from geartrain.wire.limits import LIMITS
from geartrain_cloud.broker.ready import LOOPBACK, free_port
from geartrain_cloud.errors import BrokerError
from geartrain_cloud.files import write_private

BROKERS = ("auto", "amqtt", "mosquitto")
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/opt/homebrew/sbin")
QUEUED_BATCHES_MAX = 100_000
QUEUED_BYTES_MAX = 256 << 20
PACKET_OVERHEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class BrokerChoice:
    """A broker to use. `command` starts it; empty where it runs already and is not ours to start."""

    kind: Literal["mosquitto", "amqtt", "external"]
    host: str
    port: int
    command: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """`host:port`, as configuration files have it."""
        return f"{self.host}:{self.port}"


def find_mosquitto() -> str | None:
    """The mosquitto program on PATH, or where Debian and Homebrew put it off a user's PATH."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=os.pathsep.join(_SBIN))


def choose_broker(wanted: str, folder: Path) -> BrokerChoice:
    """The broker for `auto`, `amqtt`, `mosquitto` or `HOST:PORT`; writes its configuration into `folder`.

    Raises `ConfigError` for anything else, and `BrokerError` when mosquitto is asked for and not there.
    """
    if wanted not in BROKERS:
        return BrokerChoice("external", *parse_address(wanted))
    mosquitto = find_mosquitto() if wanted != "amqtt" else None
    if mosquitto is not None:
        port = free_port()
        config = folder / "mosquitto.conf"
        write_private(config, mosquitto_config(port))
        return BrokerChoice("mosquitto", LOOPBACK, port, (mosquitto, "-c", str(config)))
    if wanted == "mosquitto":
        raise BrokerError(
            "mosquitto is not installed: install it (on Debian: apt-get install mosquitto), "
            "or use --broker amqtt"
        )
    port = free_port()
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
max_queued_messages {QUEUED_BATCHES_MAX}
max_queued_bytes {QUEUED_BYTES_MAX}
max_packet_size {LIMITS.payload_bytes_max + PACKET_OVERHEAD_BYTES}
connection_messages false
log_dest stderr
log_type error
log_type warning
log_type notice
"""
