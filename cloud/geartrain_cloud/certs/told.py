"""What a fleet's authority has issued, as JSON values: for `gear certs` and for REST."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geartrain_cloud.certs.fleet import Fleet, Issued


def issued_told(folder: Path) -> list[dict[str, Any]]:
    """All that was ever issued, in order; raises `CertificateError`."""
    return [entry_told(one) for one in Fleet(folder).issued()]


def revoked_told(folder: Path, kind: str, name: str) -> dict[str, Any]:
    """Revoke all certificates of a name: those revoked by this, and the list that says so; raises
    `CertificateError`.
    """
    fleet = Fleet(folder)
    return {"revoked": [entry_told(one) for one in fleet.revoke(kind, name)], "crl": str(fleet.crl)}


def entry_told(one: Issued) -> dict[str, Any]:
    """A certificate: its serial, whom it is for, its end and its revocation."""
    return {
        "serial": one.serial,
        "kind": one.kind,
        "name": one.name,
        "not_after": one.not_after.isoformat(),
        "revoked_at": None if one.revoked_at is None else one.revoked_at.isoformat(),
    }
