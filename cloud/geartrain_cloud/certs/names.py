"""What certificates are issued for, and the name that each carries, which is the user that the broker sees.

Guarantees: no device's certificate can carry the name of a part of the cloud, because a device's name has no
colon. No name holds a wildcard or a topic level.
"""

from __future__ import annotations

import ipaddress
import re

from geartrain.errors import WireError
from geartrain.wire.topics import check_name
from geartrain_cloud.errors import CertificateError

SERVER, DEVICE, CLOUD = "server", "device", "cloud"
KINDS = (DEVICE, SERVER, CLOUD)
CLOUD_ROLES = ("ingest", "down", "control")
"""The parts of the cloud that speak to the broker: what takes in, what sends down, what tells devices their
desired state.
"""

_HOST = re.compile(r"(?=.{1,253}\Z)(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.?)+(?<!\.)")


def check(kind: str, name: str) -> None:
    """Raises `CertificateError` unless a certificate of this kind may have this name."""
    if kind not in KINDS:
        raise CertificateError(f"{kind!r} is not what a certificate is for: use {', '.join(KINDS)}")
    if kind == SERVER:
        check_host(name)
    elif kind == CLOUD and name not in CLOUD_ROLES:
        raise CertificateError(f"the cloud has no part {name!r}: there are {', '.join(CLOUD_ROLES)}")
    elif kind == DEVICE:
        try:
            check_name("device", name)
        except WireError as error:
            raise CertificateError(str(error)) from None
        if not name.strip("."):
            raise CertificateError(f"a device cannot be called {name!r}: use a letter or a digit")


def check_host(name: str) -> None:
    """Raises `CertificateError` unless it is a host's name or address."""
    if not is_address(name) and not _HOST.fullmatch(name):
        raise CertificateError(f"{name[:260]!r} is not the name or address of a host, such as broker.example")


def is_address(host: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def common_name(kind: str, name: str) -> str:
    """The name inside the certificate: a device's own, `cloud:ROLE`; of a broker only the hosts count."""
    if kind == SERVER:
        return "geartrain broker"
    return f"{CLOUD}:{name}" if kind == CLOUD else name
