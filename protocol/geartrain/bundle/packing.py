"""A flow's files made into the archive of a bundle.

Called where a flow is submitted. Guarantees: the archive depends on the files and the versions alone: neither
on times, owners and modes of the files, nor on the order in which they were found. What `Archive` would
refuse is refused here.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping

from geartrain.bundle.archive import Archive
from geartrain.bundle.manifest import MANIFEST, Manifest

_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100600 << 16
_UNIX = 3
_LEVEL = 9


def pack(files: Mapping[str, bytes], *, geartrain: str = "", python: str = "") -> tuple[Manifest, bytes]:
    """The archive of a bundle, and its manifest; raises `BundleError`.

    files: contents by path; geartrain, python: the versions that can run it, such as `>=0.2,<0.3`.
    """
    named = dict(sorted(files.items()))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in named.items()}
    manifest = Manifest(digests, geartrain, python)
    raw = zipped(((MANIFEST, manifest.to_json()), *named.items()))
    Archive(io.BytesIO(raw))
    return manifest, raw


def zipped(files: Iterable[tuple[str, bytes]]) -> bytes:
    """A zip of these files in this order, by path."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files:
            info = zipfile.ZipInfo(name, _TIME)
            info.external_attr, info.create_system = _MODE, _UNIX
            archive.writestr(info, content, zipfile.ZIP_DEFLATED, _LEVEL)
    return out.getvalue()
