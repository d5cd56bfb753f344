"""`python -m geartrain_edge.bundles.fetch`: gets one bundle, or one program, onto a device, and ends.

Between the parent of a device's agents, which starts it, and the platform. It alone imports python-tuf and
cryptography, so that the parent stays small. Its request comes on stdin, its answer is one line on stdout.
Guarantees: nothing is installed that the metadata do not name by an unbroken chain from the first root, which
is pinned; nor anything before the device's time is trusted. What the disk has no room for is not fetched. It
may be killed at any step.
"""

from __future__ import annotations

import os
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from cryptography import x509
from tuf.api import exceptions as tuf
from tuf.ngclient.updater import Updater

import geartrain
from geartrain.adapters.file_lock import locked
from geartrain.adapters.files import make_private_folder, write_durable
from geartrain.adapters.machine import machine
from geartrain.bundle import Archive, ProgramArchive
from geartrain.errors import BundleError, DiskError
from geartrain.printable import printable
from geartrain_edge.bundles.bytecode import bytecode_of
from geartrain_edge.bundles.choice import short
from geartrain_edge.bundles.errors import FetchError
from geartrain_edge.bundles.folder import BundleFolder, is_code
from geartrain_edge.bundles.https import HttpsFetcher, Patience
from geartrain_edge.bundles.request import Answer, Request
from geartrain_edge.bundles.trusted_time import TimeBounds, check_time
from geartrain_edge.errors import own_clock
from geartrain_edge.spool.disk_floor import free_bytes

TRUST, PINNED, SEEN, METADATA = "trust", "pinned.root.json", "seen", "metadata"
_ARCHIVE = ".new-archive"
_ROOT_BYTES_MAX = 512_000
_REQUEST_BYTES_MAX = 1 << 20
_UNPACKED_TIMES = 4
"""What an archive takes besides once it is unpacked, as a multiple of its size, until it is there to say."""
_BYTECODE_TIMES = 2
"""What a program's files take with their bytecode."""
Free = Callable[[Path], int]

_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (tuf.ExpiredMetadataError, "the platform's metadata have expired"),
    (tuf.BadVersionNumberError, "the platform's metadata do not follow on those that this device has seen"),
    (tuf.UnsignedMetadataError, "the platform's metadata are not signed by those whom this device trusts"),
    (tuf.DownloadLengthMismatchError, "more came than the metadata say"),
    (tuf.LengthOrHashMismatchError, "what came is not what the metadata say"),
    (tuf.SlowRetrievalError, "it comes too slowly"),
    (tuf.DownloadHTTPError, "the platform does not give it"),
    (tuf.DownloadError, "it could not be fetched"),
    (tuf.RepositoryError, "the platform's metadata cannot be used"),
)


class DurableUpdater(Updater):
    """python-tuf's client, whose metadata survive a loss of power: what is forgotten could be rolled back."""

    def _persist_file(self, filename: str, data: bytes) -> None:
        write_durable(Path(filename), data)


def main() -> int:
    """Do what the request says; returns 0 when the answer says that it is done."""
    os.umask(0o077)
    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(_REQUEST_BYTES_MAX), type=Request)
        fetch(request)
    except (FetchError, DiskError) as error:
        return _answer(str(error))
    except BundleError as error:
        return _answer(str(error), is_final=True)
    except msgspec.DecodeError as error:
        return _answer(f"the request cannot be read: {error}")
    return _answer("")


def fetch(request: Request, free: Free = free_bytes) -> None:
    """Have what the request names; raises `FetchError`, `DiskError` or `BundleError`.

    free: bytes that are free on the disk of a folder.
    """
    root = Path(request.root)
    folder = BundleFolder(Path(request.programs or root))
    # Another process of this kind may be left from a parent that was killed.
    in_use, unusable = "another process is fetching a bundle just now", f"{root} cannot be written"
    with locked(root / "lock", FetchError, unusable=unusable, taken=in_use):
        try:
            used = {*request.keep, request.code}
            folder.keep(used)
            if request.code and not folder.has(request.code):
                try:
                    _get(request, folder, free)
                finally:
                    folder.keep(used)  # what is left half takes no room until the next time
        except OSError as error:
            raise DiskError(f"{error.filename or root}: {error.strerror or error}") from None


def _get(request: Request, folder: BundleFolder, free: Free) -> None:
    if not is_code(request.code):
        raise FetchError(f"{request.code[:80]!r} names no bundle")
    kind = "program" if request.programs else "bundle"
    trust, now_s = Path(request.root) / TRUST, time.time()
    check_time(now_s, TimeBounds(_begin_of(Path(request.identity)), _seen(trust / SEEN)))
    fetcher = HttpsFetcher(request.url, _context(request), Patience.of(request.patience_s))
    base = request.url.rstrip("/")
    metadata, bundles = f"{base}/v1/trust/", f"{base}/v1/bundles/"
    make_private_folder(trust / METADATA)
    make_private_folder(folder.root)
    archive = folder.root / _ARCHIVE
    try:
        updater = DurableUpdater(
            str(trust / METADATA),
            metadata,
            str(folder.root),
            bundles,
            fetcher,
            bootstrap=_pinned(trust / PINNED, metadata, fetcher),
        )
        updater.refresh()
        write_durable(trust / SEEN, str(int(now_s)).encode())
        found = updater.get_targetinfo(f"{request.code}.zip")
        if found is None:
            raise FetchError(f"{kind} {short(request.code)} is not named by any author's metadata")
        _check_room(request, folder, free, found.length * (1 + _UNPACKED_TIMES))
        updater.download_target(found, str(archive))
    except (tuf.RepositoryError, tuf.DownloadError) as error:
        what = next(text for known, text in _KINDS if isinstance(error, known))
        what = f"{own_clock()} {what}" if isinstance(error, tuf.ExpiredMetadataError) else what
        raise FetchError(
            f"{kind} {short(request.code)} is not installed: {what}: {printable(str(error))}"
        ) from None
    (_unpack_program if request.programs else _unpack)(archive, request, folder, free)


def _check_room(request: Request, folder: BundleFolder, free: Free, needed: int) -> None:
    """Raise `DiskError` where less than the floor would be free with so many bytes more."""
    left = free(folder.root)
    if left < request.floor_bytes + needed:
        kind = "program" if request.programs else "bundle"
        raise DiskError(
            f"{kind} {short(request.code)} is not fetched: it takes up to {_mb(needed)} on the disk of "
            f"{folder.root}, which has {_mb(left)} free, and {_mb(request.floor_bytes)} are to stay free "
            "(spool.free_floor): make room on it"
        )


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _unpack(path: Path, request: Request, folder: BundleFolder, free: Free) -> None:
    """Check what is in the archive, and have it there under its name."""
    code = request.code
    with path.open("rb") as file:
        archive = Archive(file)
        if archive.manifest.code != code:
            raise FetchError(f"bundle {short(code)} holds other code, {short(archive.manifest.code)}")
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        archive.manifest.check_fits(geartrain.__version__, python)
        _check_room(request, folder, free, archive.unpacked_bytes)
        folder.draft(code, archive.files())
    folder.install(code)


def _unpack_program(path: Path, request: Request, folder: BundleFolder, free: Free) -> None:
    """The same for a program, which has to fit this machine and gets its bytecode."""
    code = request.code
    with path.open("rb") as file:
        archive = ProgramArchive(file)
        if archive.manifest.code != code:
            raise FetchError(f"program {short(code)} holds other code, {short(archive.manifest.code)}")
        archive.manifest.check_fits(machine())
        _check_room(request, folder, free, archive.unpacked_bytes * _BYTECODE_TIMES)
        draft = folder.draft(code, archive.files())
        folder.add(code, bytecode_of(draft, folder.path(code)))
    folder.install(code)


def _pinned(path: Path, metadata: str, fetcher: HttpsFetcher) -> bytes:
    """The first root that this device was given by the platform it had joined; it is kept for good."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        root = bytes(fetcher.download_bytes(f"{metadata}1.root.json", _ROOT_BYTES_MAX))
        write_durable(path, root)
        return root


def _context(request: Request) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=request.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(request.identity, password=lambda: "")
    except (OSError, ValueError) as error:
        raise FetchError(f"the device's certificate in {request.identity} cannot be used: {error}") from None
    return context


def _begin_of(certificate: Path) -> int:
    """When a certificate in a PEM file begins."""
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise FetchError(f"the device's certificate in {certificate} cannot be read: {error}") from None
    return int(found.not_valid_before_utc.timestamp())


def _seen(path: Path) -> int:
    try:
        return int(path.read_bytes()[:20])
    except FileNotFoundError:
        return 0
    except ValueError:
        raise DiskError(f"{path} is damaged: remove it, once the device's clock is right") from None


def _answer(why: str, *, is_final: bool = False) -> int:
    sys.stdout.buffer.write(msgspec.json.encode(Answer(why, is_final)) + b"\n")
    sys.stdout.buffer.flush()
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
