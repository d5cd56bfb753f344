"""The broker of a platform that is open to devices on other machines: mosquitto with mutual TLS.

`gear up` starts it, and the programs of its own machine use it as all others do, with certificates of their
own. Guarantees: there is an authority, and what it revokes ends connections that are open, too. The broker's
version is that of the list of what is revoked, and of its own certificate: when either changes, it is started
anew, and all others connect again.
"""

from __future__ import annotations

import os
from pathlib import Path

from geartrain_cloud.broker.choice import BrokerChoice, find_mosquitto
from geartrain_cloud.broker.fleet_config import BrokerHost, write_broker
from geartrain_cloud.broker.ready import LOOPBACK
from geartrain_cloud.certs import CLOUD, CLOUD_ROLES, SERVER, Fleet
from geartrain_cloud.errors import BrokerError
from geartrain_cloud.platform.config import PlatformConfig

LOCAL_NAMES = (LOOPBACK, "localhost")
"""By which the programs of this machine reach what listens for devices."""


def open_fleet(config: PlatformConfig) -> Fleet:
    """The authority of an open platform, made where it is the platform's own, and the certificate of its
    address; raises `CertificateError`.
    """
    fleet = Fleet(config.certs)
    if config.broker_certs is None:
        if not fleet.ca.exists():
            fleet.init(f"geartrain {config.fleet.address}"[:64])
        for role in CLOUD_ROLES:
            fleet.ensure(CLOUD, role)
    fleet.ensure(SERVER, config.fleet.address, LOCAL_NAMES)
    return fleet


def is_loopback_only(address: str) -> bool:
    """Whether nobody but this machine can use the address, so that nothing needs to listen elsewhere."""
    return address in LOCAL_NAMES


def open_broker(config: PlatformConfig, folder: Path) -> BrokerChoice:
    """The broker of an open platform, which is to be started; its files are in `folder`.

    Raises `BrokerError` where there is no mosquitto, and `CertificateError` or `ConfigError`.
    """
    mosquitto = find_mosquitto()
    if mosquitto is None:
        raise BrokerError(
            "a platform with fleet.address needs mosquitto, which speaks mutual TLS: install it (on Debian: "
            "apt-get install mosquitto)"
        )
    fleet, port, address = open_fleet(config), config.fleet.mqtt_port, config.fleet.address
    listen = f"{LOOPBACK}:{port}" if is_loopback_only(address) else str(port)
    # One that is started by root stays root: another user could not read the keys of a platform of root's.
    files = _Files(fleet, BrokerHost(address, listen, folder, "root" if os.geteuid() == 0 else "mosquitto"))
    files.version()
    command = (mosquitto, "-c", str(folder / "mosquitto.conf"))
    return BrokerChoice("mosquitto", LOOPBACK, port, command, fleet.folder, files.version)


class _Files:
    """What the broker reads, written anew when the list of what is revoked or its certificate has changed."""

    def __init__(self, fleet: Fleet, host: BrokerHost) -> None:
        self._fleet, self._host, self._version = fleet, host, ""

    def version(self) -> str:
        shown = self._fleet.paths(SERVER, self._host.server).certificate
        seen = [path.stat() for path in (self._fleet.crl, shown) if path.exists()]
        version = "-".join(f"{one.st_mtime_ns}-{one.st_ino}-{one.st_size}" for one in seen)
        if version != self._version:
            write_broker(self._fleet, self._host, self._host.folder)
            self._version = version
        return self._version
