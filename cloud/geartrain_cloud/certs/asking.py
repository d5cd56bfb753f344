"""Certificates that another machine's authority signs: the key is made here, and never leaves.

For `gear certs issue` on a platform, by REST. Guarantees: what travels is a signing request and a
certificate. No key is ever overwritten, and a folder holds the certificates of one authority.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from geartrain.adapters.files import write_durable, write_private
from geartrain_cloud.certs import authority as pki
from geartrain_cloud.certs.fleet import Fleet, Paths
from geartrain_cloud.errors import CertificateError


@dataclass(frozen=True, slots=True)
class Asked:
    """A signing request (PEM) for a key, and where the certificate will be."""

    fleet: Fleet
    paths: Paths
    request: str


def asked(folder: Path, kind: str, name: str, *, renew: bool) -> Asked:
    """Ask for a certificate of the key in `folder`, made there unless it is to be renewed; raises
    `CertificateError`.
    """
    fleet = Fleet(folder)
    paths = fleet.paths(kind, name)
    is_waiting = paths.key.exists() and not paths.certificate.exists()  # of a run that was interrupted
    if paths.key.exists() and not (renew or is_waiting):
        raise CertificateError(
            f"{paths.key} is there already and is never overwritten: add --renew for a new certificate of "
            "the same key, or name another folder with --certs"
        )
    if renew and not paths.key.exists():
        raise CertificateError(f"there is no {paths.key} to renew: leave --renew out")
    try:
        if not paths.key.exists():
            write_durable(paths.key, pki.key_pem(pki.new_key()))
        key = pki.load_key(paths.key.read_bytes(), str(paths.key))
    except OSError as error:
        raise CertificateError(f"{paths.key} cannot be used: {error.strerror or error}") from None
    made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return Asked(fleet, paths, pki.pem_of(made).decode())


def keep(one: Asked, certificate: str, authority: str) -> None:
    """Keep what was signed, and who has signed it; raises `CertificateError`."""
    ca = one.fleet.ca
    try:
        if ca.exists() and ca.read_text(encoding="ascii") != authority:
            raise CertificateError(
                f"{ca} is another authority than the platform's: name another folder with --certs"
            )
        write_private(ca, authority)
        write_private(one.paths.certificate, certificate)
    except OSError as error:
        raise CertificateError(f"{one.fleet.folder} cannot be written: {error.strerror or error}") from None
