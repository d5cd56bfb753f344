"""`gear certs` and `gear broker`: what the commands do, and what they print.

Beside the record's path. Guarantees: no key is ever printed, only where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from geartrain.printable import printable
from geartrain_client.terminal.screen import print_json, results, table_of
from geartrain_cloud.broker.fleet_config import BrokerHost, write_broker
from geartrain_cloud.certs import Fleet, Issued


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
        print_json(_entry(entry) | {"certificate": str(paths.certificate), "key": str(paths.key)})
        return
    until = _day(entry.not_after)
    _say(f"made {paths.certificate} and {paths.key}, valid until {until}; both go with {fleet.ca}")


def revoke_certificates(folder: Path, kind: str, name: str, *, as_json: bool) -> None:
    """Revoke all certificates of a name; raises `CertificateError`."""
    fleet = Fleet(folder)
    ended = fleet.revoke(kind, name)
    if as_json:
        print_json({"revoked": [_entry(one) for one in ended], "crl": str(fleet.crl)})
        return
    which = f"revoked {len(ended)} of {kind} {name}" if ended else f"{kind} {name} was revoked before"
    _say(
        f"{which}; run gear broker config again and send the broker a SIGHUP: it lets none of them in again; "
        "restart it to end one that is open"
    )


def list_certificates(folder: Path, *, as_json: bool) -> None:
    """Print what was issued; raises `CertificateError`."""
    found = Fleet(folder).issued()
    if as_json:
        print_json([_entry(one) for one in found])
        return
    now = datetime.now(UTC)
    lines = [[one.kind, one.name, _day(one.not_after), _state(one, now), one.serial] for one in found]
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


def _state(one: Issued, now: datetime) -> str:
    if one.revoked_at is not None:
        return f"revoked {_day(one.revoked_at)}"
    return "expired" if one.not_after <= now else "valid"


def _entry(one: Issued) -> dict[str, Any]:
    return {
        "serial": one.serial,
        "kind": one.kind,
        "name": one.name,
        "not_after": one.not_after.isoformat(),
        "revoked_at": None if one.revoked_at is None else one.revoked_at.isoformat(),
    }


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).date().isoformat()


def _say(sentence: str) -> None:
    results().print(printable(sentence))
