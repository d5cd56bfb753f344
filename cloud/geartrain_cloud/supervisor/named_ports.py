"""The ports that a platform's configuration names: whether this machine can listen on each.

`gear up` asks before it starts anything. Guarantees: a port that another program has is one sentence with the
name of its key, and no process is started again and again for it. Who has just ended may let its port go.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from geartrain_cloud.broker.ready import LOOPBACK
from geartrain_cloud.errors import PortError
from geartrain_cloud.platform.config import BROKERS, PlatformConfig

PORT_FREE_S = 5.0
"""How long a program that has ended may keep its port."""
LOOK_S = 0.1
ANY = ""
"""The host of what listens to all who reach this machine."""


@dataclass(frozen=True, slots=True)
class NamedPort:
    """A port that a program of the platform is to listen on. key: by which the configuration names it; host:
    the name or address to listen on, `ANY` for all of this machine.
    """

    key: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """For a sentence."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if host else str(self.port)


def check_ports(config: PlatformConfig) -> None:
    """Raise `PortError` where the platform cannot listen on a port that its configuration names."""
    until_s, where = time.monotonic() + PORT_FREE_S, config.path or config.state
    known: dict[int, str] = {}
    for one in _named(config):
        other = known.setdefault(one.port, one.key)
        if other != one.key:
            raise PortError(f"{where}: {other} and {one.key} are both {one.port}: give one of them another")
        while code := _refusal(one):
            if code != errno.EADDRINUSE or time.monotonic() >= until_s:
                raise PortError(f"{where}: {one.key}: {_sentence(one, code)}")
            time.sleep(LOOK_S)


def _named(config: PlatformConfig) -> Iterator[NamedPort]:
    starts_broker = config.broker in BROKERS
    if starts_broker and config.broker_port and not config.is_open:
        yield NamedPort("broker_port", LOOPBACK, config.broker_port)
    if config.control.port:
        yield NamedPort("control.port", config.control.host, config.control.port)
    if config.is_open:
        from geartrain_cloud.broker.open_broker import is_loopback_only  # cryptography is for a fleet alone

        host = LOOPBACK if is_loopback_only(config.fleet.address) else ANY
        if starts_broker:
            yield NamedPort("fleet.mqtt_port", host, config.fleet.mqtt_port)
        yield NamedPort("fleet.device_port", host, config.fleet.device_port)


def _refusal(one: NamedPort) -> int:
    """The system's number for why nobody can listen there now, 0 where one can."""
    family = socket.AF_INET6 if ":" in one.host else socket.AF_INET
    try:
        with socket.create_server((one.host, one.port), family=family):
            return 0
    except socket.gaierror:  # a name that this machine does not know
        return errno.EADDRNOTAVAIL
    except OSError as error:
        return error.errno or errno.EIO


def _sentence(one: NamedPort, code: int) -> str:
    """What is wrong, and what to do."""
    if code == errno.EADDRINUSE:
        return f"another program listens on {one.address}: stop it, or give another port"
    if code == errno.EADDRNOTAVAIL:
        return f"this machine has no address {one.host} to listen on: give one of its own as host"
    if code == errno.EACCES:
        return f"this user may not listen on {one.address}: give a port of 1024 or above"
    return f"nothing can listen on {one.address} ({os.strerror(code)}): give another port"
