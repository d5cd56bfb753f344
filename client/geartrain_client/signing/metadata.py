"""The metadata that authors sign: which keys are trusted (root), and which bundles there are (targets).

Between an author's keys and a platform, which adds a snapshot and a timestamp by keys of its own. Guarantees:
each is made of the former version, so that its number goes up by one and nothing of others is lost. The keys
of authors are those of the former version, but for the one that was asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from securesystemslib.signer import SSlibKey
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Root, Snapshot, TargetFile, Targets, Timestamp

from geartrain.bundle import AUTHOR_FIELD, Manifest, ProgramManifest, target_path
from geartrain.errors import ConfigError
from geartrain_client.errors import FailedError
from geartrain_client.signing.keys import Author

T = TypeVar("T", Root, Targets)

ROOT_LIFE = timedelta(days=365)
TARGETS_LIFE = timedelta(days=365)
TARGETS_KEPT = 200
"""Bundles that are named though no app runs them; above that, those that none runs are left out."""
PROGRAMS_KEPT = 4
"""The same for programs of agents that no device is to run or runs."""
PROGRAM_FIELD = "program"
"""Where the metadata of a program say which one it is."""
PLATFORMS = (Snapshot.type, Timestamp.type)
"""The roles whose keys are the platform's."""


def first_root(author: Author, platform: Mapping[str, SSlibKey], now: datetime) -> Metadata[Root]:
    """The first version: the author's keys, and those of the platform by role."""
    root = Root(expires=_expiry(now, ROOT_LIFE))
    root.add_key(_named(author, author.root.public_key), Root.type)
    root.add_key(_named(author, author.targets.public_key), Targets.type)
    for role in PLATFORMS:
        root.add_key(platform[role], role)
    return _signed_root(root, author)


def next_root(
    former: Metadata[Root],
    author: Author,
    now: datetime,
    *,
    add: tuple[str, SSlibKey] | None = None,
    remove: str = "",
) -> Metadata[Root]:
    """The next version, signed by a key of the former one.

    add: an author's name and public key to be trusted with bundles; remove: the id of a key that is not to be
    trusted any more. Raises `ConfigError`.
    """
    root = Root.from_dict(former.signed.to_dict())
    if author.root.public_key.keyid not in root.roles[Root.type].keyids:
        raise ConfigError(
            f"the keys of {author.name} are not the root of this platform's trust: let the one who signed it "
            "first do that"
        )
    if add is not None:
        name, key = add
        key.unrecognized_fields[AUTHOR_FIELD] = name
        root.add_key(key, Targets.type)
    if remove:
        root.revoke_key(remove, Targets.type)
        if not root.roles[Targets.type].keyids:
            raise ConfigError(
                "that key is the only one that is trusted with bundles: trust another one first"
            )
    root.version += 1
    root.expires = _expiry(now, ROOT_LIFE)
    return _signed_root(root, author)


def next_targets(
    former: Metadata[Targets] | None,
    author: Author,
    now: datetime,
    *,
    target: TargetFile | None = None,
    used: Collection[str] = (),
) -> Metadata[Targets]:
    """The next version, with a bundle or a program more. used: the paths of those that are run."""
    targets = Targets() if former is None else Targets.from_dict(former.signed.to_dict())
    if former is not None:
        targets.version += 1
    if target is not None:
        targets.targets[target.path] = target
    kept = {*used, *([target.path] if target else [])}
    idle = {path for path, one in targets.targets.items() if path not in kept and _is_program(one)}
    if len(idle) > PROGRAMS_KEPT:
        targets.targets = {path: one for path, one in targets.targets.items() if path not in idle}
    if len(targets.targets) > TARGETS_KEPT:
        targets.targets = {path: one for path, one in targets.targets.items() if path in kept}
    targets.expires = _expiry(now, TARGETS_LIFE)
    signed = Metadata(targets)
    signed.sign(author.targets)
    return signed


def target_of(manifest: Manifest, archive: bytes, app: str, flow: str) -> TargetFile:
    """How metadata name a bundle; app and flow, `module:name`, say for whom it was signed last.

    Its archive may differ by the zlib that packed it, so the manifest's hash tells whether it is the same.
    """
    return _target(manifest, archive, {"app": app, "flow": flow})


def target_of_program(manifest: ProgramManifest, archive: bytes) -> TargetFile:
    """How metadata name the program of an agent."""
    return _target(manifest, archive, {PROGRAM_FIELD: f"{manifest.version}, Python {manifest.machine}"})


def _target(manifest: Manifest | ProgramManifest, archive: bytes, said: Mapping[str, str]) -> TargetFile:
    found = TargetFile.from_data(target_path(manifest.code), archive, ["sha256"])
    digest = hashlib.sha256(manifest.to_json()).hexdigest()
    found.unrecognized_fields["custom"] = {**said, "manifest": digest}
    return found


def _is_program(target: TargetFile) -> bool:
    return isinstance(target.custom, dict) and PROGRAM_FIELD in target.custom


def holds(targets: Metadata[Targets] | None, target: TargetFile) -> bool:
    """Whether a bundle with the same content is among these already."""
    known = None if targets is None else targets.signed.targets.get(target.path)
    return known is not None and bool(known.custom) and known.custom["manifest"] == target.custom["manifest"]


def check_trusted(root: Metadata[Root], author: Author) -> None:
    """Raise `ConfigError` where the author is not one whose bundles are trusted."""
    if author.targets.public_key.keyid not in root.signed.roles[Targets.type].keyids:
        raise ConfigError(
            f"the platform does not trust the keys of {author.name} with bundles: let one who may run "
            f"gear key trust {author.public}"
        )


def trusted_authors(root: Metadata[Root]) -> dict[str, str]:
    """By the id of each key that is trusted with bundles, whose it is."""
    found = {}
    for keyid in root.signed.roles[Targets.type].keyids:
        key = root.signed.keys[keyid]
        found[keyid] = str(key.unrecognized_fields.get(AUTHOR_FIELD, ""))
    return found


def is_due(signed: Root | Targets, now: datetime, life: timedelta) -> bool:
    """Whether less than half of its life is left."""
    return signed.expires - now < life / 2


def read_root(text: str) -> Metadata[Root]:
    """Raises `FailedError`."""
    return _read(text, Root)


def read_targets(text: str) -> Metadata[Targets]:
    """Raises `FailedError`."""
    return _read(text, Targets)


def text_of(metadata: Metadata[Root] | Metadata[Targets]) -> str:
    """As it travels."""
    return metadata.to_bytes().decode()


def _read(text: str, kind: type[T]) -> Metadata[T]:
    try:
        found: Metadata[T] = Metadata[T].from_bytes(text.encode())
    except RepositoryError as error:
        raise FailedError(f"the platform's {kind.type} metadata cannot be read: {error}") from None
    if not isinstance(found.signed, kind):
        raise FailedError(f"the platform sent other metadata than those of {kind.type}")
    return found


def _signed_root(root: Root, author: Author) -> Metadata[Root]:
    signed = Metadata(root)
    signed.sign(author.root)
    return signed


def _named(author: Author, key: SSlibKey) -> SSlibKey:
    key.unrecognized_fields[AUTHOR_FIELD] = author.name
    return key


def _expiry(now: datetime, life: timedelta) -> datetime:
    return (now.astimezone(UTC) + life).replace(microsecond=0)
