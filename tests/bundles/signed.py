"""An author, a repository, and a device's view of it by python-tuf's own client, for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from tuf.api.exceptions import DownloadHTTPError
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from geartrain.bundle import pack, target_path
from geartrain_client.signing.keys import Author, new_author
from geartrain_client.signing.metadata import first_root, next_targets, target_of, text_of
from geartrain_cloud.bundles.files import stored_name
from geartrain_cloud.bundles.repository import Repository

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """A time that tests move."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, time: timedelta) -> None:
        self.now += time


class Here(FetcherInterface):
    """Fetches what a repository serves, without a network."""

    def __init__(self, repository: Repository) -> None:
        self._files = repository.files

    def _fetch(self, url: str) -> Iterator[bytes]:
        kind, _, name = urlsplit(url).path.strip("/").partition("/")
        path = self._files.served_metadata(name) if kind == "trust" else self._files.served_bundle(name)
        if path is None or not path.is_file():
            raise DownloadHTTPError("not found", 404)
        yield path.read_bytes()


def author(folder: Path, name: str = "alice") -> Author:
    return new_author(folder, name)


def begin(repository: Repository, by: Author, now: datetime) -> None:
    """The first root."""
    repository.put_root(text_of(first_root(by, repository.keys, now)).encode())


def send(repository: Repository, files: dict[str, bytes], folder: Path) -> tuple[str, str]:
    """Bring an archive there; the hash of its code, and its name."""
    manifest, raw = pack(files)
    name = stored_name(hashlib.sha256(raw).hexdigest(), target_path(manifest.code))
    draft = folder / "draft.zip"
    draft.write_bytes(raw)
    repository.put_archive(name, draft)
    return manifest.code, name


def publish(
    repository: Repository,
    by: Author,
    files: dict[str, bytes],
    folder: Path,
    now: datetime,
    used: tuple[str, ...] = (),
) -> str:
    """Sign a bundle of these files and bring it there; the hash of its code."""
    manifest, raw = pack(files)
    send(repository, files, folder)
    target = target_of(manifest, raw, "app", "mine.flow:flow")
    targets = next_targets(repository.targets, by, now, target=target)
    repository.put_targets(text_of(targets).encode(), used)
    return manifest.code


def seen_by(repository: Repository, device: Path, code: str) -> bytes | None:
    """The archive that a device gets, whose memory is the folder `device`; None where there is none.

    Raises what python-tuf's client raises for metadata that it does not take.
    """
    metadata, targets = device / "metadata", device / "targets"
    first = not metadata.exists()
    metadata.mkdir(parents=True, exist_ok=True)
    targets.mkdir(exist_ok=True)
    root = repository.files.version("root", 1).read_bytes() if first else None
    updater = Updater(
        str(metadata),
        "https://platform/trust/",
        str(targets),
        "https://platform/bundles/",
        Here(repository),
        UpdaterConfig(prefix_targets_with_hash=True),
        bootstrap=root,
    )
    updater.refresh()
    info = updater.get_targetinfo(target_path(code))
    return None if info is None else Path(updater.download_target(info)).read_bytes()
