"""A container image in the layout of OCI, in one tar file, made without any container program.

Two layers: the root file system that the operator names, and the agent on top. Guarantees: each blob has the
digest that names it, and the same input gives the same bytes. The agent runs as a user without rights, needs
no writable root, and keeps its state in a volume. It has its bytecode where the Python here is the target's.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

from geartrain import __version__
from geartrain.errors import MistakeError
from geartrain_client.flash.archive import EPOCH_S, Entry, gzipped, tar
from geartrain_client.flash.bytecode import bytecode, can_compile
from geartrain_client.flash.installer import Content
from geartrain_client.flash.unpacked import VENV, environment

USER = 10_001
"""The user and the group that the agent runs as."""
STATE, CONFIG = "/var/lib/geartrain", "/etc/geartrain"
BASE_BYTES_MAX = 4 << 30

_CREATED = "2024-01-01T00:00:00Z"
_TYPE = "application/vnd.oci.image"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob in a file: its digest and size; diff: the digest of its content before compression."""

    path: Path
    digest: str
    size: int
    diff: str = ""

    def descriptor(self, kind: str) -> dict[str, Any]:
        """As manifests and indexes name it."""
        return {"mediaType": f"{_TYPE}.{kind}", "digest": f"sha256:{self.digest}", "size": self.size}


def write_container(content: Content, base: Path, output: Path) -> None:
    """Write the image as the tar file `output`, 0600; raises `GeartrainError`.

    base: a tar of a root file system with the Python of the target, also .gz or .xz.
    """
    draft = output.with_name(f".{output.name}.new")
    try:
        with tempfile.TemporaryDirectory(prefix=".gear-flash-", dir=output.parent) as work:
            folder = Path(work)
            blobs = _blobs(content, base, folder)
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                _pack(file, blobs, content)
            draft.replace(output)
    except OSError as error:
        raise MistakeError(f"{output} cannot be written: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)


def _blobs(content: Content, base: Path, folder: Path) -> list[Blob]:
    """The layers, then the configuration, then the manifest."""
    _check_base(base, content.target.python)
    with _opened(base) as source:
        below = _compressed(source, folder / "base", base)
    agent = tar(_layer(content))
    above = _blob(folder / "agent", gzipped(agent), hashlib.sha256(agent).hexdigest())
    layers = [below, above]
    config = _blob(folder / "config", _json(_config(content, layers)))
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_TYPE}.manifest.v1+json",
        "config": config.descriptor("config.v1+json"),
        "layers": [layer.descriptor("layer.v1.tar+gzip") for layer in layers],
    }
    return [*layers, config, _blob(folder / "manifest", _json(manifest))]


def _layer(content: Content) -> dict[str, Entry]:
    entries = environment(content.target, content.wheels)
    if can_compile(content.target.python):
        entries |= bytecode(entries)
    for path in (STATE, CONFIG):
        entries[path[1:]] = Entry(mode=0o700, owner=USER)
    if content.join is not None:
        entries[f"{CONFIG[1:]}/join.toml"] = Entry(content.join, 0o600, owner=USER)
    return entries


def _config(content: Content, layers: list[Blob]) -> dict[str, Any]:
    return {
        "created": _CREATED,
        "architecture": content.target.arch,
        "os": "linux",
        **({"variant": "v8"} if content.target.arch == "arm64" else {}),
        "config": {
            "User": f"{USER}:{USER}",
            "Env": [
                f"PATH=/{VENV}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "PYTHONDONTWRITEBYTECODE=1",
                "PYTHONUNBUFFERED=1",
                f"HOME={STATE}",
            ],
            "Entrypoint": [f"/{VENV}/bin/gear-agent"],
            "Cmd": ["--device", f"{CONFIG}/device.toml"],
            "Volumes": {STATE: {}, CONFIG: {}},
            "WorkingDir": STATE,
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "geartrain-agent",
                "org.opencontainers.image.version": __version__,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.diff}" for layer in layers]},
        "history": [
            {"created": _CREATED, "created_by": "the root file system of --base"},
            {"created": _CREATED, "created_by": f"gear flash --container, Geartrain {__version__}"},
        ],
    }


def _pack(file: BinaryIO, blobs: list[Blob], content: Content) -> None:
    """The layout: its version, the index, and the blobs by their digests."""
    platform = {"architecture": content.target.arch, "os": "linux"}
    if content.target.arch == "arm64":
        platform["variant"] = "v8"
    index = {
        "schemaVersion": 2,
        "mediaType": f"{_TYPE}.index.v1+json",
        "manifests": [
            {
                **blobs[-1].descriptor("manifest.v1+json"),
                "platform": platform,
                "annotations": {"org.opencontainers.image.ref.name": f"geartrain-agent:{__version__}"},
            }
        ],
    }
    small = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for folder in ("blobs", "blobs/sha256"):
            archive.addfile(_info(folder, 0, tarfile.DIRTYPE, 0o755))
        for blob in sorted(blobs, key=lambda one: one.digest):
            with blob.path.open("rb") as source:
                archive.addfile(_info(f"blobs/sha256/{blob.digest}", blob.size), source)
        for name, text in sorted(small.items()):
            archive.addfile(_info(name, len(text)), BytesIO(text))


def _info(name: str, size: int, kind: bytes = tarfile.REGTYPE, mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.mode, info.mtime = size, kind, mode, EPOCH_S
    return info


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _blob(path: Path, content: bytes, diff: str = "") -> Blob:
    path.write_bytes(content)
    return Blob(path, hashlib.sha256(content).hexdigest(), len(content), diff)


def _compressed(source: BinaryIO, path: Path, base: Path) -> Blob:
    """The base as a gzip of its own, whatever it came as, so that its bytes depend on its content alone."""
    whole, packed, size, read = hashlib.sha256(), hashlib.sha256(), 0, 0
    squeeze = zlib.compressobj(6, zlib.DEFLATED, 31)  # gzip, with no name and no time
    with path.open("wb") as to:
        while True:
            chunk = source.read(_CHUNK)
            read += len(chunk)
            if read > BASE_BYTES_MAX:
                raise MistakeError(f"--base {base} is larger than {BASE_BYTES_MAX >> 30} GiB")
            whole.update(chunk)
            out = squeeze.compress(chunk) if chunk else squeeze.flush()
            packed.update(out)
            to.write(out)
            size += len(out)
            if not chunk:
                return Blob(path, packed.hexdigest(), size, whole.hexdigest())


def _check_base(base: Path, python: str) -> None:
    """Raise `MistakeError` unless it is a tar that has the Python; its first members may tell it."""
    wanted = {f"usr/bin/python{python}", f"bin/python{python}"}
    with _opened(base) as source, tarfile.open(fileobj=source, mode="r|") as archive:
        if not any(member.name.removeprefix("./").lstrip("/") in wanted for member in archive):
            raise MistakeError(
                f"--base {base} has no /usr/bin/python{python}: install it there, or see --python"
            )


@contextmanager
def _opened(base: Path) -> Iterator[BinaryIO]:
    try:
        with base.open("rb") as file:
            magic = file.read(6)
        opener: Any = (
            lzma.open if magic == b"\xfd7zXZ\x00" else gzip.open if magic[:2] == b"\x1f\x8b" else open
        )
        with opener(base, "rb") as source:
            yield cast(BinaryIO, source)
    except (tarfile.TarError, EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error):
        raise MistakeError(f"--base {base} is no tar file that can be read") from None
    except OSError as error:
        raise MistakeError(f"--base {base} cannot be read: {error.strerror or error}") from None
