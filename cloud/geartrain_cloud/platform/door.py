"""`platform.json` in the state folder: where REST answers now, and which ports it had to leave to others.

Control writes the file; `gear up` and the commands of this machine read it. Guarantees: it is replaced in one
step, and names the process that listens, so that nobody takes a former control's address for this one's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.places import PlatformPlaces, read_report, write_report


@dataclass(frozen=True, slots=True)
class ControlDoor:
    """What the file says. url: where REST answers; pid: of the control that listens; taken: the ports that
    it would have preferred, and that other programs have.
    """

    url: str
    pid: int
    taken: tuple[int, ...] = ()

    @property
    def port(self) -> int:
        """The port of `url`, 0 where it names none."""
        return port_of(self.url)


def write_door(config: PlatformConfig, url: str, taken: Sequence[int]) -> None:
    """Say where REST of this process answers; raises `OSError`."""
    door = {"url": url, "token_file": str(config.places.token), "pid": os.getpid(), "taken": list(taken)}
    write_report(config.places.door, door | config.rest_authority)


def read_door(places: PlatformPlaces) -> ControlDoor | None:
    """What the file says; None where there is none that can be read."""
    found = read_report(places.door)
    url, pid, taken = found.get("url"), found.get("pid"), found.get("taken", [])
    if not isinstance(url, str) or not isinstance(pid, int) or not isinstance(taken, list):
        return None
    return ControlDoor(url, pid, tuple(port for port in taken if isinstance(port, int)))


def port_of(address: str) -> int:
    """The port behind the last colon of an address, 0 where there is none.

    >>> port_of("http://127.0.0.1:8764"), port_of("http://hub.example")
    (8764, 0)
    """
    _, _, port = address.rpartition(":")
    return int(port) if port.isascii() and port.isdecimal() and 0 < int(port) < 65_536 else 0
