"""The platform's repository of bundles, by TUF's roles: root and targets come signed by authors; snapshot
and timestamp are the platform's own.

Beside the record's path: control changes it, devices are served its files. Guarantees:

- Metadata are taken only with the signatures that the trusted root asks for, and as the next version.
- What is in force is what `timestamp.json` names. It is replaced last, in one durable step, when all that it
  names is durable. A kill at any step leaves the former or the next state in force, and nothing half.
- Snapshot and timestamp are signed anew when less than half of their life is left.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.signer import CryptoSigner, SSlibKey
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, Targets, Timestamp

from geartrain.adapters.files import make_private_folder, replace_durably, write_durable, write_tree
from geartrain.adapters.tls import check_private
from geartrain.bundle import AUTHOR_FIELD, Archive, target_path
from geartrain.bundle.archive import ManifestArchive
from geartrain.errors import BundleError, ConfigError
from geartrain.printable import printable
from geartrain_cloud.bundles.files import BundleFiles, code_of_target, split_stored, stored_name
from geartrain_cloud.errors import TrustConflictError, TrustError

METADATA_BYTES_MAX = 500_000
"""Of a root or of targets: devices take no more of a root."""
TARGETS_MAX = 1_000
TARGETS_BYTES_MAX = 16 << 30
"""Of all archives that metadata name."""
SNAPSHOT_LIFE = timedelta(days=7)
TIMESTAMP_LIFE = timedelta(days=1)
UNUSED_S = 3_600.0
"""How long an archive may wait for the metadata that name it, and one that was replaced is served on."""
ROLES = (Snapshot.type, Timestamp.type)

T = TypeVar("T", Root, Targets, Snapshot, Timestamp)


class Repository:
    """The bundles below `folder`, for one process at a time."""

    def __init__(self, folder: Path, now: Callable[[], datetime]) -> None:
        """Open it, and make the platform's keys where there are none; `now`: the time in UTC.

        Raises `TrustError`.
        """
        self.files, self._now = BundleFiles(folder), now
        try:
            for place in (self.files.metadata, self.files.stored, self.files.code):
                make_private_folder(place)
            self._signers = {role: self._signer(role) for role in ROLES}
        except OSError as error:
            raise TrustError(f"the bundles in {folder} cannot be opened: {error.strerror or error}") from None
        self._root = self._newest_root()
        self._targets: Metadata[Targets] | None = None
        self._snapshot: Metadata[Snapshot] | None = None
        self._timestamp: Metadata[Timestamp] | None = None
        if self.files.timestamp.exists():
            self._timestamp = self._stored(Timestamp, self.files.timestamp)
            self._snapshot = self._stored(
                Snapshot, self.files.version(Snapshot.type, self._timestamp.signed.snapshot_meta.version)
            )
            number = self._snapshot.signed.meta["targets.json"].version
            self._targets = self._stored(Targets, self.files.version(Targets.type, number))

    # What is in force

    @property
    def keys(self) -> dict[str, SSlibKey]:
        """The platform's public keys by role."""
        return {role: signer.public_key for role, signer in self._signers.items()}

    @property
    def root(self) -> Metadata[Root] | None:
        """The newest root; None where no author has signed one yet."""
        return self._root

    @property
    def targets(self) -> Metadata[Targets] | None:
        """The bundles that there are."""
        return self._targets

    @property
    def authors(self) -> dict[str, str]:
        """By the id of each key that is trusted with bundles, whose it is."""
        if self._root is None:
            return {}
        keys, ids = self._root.signed.keys, self._root.signed.roles[Targets.type].keyids
        return {one: str(keys[one].unrecognized_fields.get(AUTHOR_FIELD, "")) for one in ids if one in keys}

    @property
    def codes(self) -> dict[str, dict[str, Any]]:
        """By the hash of each bundle's or program's code, what its author says of it."""
        found = {} if self._targets is None else self._targets.signed.targets
        return {code_of_target(path): dict(one.custom or {}) for path, one in found.items()}

    def archive(self, code: str) -> Path | None:
        """The archive of this code, where a trusted author has signed it."""
        if self._targets is None or (target := self._targets.signed.targets.get(target_path(code))) is None:
            return None
        return self.files.stored / stored_name(target.hashes["sha256"], target.path)

    def unpacked(self, code: str) -> Path | None:
        """A folder with the files of this code, made where it is not there yet; None where nobody has signed
        it. Raises `TrustError`.
        """
        archive, folder = self.archive(code), self.files.code / code
        if archive is None or folder.is_dir():
            return None if archive is None else folder
        try:
            with archive.open("rb") as file:
                write_tree(folder, Archive(file).files())
        except (BundleError, OSError) as error:
            raise TrustError(f"bundle {code[:12]} cannot be unpacked: {error}") from None
        return folder

    # Changes

    def put_root(self, raw: bytes) -> None:
        """Take the first root, or the next one, which a key of the former has signed.

        Raises `TrustError`, and `TrustConflictError` where its number is not the next.
        """
        given = self._read(Root, raw)
        root = given.signed
        self._check_next(Root.type, root.version, self._root.signed.version if self._root else 0)
        former = None if self._root is None else self._root.signed
        found = root.get_root_verification_result(former, given.signed_bytes, given.signatures)
        if not found:
            raise TrustError(
                "the root is not signed by those whom the former root trusts: sign it with the keys that "
                "signed that one"
            )
        for role, signer in self._signers.items():
            if signer.public_key.keyid not in root.roles[role].keyids:
                raise TrustError(
                    f"the root does not name this platform's key of the role {role}: ask for it anew"
                )
        if not root.consistent_snapshot:
            raise TrustError("the root must be one with consistent snapshots")
        self._check_life(root)
        if self._targets is not None and not root.get_verification_result(
            Targets.type, self._targets.signed_bytes, self._targets.signatures
        ):
            raise TrustError(
                "with this root the bundles that there are would not be trusted: sign them with a key that "
                "stays, and then take the other one away"
            )
        self._write(self.files.version(Root.type, root.version), raw)
        self._root = given

    def put_archive(
        self, name: str, draft: Path, kind: Callable[[BinaryIO], ManifestArchive[Any]] = Archive
    ) -> None:
        """Take an archive, a file that may be moved, under the name `SHA256.CODE.zip`; it is served when
        metadata name it. kind: `Archive` for a bundle, `ProgramArchive` for a program.

        Raises `TrustError` for one that is not what its name says.
        """
        if (named := split_stored(name)) is None:
            raise TrustError(f"{printable(name[:80])} is no name of a bundle: write SHA256.CODE.zip")
        try:
            with draft.open("rb") as file:
                archive = kind(file)
                archive.check()
                file.seek(0)
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if (digest, archive.manifest.code) != named:
                raise TrustError("the bundle is another one than its name says: its hashes differ")
            draft.chmod(0o600)
            replace_durably(self.files.stored / name, draft)
        except BundleError as error:
            raise TrustError(str(error)) from None
        except OSError as error:
            raise TrustError(f"the bundle cannot be kept: {error.strerror or error}") from None

    def put_targets(self, raw: bytes, used: Collection[str]) -> None:
        """Take the next version of targets, and sign a snapshot and a timestamp that name it.

        used: hashes of code that apps run, whose bundles must stay. Raises `TrustError`, and
        `TrustConflictError` where its number is not the next.
        """
        given = self._read(Targets, raw)
        targets = given.signed
        if self._root is None:
            raise TrustError("there is no root yet by which bundles could be trusted")
        self._check_next(Targets.type, targets.version, self._targets.signed.version if self._targets else 0)
        if not self._root.signed.get_verification_result(Targets.type, given.signed_bytes, given.signatures):
            raise TrustError(
                "the bundles are not signed by a key that the platform's root trusts: let one who may run "
                "gear key trust with your public key"
            )
        self._check_life(targets)
        self._check_targets(targets, used)
        self._write(self.files.version(Targets.type, targets.version), raw)
        self._publish(given)
        self.tidy(used)

    def _check_targets(self, targets: Targets, used: Collection[str]) -> None:
        if targets.delegations is not None:
            raise TrustError("targets must not delegate: trust another author with gear key trust")
        if len(targets.targets) > TARGETS_MAX:
            raise TrustError(f"there are {len(targets.targets):,} bundles; {TARGETS_MAX:,} are the most")
        if (size := sum(target.length for target in targets.targets.values())) > TARGETS_BYTES_MAX:
            most = TARGETS_BYTES_MAX >> 30
            raise TrustError(f"the bundles and programs have {size >> 30} GiB; {most} are the most")
        for path, target in targets.targets.items():
            if not code_of_target(path) or "sha256" not in target.hashes:
                raise TrustError(f"{printable(path[:80])} is no bundle: write CODE.zip, with its sha256")
            stored = self.files.stored / stored_name(target.hashes["sha256"], path)
            if not stored.is_file() or stored.stat().st_size != target.length:
                raise TrustError(f"bundle {path[:12]} was not sent before the metadata that name it")
        had = self._targets.signed.targets if self._targets else {}
        if gone := [code for code in used if target_path(code) in had.keys() - targets.targets.keys()]:
            raise TrustError(f"bundle {gone[0][:12]} is left out, which an app runs: keep it")

    def refresh(self) -> bool:
        """Sign snapshot and timestamp anew where that is due; whether it was. Raises `TrustError`."""
        if self._targets is None or self._snapshot is None or self._timestamp is None:
            return False
        now, found = self._now(), self._snapshot.signed.expires - self._now() < SNAPSHOT_LIFE / 2
        if found:
            self._publish(self._targets)
        elif found := self._timestamp.signed.expires - now < TIMESTAMP_LIFE / 2:
            self._stamp(self._snapshot)
        return found

    def _publish(self, targets: Metadata[Targets]) -> None:
        """Sign a snapshot that names these targets, and the timestamp that brings both in force."""
        former = self._snapshot.signed.version if self._snapshot else 0
        snapshot = Metadata(
            Snapshot(
                self._version(former),
                expires=self._expiry(SNAPSHOT_LIFE),
                meta={"targets.json": MetaFile(targets.signed.version)},
            )
        )
        snapshot.sign(self._signers[Snapshot.type])
        self._write(self.files.version(Snapshot.type, snapshot.signed.version), snapshot.to_bytes())
        self._stamp(snapshot)
        self._snapshot, self._targets = snapshot, targets

    def _stamp(self, snapshot: Metadata[Snapshot]) -> None:
        former = self._timestamp.signed.version if self._timestamp else 0
        timestamp = Metadata(
            Timestamp(
                self._version(former),
                expires=self._expiry(TIMESTAMP_LIFE),
                snapshot_meta=MetaFile(snapshot.signed.version),
            )
        )
        timestamp.sign(self._signers[Timestamp.type])
        self._write(self.files.timestamp, timestamp.to_bytes())
        self._timestamp = timestamp

    def _version(self, former: int) -> int:
        """The next number: at least the time in seconds. So a platform that was restored from a copy gives
        out no number that devices have seen.
        """
        return max(former + 1, int(self._now().timestamp()))

    def _expiry(self, life: timedelta) -> datetime:
        return (self._now() + life).replace(microsecond=0)

    def tidy(self, used: Collection[str]) -> None:
        """Remove what nothing in force names any more: archives, code that no app in `used` runs, and
        former versions. What cannot be removed stays until the next time.
        """
        targets = self._targets.signed.targets if self._targets else {}
        named = {stored_name(one.hashes["sha256"], path) for path, one in targets.items()}
        with suppress(OSError):
            for path in self.files.stored.iterdir():
                if path.name not in named and time.time() - path.stat().st_mtime > UNUSED_S:
                    path.unlink()
            for path in self.files.code.iterdir():
                if path.name not in used and time.time() - path.stat().st_mtime > UNUSED_S:
                    shutil.rmtree(path)
            for path in self._former():
                path.unlink()

    def _former(self) -> Iterator[Path]:
        """Snapshots and targets that are not in force and were not written just now."""
        newest = {Snapshot.type: self._snapshot, Targets.type: self._targets}
        for role, kept in newest.items():
            for path in self.files.metadata.glob(f"*.{role}.json"):
                number = path.name.partition(".")[0]
                is_old = number.isdecimal() and kept is not None and int(number) < kept.signed.version
                if is_old and time.time() - path.stat().st_mtime > UNUSED_S:
                    yield path

    # Files

    def _signer(self, role: str) -> CryptoSigner:
        path = self.files.key(role)
        if not path.exists():
            write_durable(path, CryptoSigner.generate_ed25519().private_bytes)
        try:
            check_private(f"the platform's key of {role}", path)
            return CryptoSigner(load_pem_private_key(path.read_bytes(), None))
        except (ConfigError, ValueError, TypeError) as error:
            raise TrustError(f"the platform's key {path} cannot be used: {error}") from None

    def _newest_root(self) -> Metadata[Root] | None:
        number = 1
        while self.files.version(Root.type, number + 1).exists():
            number += 1
        path = self.files.version(Root.type, number)
        return self._stored(Root, path) if path.exists() else None

    def _stored(self, kind: type[T], path: Path) -> Metadata[T]:
        try:
            return self._read(kind, path.read_bytes())
        except (OSError, TrustError) as error:
            raise TrustError(f"{path} cannot be read ({error}): bring it back from a copy") from None

    def _read(self, kind: type[T], raw: bytes) -> Metadata[T]:
        if len(raw) > METADATA_BYTES_MAX:
            raise TrustError(f"the metadata have {len(raw):,} bytes; {METADATA_BYTES_MAX:,} are the most")
        try:
            found = Metadata[T].from_bytes(raw)
        except (RepositoryError, RecursionError) as error:
            raise TrustError(f"the metadata of {kind.type} cannot be read: {printable(str(error))}") from None
        if not isinstance(found.signed, kind):
            raise TrustError(f"these are metadata of {found.signed.type}, and not of {kind.type}")
        return found

    def _write(self, path: Path, raw: bytes) -> None:
        try:
            write_durable(path, raw)
        except OSError as error:
            raise TrustError(f"{path} cannot be written: {error.strerror or error}") from None

    @staticmethod
    def _check_next(role: str, given: int, former: int) -> None:
        if given != former + 1:
            raise TrustConflictError(
                f"version {given} of {role} was sent, and the next is {former + 1}: fetch it and sign again"
            )

    def _check_life(self, signed: Root | Targets) -> None:
        if signed.expires <= self._now():
            raise TrustError(f"the metadata of {signed.type} have expired: set this machine's clock")
