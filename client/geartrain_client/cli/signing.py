"""`gear key`, and the signing of a flow's code before it is submitted, and of the programs of agents.

Between an author's keys and a platform. Guarantees: what is signed is what the submit names, by its hash.
Where another author has signed meanwhile, it is signed again upon that, a bounded number of times. No key is
sent anywhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from tuf.api.metadata import Metadata, Root, TargetFile, Targets

from geartrain import __version__
from geartrain.bundle import ProgramManifest, pack, project_of, target_path
from geartrain.errors import ConfigError, GeartrainError
from geartrain.printable import printable
from geartrain.revision import contents_of
from geartrain_client.errors import FailedError, RefusedError
from geartrain_client.rest.answers import answer_as
from geartrain_client.rest.platform import SUBMIT_TIMEOUT_S, Platform
from geartrain_client.signing.folder import KEYS, authors, keys_folder
from geartrain_client.signing.keys import (
    Author,
    find_author,
    key_of,
    new_author,
    parse_public,
    read_author,
)
from geartrain_client.signing.metadata import (
    PLATFORMS,
    ROOT_LIFE,
    TARGETS_LIFE,
    check_trusted,
    first_root,
    holds,
    is_due,
    next_root,
    next_targets,
    read_root,
    read_targets,
    target_of,
    target_of_program,
    text_of,
    trusted_authors,
)
from geartrain_client.terminal.screen import notices, print_json, results, table_of

ATTEMPTS = 5
CONFLICT = 409
_VERSION = re.compile(r"(\d+)\.(\d+)")


class _Trust(msgspec.Struct, frozen=True):
    """What a platform says of its bundles; metadata as they were signed, "" for none."""

    keys: dict[str, str]
    root: str = ""
    targets: str = ""
    used: list[str] = []


@dataclass(frozen=True, slots=True)
class Known:
    """The same, read; used: what metadata call the bundles that apps run."""

    keys: dict[str, str]
    root: Metadata[Root] | None
    targets: Metadata[Targets] | None
    used: list[str]


def trust_of(platform: Platform) -> Known:
    """What the platform trusts; raises `GeartrainError`."""
    found = answer_as(_Trust, platform.get("/trust"))
    root = read_root(found.root) if found.root else None
    targets = read_targets(found.targets) if found.targets else None
    return Known(found.keys, root, targets, [target_path(code) for code in found.used])


def sign_flow(platform: Platform, flow: str, app: str, key: str | None) -> None:
    """Pack the flow's code, sign it and bring it to the platform, unless it has it already.

    key: the author's name, None for the only one. Raises `GeartrainError`.
    """
    author = _author(key)
    geartrain, python = _fitting(flow)
    manifest, archive = pack(contents_of(flow), geartrain=geartrain, python=python)
    _sign(platform, author, target_of(manifest, archive, app, flow), archive, "/bundles")


def sign_program(platform: Platform, manifest: ProgramManifest, archive: bytes, key: str | None) -> None:
    """Sign the program of an agent and bring it to the platform, as `sign_flow` does with code."""
    _sign(platform, _author(key), target_of_program(manifest, archive), archive, "/programs")


def _sign(platform: Platform, author: Author, target: TargetFile, archive: bytes, place: str) -> None:
    def sign() -> None:
        now, known = datetime.now(UTC), _with_root(platform, author)
        is_there = holds(known.targets, target)
        if is_there and known.targets and not is_due(known.targets.signed, now, TARGETS_LIFE):
            return
        if not is_there:
            digest = hashlib.sha256(archive).hexdigest()
            platform.send(f"{place}/{digest}.{target.path}", archive)
        more = None if is_there else target
        made = next_targets(known.targets, author, now, target=more, used=known.used)
        _send(platform, "/trust/targets", made)

    _again(sign)


def _fitting(flow: str) -> tuple[str, str]:
    """The versions of Geartrain and of Python that can run a flow: those of its project, else from this one
    of Geartrain to the next with changes.
    """
    from importlib.util import find_spec

    spec = find_spec(flow.partition(":")[0].partition(".")[0])
    places = list(spec.submodule_search_locations or ()) if spec else []
    root = Path(places[0]).parent if places else Path(spec.origin or "").parent if spec else Path()
    found = project_of(root)
    geartrain, python = (found[1].geartrain, found[1].python) if found else ("", "")
    ours = _VERSION.match(__version__)
    if not geartrain and ours:
        geartrain = f">={ours[1]}.{ours[2]},<{ours[1]}.{int(ours[2]) + 1}"
    return geartrain, python


def _with_root(platform: Platform, author: Author) -> Known:
    """What the platform trusts, once it has a root that trusts the author: the first one is made where there
    is none, and the next where half of its life is over.
    """
    now, known = datetime.now(UTC), trust_of(platform)
    if known.root is None:
        made = first_root(author, {role: key_of(known.keys[role]) for role in PLATFORMS}, now)
        _send(platform, "/trust/root", made)
        notices().print(f"the platform trusts the keys of {author.name} from now on", soft_wrap=True)
        return trust_of(platform)
    check_trusted(known.root, author)
    ours = author.root.public_key.keyid in known.root.signed.roles[Root.type].keyids
    if ours and is_due(known.root.signed, now, ROOT_LIFE):
        _send(platform, "/trust/root", next_root(known.root, author, now))
    return known


def _send(platform: Platform, path: str, metadata: Metadata[Root] | Metadata[Targets]) -> None:
    platform.change("POST", path, {"metadata": text_of(metadata)}, SUBMIT_TIMEOUT_S)


def _again(sign: Callable[[], None]) -> None:
    """Do it, and once more upon what another author has signed meanwhile."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            sign()
            break
        except RefusedError as error:
            if error.status != CONFLICT or attempt == ATTEMPTS:
                raise


# The commands


def new_key(name: str) -> None:
    """Make an author's keys; raises `ConfigError`."""
    folder = keys_folder()
    made = new_author(folder, name)
    results().print(
        printable(f"made keys of {name} in {folder}: keep a copy in a safe place"), soft_wrap=True
    )
    results().print(printable(f"public key: {made.public}"), soft_wrap=True)


def show_key(name: str | None) -> None:
    """Print an author's public key; raises `ConfigError`."""
    results().print(printable(_author(name).public), soft_wrap=True)


def list_keys(find: Callable[[], Platform], *, as_json: bool) -> None:
    """Print the authors whose keys are here, and those whom the platform trusts; raises `GeartrainError`.

    find: gives the platform, and raises where none can be asked.
    """
    folder = keys_folder()
    here = {read_author(folder, name).targets.public_key.keyid: name for name in authors(folder)}
    trusted, until, why = dict[str, str](), "", ""
    try:
        known = trust_of(find())
        if known.root is not None:
            trusted, until = trusted_authors(known.root), f"{known.root.signed.expires:%Y-%m-%d}"
    except GeartrainError as error:
        why = str(error)
    rows = [
        {
            "name": here.get(one) or trusted.get(one, ""),
            "here": one in here,
            "trusted": one in trusted,
            "id": one,
        }
        for one in {**here, **trusted}
    ]
    if as_json:
        print_json({"folder": str(folder), "keys": rows, "root_until": until})
        return
    if not rows:
        results().print(printable(f"there are no keys in {folder} ({KEYS}): gear key new makes some"))
    else:
        lines = [
            [
                str(row["name"]),
                "yes" if row["here"] else "",
                "yes" if row["trusted"] else "",
                str(row["id"])[:12],
            ]
            for row in rows
        ]
        results().print(table_of("", ["author", "keys here", "trusted", "id"], lines))
    if why:
        notices().print(printable(f"whom a platform trusts is not known: {why}"), soft_wrap=True)


def trust_key(platform: Platform, public: str, key: str | None) -> None:
    """Have the platform and its devices trust another author; raises `GeartrainError`."""
    name, other = parse_public(public)
    author = _author(key)

    def sign() -> None:
        known = _with_root(platform, author)
        if known.root is None:
            raise FailedError("the platform has taken a root, and does not show it: see its log")
        if other.keyid not in trusted_authors(known.root):
            _send(
                platform, "/trust/root", next_root(known.root, author, datetime.now(UTC), add=(name, other))
            )

    _again(sign)
    results().print(printable(f"the platform and its devices trust bundles of {name}"), soft_wrap=True)


def distrust_key(platform: Platform, public: str, key: str | None) -> None:
    """Have an author trusted no more, when the bundles that there are were signed anew by another; raises
    `GeartrainError`.
    """
    name, other = parse_public(public)
    author = _author(key)

    def sign() -> None:
        known, now = _with_root(platform, author), datetime.now(UTC)
        if known.root is None or other.keyid not in trusted_authors(known.root):
            raise ConfigError(f"the platform does not trust this key of {name}: see gear key ls")
        made = next_root(known.root, author, now, remove=other.keyid)
        if known.targets is not None:
            _send(platform, "/trust/targets", next_targets(known.targets, author, now, used=known.used))
        _send(platform, "/trust/root", made)

    _again(sign)
    results().print(
        printable(
            f"bundles that {name} signs are not taken any more; those that there are were signed anew by "
            f"{author.name}: see that each app runs what it should"
        ),
        soft_wrap=True,
    )


def check_author(key: str | None) -> None:
    """Raise `ConfigError` where there is nobody who could sign."""
    _author(key)


def _author(key: str | None) -> Author:
    author = find_author(keys_folder(), key)
    if author is None:
        raise ConfigError(f"there are no keys in {keys_folder()}: make some with gear key new")
    return author
