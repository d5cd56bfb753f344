"""An author's keys: Ed25519, one for the role root and one for targets, in a folder of whoever runs `gear`.

Before anything is signed. Guarantees: a key that is there is never overwritten. Its file is for its owner
alone, is written whole, and is read only where nobody else may read it. No key leaves its file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.signer import CryptoSigner, SSlibKey

from geartrain.adapters.files import make_private_folder, write_durable
from geartrain.adapters.tls import check_private
from geartrain.errors import ConfigError
from geartrain.printable import printable
from geartrain_client.signing.folder import ROOT, TARGETS, authors

_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_PUBLIC = re.compile(r"([A-Za-z0-9_-]{1,40}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Author:
    """Who signs: the name, and a key for each role."""

    name: str
    root: CryptoSigner
    targets: CryptoSigner

    @property
    def public(self) -> str:
        """What others trust this author by."""
        return public_text(self.name, self.targets.public_key)


def new_author(folder: Path, name: str) -> Author:
    """Make keys; raises `ConfigError` where there are some of this name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"--name {printable(name[:60])}: use 1 to 40 letters, digits, '_' and '-'")
    if name in authors(folder):
        raise ConfigError(
            f"there are keys of {name} in {folder}, and keys are never overwritten: give another --name"
        )
    try:
        make_private_folder(folder)
        for role in (ROOT, TARGETS):  # in this order: who has the second one has both
            write_durable(_path(folder, name, role), CryptoSigner.generate_ed25519().private_bytes)
    except OSError as error:
        raise ConfigError(f"keys cannot be written to {folder}: {error.strerror or error}") from None
    return read_author(folder, name)


def find_author(folder: Path, name: str | None = None) -> Author | None:
    """The author of this name, or the only one there is; None for no keys at all.

    Raises `ConfigError`, also where there are several and none is named.
    """
    known = authors(folder)
    if name is None and not known:
        return None
    if name is None and len(known) > 1:
        raise ConfigError(f"there are keys of {', '.join(known)} in {folder}: name one with --key")
    return read_author(folder, known[0] if name is None else name)


def read_author(folder: Path, name: str) -> Author:
    """The author of this name; raises `ConfigError`."""
    if name not in authors(folder):
        raise ConfigError(f"there are no keys of {printable(name[:60])} in {folder}: see gear key ls")
    return Author(name, _read(_path(folder, name, ROOT)), _read(_path(folder, name, TARGETS)))


def _path(folder: Path, name: str, role: str) -> Path:
    return folder / f"{name}.{role}.pem"


def _read(path: Path) -> CryptoSigner:
    check_private("the key", path)
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ConfigError(
            f"the key {path} cannot be read: {error.strerror or 'no reason is given'}"
        ) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(
            f"the key {path} cannot be read: it is no private key in PEM without a password: bring it back "
            "from a copy, or make one by gear key new"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"the key {path} is not one of Ed25519: gear key new makes such keys")
    return CryptoSigner(key)


def public_text(name: str, key: SSlibKey) -> str:
    """A public key as one word: the author's name and 64 hexadecimal digits."""
    return f"{name}:{key.keyval['public']}"


def parse_public(text: str) -> tuple[str, SSlibKey]:
    """The author's name and the key of such a word; raises `ConfigError`."""
    found = _PUBLIC.fullmatch(text.strip())
    if found is None:
        raise ConfigError(
            f"{printable(text[:80])!r} is no public key: give what gear key show prints, NAME:64 digits"
        )
    return found[1], key_of(found[2])


def key_of(public: str) -> SSlibKey:
    """The key of 64 hexadecimal digits, with the id by which metadata call it."""
    return SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)))
