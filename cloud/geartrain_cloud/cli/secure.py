"""`gear certs` and `gear broker`: what the commands do, and what they print.

Beside the record's path. Guarantees: no key is ever printed, only where it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from geartrain.printable import printable
from geartrain_client.cli.platform_options import platform_at
from geartrain_client.rest import door
from geartrain_client.rest.platform import Platform, segment
from geartrain_client.terminal.screen import print_json, results, table_of
from geartrain_cloud.broker.fleet_config import BrokerHost, write_broker
from geartrain_cloud.certs import Fleet
from geartrain_cloud.certs.asking import asked, keep
from geartrain_cloud.certs.told import entry_told, issued_told, revoked_told

CERTS = Path("certs")
"""Where a fleet's certificates are, unless they are named."""


class Register(Protocol):
    """What an authority has issued. Values are those of JSON; both raise `GeartrainError`."""

    def issued(self) -> list[dict[str, Any]]:
        """All that was ever issued."""

    def revoke(self, kind: str, name: str) -> dict[str, Any]:
        """Revoke all of a name."""


def register_at(certs: Path | None, url: str | None, state: Path | None) -> Register:
    """The register that is meant: of the folder `certs`, or of a platform over REST. Where nobody names one,
    the folder `certs` of the working directory, if it is there.
    """
    if certs is not None or (not is_platform_meant(url, state) and CERTS.is_dir()):
        return _InFolder(certs or CERTS)
    return _OnPlatform(platform_at(url, state))


class _InFolder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def issued(self) -> list[dict[str, Any]]:
        return issued_told(self._folder)

    def revoke(self, kind: str, name: str) -> dict[str, Any]:
        return revoked_told(self._folder, kind, name)


class _OnPlatform:
    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def issued(self) -> list[dict[str, Any]]:
        return list(self._platform.items("/certs"))

    def revoke(self, kind: str, name: str) -> dict[str, Any]:
        return dict(self._platform.change("POST", f"/certs/{segment(kind)}/{segment(name)}/revoke", {}))


def is_platform_meant(url: str | None, state: Path | None) -> bool:
    """Whether who makes certificates means a platform, and not a folder of his own."""
    return url is not None or state is not None or bool(os.environ.get(door.URL))


def init_on(platform: Platform, name: str, days: int, *, as_json: bool) -> None:
    """Have a platform make its fleet's authority; raises `GeartrainError`."""
    made = platform.change("POST", "/certs/authority", {"fleet": name, "days": days})
    if as_json:
        print_json(made)
        return
    _say(f"the platform has made the authority {made['fingerprint']}, whose key does not leave its machine")


def issue_on(
    platform: Platform,
    folder: Path,
    kind: str,
    name: str,
    hosts: Sequence[str],
    *,
    days: int,
    renew: bool,
    as_json: bool,
) -> None:
    """Have a platform sign a certificate for a key that is made in `folder`; raises `GeartrainError`."""
    one = asked(folder, kind, name, renew=renew)
    body = {"request": one.request, "hosts": list(hosts), "days": days}
    made = platform.change("POST", f"/certs/{segment(kind)}/{segment(name)}/issue", body)
    keep(one, made.pop("certificate"), made.pop("authority"))
    paths = one.paths
    if as_json:
        print_json(made | {"certificate": str(paths.certificate), "key": str(paths.key)})
        return
    until = _day(_moment(made, "not_after"))
    _say(f"made {paths.certificate} and {paths.key}, valid until {until}; both go with {one.fleet.ca}")


def init_fleet(folder: Path, name: str, days: int, *, as_json: bool) -> None:
    """Make a fleet's authority; raises `CertificateError`."""
    made = Fleet(folder).init(name, days)
    if as_json:
        print_json({"certificate": str(made.certificate), "key": str(made.key)})
        return
    _say(f"made {made.certificate}, which all may see, and {made.key}, which must not leave this machine")


def issue_certificate(
    folder: Path, kind: str, name: str, hosts: Sequence[str], *, days: int, renew: bool, as_json: bool
) -> None:
    """Issue a certificate; raises `CertificateError`."""
    fleet = Fleet(folder)
    entry, paths = fleet.issue(kind, name, hosts, days=days, renew=renew), fleet.paths(kind, name)
    if as_json:
        print_json(entry_told(entry) | {"certificate": str(paths.certificate), "key": str(paths.key)})
        return
    until = _day(entry.not_after)
    _say(f"made {paths.certificate} and {paths.key}, valid until {until}; both go with {fleet.ca}")


def revoke_certificates(at: Register, kind: str, name: str, *, as_json: bool) -> None:
    """Revoke all certificates of a name; raises `CertificateError`."""
    found = at.revoke(kind, name)
    if as_json:
        print_json(found)
        return
    ended = found["revoked"]
    which = f"revoked {len(ended)} of {kind} {name}" if ended else f"{kind} {name} was revoked before"
    _say(
        f"{which}; run gear broker config again and send the broker a SIGHUP: it lets none of them in again; "
        "restart it to end one that is open"
    )


def list_certificates(at: Register, *, as_json: bool) -> None:
    """Print what was issued; raises `GeartrainError`."""
    found = at.issued()
    if as_json:
        print_json(found)
        return
    now = datetime.now(UTC)
    lines = [
        [one["kind"], one["name"], _day(_moment(one, "not_after")), _state(one, now), one["serial"]]
        for one in found
    ]
    results().print(table_of("", ["for", "name", "until", "state", "serial"], lines))


def configure_broker(
    certs: Path, server: str, output: Path, folder: Path | None, *, listen: str, user: str, as_json: bool
) -> None:
    """Write a broker's folder; raises `ConfigError` and `CertificateError`."""
    at = folder if folder is not None else output.absolute()
    written = write_broker(Fleet(certs), BrokerHost(server, listen, at, user), output)
    if as_json:
        print_json({"files": [str(path) for path in written], "folder": str(at)})
        return
    names = ", ".join(path.name for path in written)
    _say(f"wrote {names} to {output}; start mosquitto -c {at}/mosquitto.conf")


def _state(one: Mapping[str, Any], now: datetime) -> str:
    if one["revoked_at"] is not None:
        return f"revoked {_day(_moment(one, 'revoked_at'))}"
    return "expired" if _moment(one, "not_after") <= now else "valid"


def _moment(one: Mapping[str, Any], name: str) -> datetime:
    return datetime.fromisoformat(one[name])


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).date().isoformat()


def _say(sentence: str) -> None:
    results().print(printable(sentence))
