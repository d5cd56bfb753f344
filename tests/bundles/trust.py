"""A repository of bundles as an author and a platform keep it, by python-tuf's own metadata API, and a real
HTTPS server before it that can be told to misbehave. Whoever attacks has the keys that a test names.
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import http.server
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import (
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)

from tests.waiting import WAIT_S

ROLES = ("root", "targets", "snapshot", "timestamp")
Answer = Callable[[http.server.BaseHTTPRequestHandler], bool]


class Repository:
    """What the platform serves: paths below `/v1/` with their bytes."""

    def __init__(self) -> None:
        self.keys = {role: CryptoSigner.generate_ed25519() for role in ROLES}
        self.files: dict[str, bytes] = {}
        self.before: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.tricks: dict[str, Answer] = {}
        later = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
        self.root = Metadata(Root(consistent_snapshot=True, expires=later))
        self.targets = Metadata(Targets(expires=later))
        self.snapshot = Metadata(Snapshot(expires=later))
        self.timestamp = Metadata(Timestamp(expires=later))
        self.root.signed.version = self.targets.signed.version = self.snapshot.signed.version = (
            self.timestamp.signed.version
        ) = 0
        for role in ROLES:
            self.root.signed.add_key(self.keys[role].public_key, role)
        self.publish_root()
        self.publish()

    def publish_root(self, *signers: CryptoSigner) -> None:
        """The next root, signed with the root's key or others."""
        self.root.signed.version += 1
        self.root.signatures.clear()
        for signer in signers or (self.keys["root"],):
            self.root.sign(signer, append=True)
        self.files[f"trust/{self.root.signed.version}.root.json"] = self.root.to_bytes()

    def publish(self, *, targets: bool = True, snapshot: bool = True) -> None:
        """The next targets, snapshot and timestamp, signed with the keys that are here."""
        if targets:
            self._sign("targets", self.targets)
            self.files[f"trust/{self.targets.signed.version}.targets.json"] = self.targets.to_bytes()
        if snapshot:
            self.snapshot.signed.meta["targets.json"] = MetaFile(self.targets.signed.version)
            self._sign("snapshot", self.snapshot)
            self.files[f"trust/{self.snapshot.signed.version}.snapshot.json"] = self.snapshot.to_bytes()
        self.timestamp.signed.snapshot_meta = MetaFile(self.snapshot.signed.version)
        self._sign("timestamp", self.timestamp)
        self.files["trust/timestamp.json"] = self.timestamp.to_bytes()

    def _sign(self, role: str, metadata: Metadata[Any]) -> None:
        metadata.signed.version += 1
        metadata.sign(self.keys[role])

    def add(self, code: str, archive: bytes, served: bytes | None = None) -> None:
        """Name a bundle in the targets, and serve it; `served`: what comes in its place."""
        target = TargetFile.from_data(f"{code}.zip", archive, ["sha256"])
        self.targets.signed.targets[f"{code}.zip"] = target
        self.files[f"bundles/{target.hashes['sha256']}.{code}.zip"] = archive if served is None else served

    def path_of(self, code: str) -> str:
        """Under which path its archive is served."""
        return next(path for path in self.files if path.endswith(f".{code}.zip"))

    def copy(self) -> dict[str, bytes]:
        """What is served now."""
        return dict(self.files)


class _Quiet(http.server.ThreadingHTTPServer):
    """Devices end connections whenever they like."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Nobody reads it."""


class PlatformServer:
    """The platform's device listener: HTTPS on loopback; a bundle needs a certificate of its authority."""

    def __init__(self, repository: Repository, ca: Path, certificate: Path, key: Path) -> None:
        self.repository = repository
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *words: object) -> None:
                """Nobody reads it."""

        self._server = _Quiet(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_REQUIRED
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serve nothing more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """One request."""
        path = handler.path.removeprefix("/v1/")
        self.repository.asked.append(path)
        for part, trick in self.repository.tricks.items():
            if part in path and trick(handler):
                handler.close_connection = True
                return
        content = self.repository.files.get(path)
        handler.send_response(404 if content is None else 200)
        handler.send_header("Content-Length", str(len(content or b"")))
        handler.end_headers()
        handler.wfile.write(content or b"")


def endless(handler: http.server.BaseHTTPRequestHandler) -> bool:
    """Bytes for as long as anybody takes them."""
    handler.send_response(200)
    handler.end_headers()
    for part in _pieces(b"\0" * 65_536, 0.0):
        handler.wfile.write(part)
    return True


def dripping(handler: http.server.BaseHTTPRequestHandler) -> bool:
    """A byte now and then."""
    handler.send_response(200)
    handler.end_headers()
    for part in _pieces(b"{", 0.05):
        handler.wfile.write(part)
        handler.wfile.flush()
    return True


def silent(handler: http.server.BaseHTTPRequestHandler) -> bool:
    """A head that comes by letters."""
    for part in _pieces(b"H", 0.05):
        handler.wfile.write(part)
        handler.wfile.flush()
    return True


def _pieces(part: bytes, pause_s: float) -> Iterator[bytes]:
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        yield part
        time.sleep(pause_s)
