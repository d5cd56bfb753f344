"""The wheels that a device installs: resolved for its architecture and Python, and checked by their hashes.

All of it happens where `gear` runs; pip does the work. Guarantees: every wheel is pinned by its SHA-256
before it is fetched, and fetched with `--require-hashes`. Requirements are judged by the device's Python and
machine, not by those of `gear`. With a lock of an earlier run the same wheels are fetched, or none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from geartrain import __version__
from geartrain.errors import MistakeError
from geartrain_client.errors import FailedError
from geartrain_client.flash.target import Target

PARTS = ("geartrain", "geartrain-devices", "geartrain-edge")
"""The distributions of a device, which are built from a checkout where `gear` runs from one."""
AGENT_EXTRA = "fleet"
"""What an agent needs to join a platform and to take signed code from it."""
_FOLDERS = ("protocol", "devices", "edge")
PIP = "pip==25.3"
"""What installs the wheels on the device. Its own pip may be missing, and differs from one to the next."""

_PIP_S_MAX = 900
_ROUNDS_MAX = 8
_METADATA_BYTES_MAX = 1 << 20
_SAID_MAX = 400


@dataclass(frozen=True, slots=True)
class Pin:
    """A distribution of one version and one file."""

    name: str
    version: str
    sha256: str

    @property
    def line(self) -> str:
        """As a file of requirements holds it."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True, slots=True)
class Wheels:
    """What a device installs, by file names; pip is the wheel that does it and is not installed itself."""

    pins: tuple[Pin, ...]
    files: dict[str, bytes]
    pip: tuple[str, bytes]

    @property
    def requirements(self) -> bytes:
        """The file of requirements, which is also the lock of a later run."""
        return "".join(f"{pin.line}\n" for pin in sorted(self.pins, key=lambda one: one.name)).encode()

    @property
    def unpacked_bytes(self) -> int:
        """How much room they take when they are installed, Python's compiled files not counted."""
        return sum(_unpacked(content) for content in self.files.values())


def collect(
    target: Target, extras: Sequence[str], work: Path, *, own: Path | None = None, lock: Path | None = None
) -> Wheels:
    """Resolve and fetch what an installer holds into the folder `work`, which must be empty.

    Takes and raises what `resolve` does, for this version of Geartrain.
    """
    places = own_wheels(work, own)
    pins, files = resolve(target, extras, work, places, lock=lock)
    tool = work / "pip"
    _pip("download", "--quiet", "--no-deps", *_for(target), "--dest", str(tool), PIP, *_links(places))
    [pip] = tool.glob("pip-*.whl")
    return Wheels(pins, files, (pip.name, pip.read_bytes()))


def resolve(
    target: Target,
    extras: Sequence[str],
    work: Path,
    places: tuple[Path, ...],
    *,
    lock: Path | None = None,
    version: str = __version__,
) -> tuple[tuple[Pin, ...], dict[str, bytes]]:
    """Resolve and fetch what an agent of a version of Geartrain needs: its pins, and its wheels by file name.

    extras: of geartrain-edge or geartrain-devices, such as `serial`. work: a folder of its own, in which
    `found` is made. places: folders with wheels, looked into before the index. lock: a file of requirements
    with hashes, as an earlier run gave it. Raises `GeartrainError`.
    """
    found = work / "found"
    pins = (
        _resolve(target, _wanted(extras, places, version), places, work) if lock is None else read_lock(lock)
    )
    _fetch(target, pins, places, work / "requirements.txt", found)
    wheels = {path.name: path.read_bytes() for path in sorted(found.glob("*.whl"))}
    _check_closed(target, wheels, lock)
    return tuple(pins), wheels


def read_lock(path: Path) -> list[Pin]:
    """The pins of a lock; raises `MistakeError`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise MistakeError(f"--lock {path} cannot be read") from None
    pins = []
    for line in filter(None, map(str.strip, lines)):
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.+!_-]+) --hash=sha256:([0-9a-f]{64})", line)
        if match is None:
            raise MistakeError(
                f"--lock {path}: {line[:80]!r} is no line of a lock that gear flash has written"
            )
        pins.append(Pin(canonicalize_name(match[1]), match[2], match[3]))
    if not pins:
        raise MistakeError(f"--lock {path} names no wheel")
    return pins


def own_wheels(work: Path, own: Path | None, version: str = __version__) -> tuple[Path, ...]:
    """The folders to look into beside the index; raises `GeartrainError`.

    own: one that the user has named. With None, the parts of Geartrain are built into `work` where `gear`
    runs from a checkout of this version.
    """
    if own is not None:
        if not own.is_dir():
            raise MistakeError(f"--wheels {own} is no folder")
        return (own.absolute(),)
    checkout = Path(__file__).parents[3]
    folders = [checkout / folder for folder in _FOLDERS]
    if version != __version__ or not all((folder / "pyproject.toml").is_file() for folder in folders):
        return ()
    built = work / "own"
    _pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(built), *map(str, folders))
    return (built,)


def _wanted(extras: Sequence[str], places: tuple[Path, ...], version: str) -> list[str]:
    """The requirements: the agent and the sources of devices, with the extras that each has."""
    offered: dict[str, set[str]] = {}
    for place in places:
        for path in place.glob("geartrain*.whl"):
            metadata = _metadata(path.name, path.read_bytes())
            offered[_name(metadata)] = set(metadata.get_all("Provides-Extra") or ())
    wanted, known = [], set().union(*offered.values())
    for unknown in sorted(set(extras) - known) if offered else ():
        may = ", ".join(sorted(known - {AGENT_EXTRA})) or "none in this version"
        raise MistakeError(f"--with {unknown}: there is no such source; they are {may}")
    for part in PARTS:
        asked = {*extras, AGENT_EXTRA}
        has = sorted(asked & offered[part]) if part in offered else _assumed(part, extras)
        wanted.append(f"{part}[{','.join(has)}]=={version}" if has else f"{part}=={version}")
    return wanted


def _assumed(part: str, extras: Sequence[str]) -> list[str]:
    """The extras of a part whose wheel is not here yet: the index has it."""
    return {"geartrain-devices": sorted(extras), "geartrain-edge": [AGENT_EXTRA]}.get(part, [])


def _resolve(target: Target, wanted: list[str], places: tuple[Path, ...], work: Path) -> list[Pin]:
    """The pins of all that `wanted` needs on the target.

    pip judges markers by the Python that it runs on. So what a wheel needs there is asked of the wheels.
    """
    report, requirements = work / "report.json", list(wanted)
    for _ in range(_ROUNDS_MAX):
        options = ["--dry-run", "--ignore-installed", "--quiet", "--target", str(work / "none")]
        _pip("install", *options, "--report", str(report), *_for(target), *_links(places), *requirements)
        items = json.loads(report.read_text(encoding="utf-8"))["install"]
        metadata = {canonicalize_name(one["metadata"]["name"]): one["metadata"] for one in items}
        needs = {str(name): list(one.get("requires_dist", ())) for name, one in metadata.items()}
        missing = _missing(target, wanted, needs)
        if not missing:
            kept = _reached(target, wanted, needs)
            return [_pin(one) for one in items if canonicalize_name(one["metadata"]["name"]) in kept]
        requirements += missing
    raise FailedError(f"what the wheels for {target.arch} need could not be resolved in {_ROUNDS_MAX} rounds")


def _pin(item: dict[str, Any]) -> Pin:
    archive = item["download_info"].get("archive_info", {})
    sha256 = archive.get("hashes", {}).get("sha256") or archive.get("hash", "").removeprefix("sha256=")
    url = str(item["download_info"]["url"])
    if url.startswith("file://"):
        from urllib.parse import unquote, urlsplit

        sha256 = hashlib.sha256(Path(unquote(urlsplit(url).path)).read_bytes()).hexdigest()
    name, version = canonicalize_name(item["metadata"]["name"]), item["metadata"]["version"]
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise FailedError(f"the package index gives no SHA-256 for {name} {version}: use another index")
    return Pin(name, version, sha256)


def _fetch(target: Target, pins: Iterable[Pin], places: tuple[Path, ...], file: Path, found: Path) -> None:
    file.write_text("".join(f"{pin.line}\n" for pin in pins), encoding="utf-8")
    options = ["--quiet", "--no-deps", "--require-hashes", "--dest", str(found), "--requirement", str(file)]
    _pip("download", *options, *_for(target), *_links(places))


def _check_closed(target: Target, wheels: dict[str, bytes], lock: Path | None) -> None:
    """Raise where a wheel needs another that is not there: the device could not fetch it."""
    metadata = [_metadata(name, content) for name, content in wheels.items()]
    needs = {_name(one): one.get_all("Requires-Dist") or [] for one in metadata}
    missing = _missing(target, [name for name in needs if name in PARTS], needs)
    if missing or set(PARTS) - needs.keys():
        said = ", ".join([*missing, *sorted(set(PARTS) - needs.keys())])
        raise MistakeError(
            f"{lock or 'the wheels'}: {said} is missing for Python {target.python} on {target.arch}"
        )


def _reached(target: Target, wanted: Iterable[str], needs: dict[str, list[str]]) -> dict[str, set[str]]:
    """Every distribution that is needed, with its extras."""
    reached: dict[str, set[str]] = {}
    todo = [Requirement(one) for one in wanted]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in reached and requirement.extras <= reached[name]:
            continue
        extras = reached.setdefault(name, set())
        extras |= requirement.extras
        for text in needs.get(name, ()):
            below = Requirement(text)
            if _holds(below.marker, target, extras):
                todo.append(below)
    return reached


def _missing(target: Target, wanted: Iterable[str], needs: dict[str, list[str]]) -> list[str]:
    """The requirements that the target has and `needs` has no distribution for."""
    absent = _reached(target, wanted, needs).keys() - needs.keys()
    found = [Requirement(text) for texts in needs.values() for text in texts]
    return sorted({f"{one.name}{one.specifier}" for one in found if canonicalize_name(one.name) in absent})


def _holds(marker: Marker | None, target: Target, extras: Iterable[str]) -> bool:
    if marker is None:
        return True
    return any(marker.evaluate({**target.markers, "extra": extra}) for extra in ("", *extras))


def _for(target: Target) -> list[str]:
    platforms = [word for platform in target.platforms for word in ("--platform", platform)]
    return ["--only-binary=:all:", "--implementation", "cp", "--python-version", target.python, *platforms]


def _links(places: tuple[Path, ...]) -> list[str]:
    return [word for place in places for word in ("--find-links", str(place))]


def _metadata(name: str, wheel: bytes) -> Any:
    from io import BytesIO

    try:
        with zipfile.ZipFile(BytesIO(wheel)) as archive:
            [inner] = [
                one for one in archive.infolist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one.filename)
            ]
            if inner.file_size > _METADATA_BYTES_MAX:
                raise MistakeError(f"{name} is no wheel: its metadata are too large")
            return HeaderParser().parsestr(archive.read(inner).decode())
    except (zipfile.BadZipFile, ValueError, UnicodeDecodeError):
        raise MistakeError(f"{name} is no wheel") from None


def _name(metadata: Any) -> str:
    return str(canonicalize_name(metadata["Name"]))


def _unpacked(wheel: bytes) -> int:
    from io import BytesIO

    with zipfile.ZipFile(BytesIO(wheel)) as archive:
        return sum(one.file_size for one in archive.infolist())


def _pip(*words: str) -> None:
    """Run pip; raises `FailedError` with what it says last."""
    if find_spec("pip") is None:
        raise MistakeError(f"gear flash needs pip beside gear: run {sys.executable} -m ensurepip")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *words]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1704067200", "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_PIP_S_MAX, env=environment
        )
    except subprocess.TimeoutExpired:
        raise FailedError(
            f"pip did not answer within {_PIP_S_MAX} s: is the package index reachable?"
        ) from None
    if done.returncode == 0:
        return
    lines = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR")]
    raise FailedError(f"the wheels cannot be had: {' '.join(lines or done.stderr.split())[-_SAID_MAX:]}")
