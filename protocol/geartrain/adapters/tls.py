"""The key `broker` of a configuration file: an address, or a table that says how to reach it over TLS.

The agent, ingest and the sender read it before they connect to anything, and so do sources and sinks that
speak MQTT for the same four keys among their options. Guarantees: with TLS the broker's certificate and name
are always checked, and nothing turns that off. A private key that others may read is refused. Whatever is
wrong is one `ConfigError` that names the key.
"""

from __future__ import annotations

import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.configuration import convert_as, host_and_port
from geartrain.errors import ConfigError

OTHERS = 0o077
"""The bits of a mode that let others than its owner at a file."""


class BrokerTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[broker]`. ca: PEM of who may sign the broker's certificate, else whom the system trusts;
    certificate, key: PEM of what this process shows (mutual TLS).
    """

    address: str
    tls: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""


class Broker(msgspec.Struct, frozen=True):
    """Where the broker is, and what a connection to it is protected with; `tls_context` None: nothing."""

    host: str
    port: int
    tls_context: ssl.SSLContext | None = None


def broker_of(raw: str | BrokerTable, folder: Path) -> Broker:
    """The broker that the key `broker` names; relative paths are taken from `folder`.

    Raises `ConfigError` that begins with the key, when a file of it cannot be read or used, too.
    """
    table = BrokerTable(raw) if isinstance(raw, str) else raw
    try:
        host, port = host_and_port(table.address)
    except ConfigError as error:
        raise ConfigError(f"{'broker' if isinstance(raw, str) else 'broker.address'}: {error}") from None
    return Broker(host, port, context_of(table, folder, "broker"))


def parse_broker(raw: Any, folder: Path) -> Broker:
    """`broker_of` of what a TOML file holds under that key; raises `ConfigError`."""
    if not isinstance(raw, str | dict):
        raise ConfigError(f'broker: give host:port, such as "127.0.0.1:1883", or a table, not {raw!r}')
    return broker_of(raw if isinstance(raw, str) else convert_as(raw, BrokerTable, "broker"), folder)


def context_of(table: BrokerTable, folder: Path, where: str, key: str = "key") -> ssl.SSLContext | None:
    """What protects a connection, None for nothing; relative paths are taken from `folder`.

    Raises `ConfigError` that begins with an option's name, `where` and a point before it; `key` is what the
    option of the key is called there.
    """
    if not table.tls:
        for name, value in (("ca", table.ca), ("certificate", table.certificate), (key, table.key)):
            if value:
                raise ConfigError(f"{where}.{name} is for TLS: write tls = true beside it")
        return None
    if bool(table.certificate) != bool(table.key):
        raise ConfigError(f"{where}.certificate and {where}.{key} belong together: give both, or neither")
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)  # which demands a certificate and checks its name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if table.ca:
        _load(f"{where}.ca", "", folder / table.ca, context.load_verify_locations)
    else:
        context.load_default_certs()
    if table.key:
        _show(context, folder / table.certificate, folder / table.key, where, key)
    return context


def listening_context(certificate: str, key: str, ca: str, where: str) -> ssl.SSLContext:
    """What protects a port that listens; with `ca`, who connects must show a certificate of it.

    Raises `ConfigError` that begins with an option's name, `where` and a point before it.
    """
    if not certificate or not key:
        raise ConfigError(f"{where}: a port with TLS needs certificate and key: give both")
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _show(context, Path(certificate), Path(key), where, "key")
    if ca:
        _load(f"{where}.ca", "", Path(ca), context.load_verify_locations)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _show(context: _Context, certificate: Path, private: Path, where: str, key: str) -> None:
    """Show this certificate to the other side."""
    named = f"{where}.{key}"
    check_private(named, private)
    _load(f"{where}.certificate", named, certificate, lambda path: context.show(path, private))


class _Context(ssl.SSLContext):
    """Shows the certificate that is in the file when a connection begins: one that was renewed, too."""

    _shown: tuple[Path, Path] | None = None
    _seen: tuple[object, ...] = ()

    def show(self, certificate: Path, key: Path) -> None:
        """Show this certificate; raises `OSError`."""
        self._seen = _state_of(certificate, key)
        # Without a password's source OpenSSL would ask the terminal for one.
        self.load_cert_chain(certificate, key, lambda: "")
        self._shown = certificate, key

    def wrap_socket(self, *given: Any, **named: Any) -> ssl.SSLSocket:
        """As its base does."""
        self._look()
        return super().wrap_socket(*given, **named)

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:
        """As its base does."""
        self._look()
        return super().wrap_bio(*given, **named)

    def _look(self) -> None:
        if self._shown is None:
            return
        with suppress(OSError):  # what is not there, or half there, is looked at again the next time
            if _state_of(*self._shown) != self._seen:
                self.show(*self._shown)


def _state_of(*paths: Path) -> tuple[object, ...]:
    """Another one for files that were replaced."""
    return tuple((found.st_mtime_ns, found.st_ino, found.st_size) for found in map(Path.stat, paths))


def check_private(name: str, path: Path) -> None:
    """Raises `ConfigError` unless the file of the key `name` is there and only its owner may read it."""
    try:
        found = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{name}: {path} cannot be read: {error.strerror or error}") from None
    if stat.S_ISDIR(found):
        raise ConfigError(f"{name}: {path} is a folder: name the file in it")
    mode = found & 0o777
    if mode & OTHERS:
        raise ConfigError(f"{name}: {path} can be read by others (mode {mode:04o}): run chmod 600 {path}")


def _load(name: str, key: str, path: Path, load: Callable[[Path], object]) -> None:
    try:
        load(path)
    except ssl.SSLError as error:
        why = f"does not fit {key}" if error.reason == "KEY_VALUES_MISMATCH" else "is not usable PEM"
        raise ConfigError(f"{name}: {path} {why}: {error.reason or error}") from None
    except OSError as error:
        raise ConfigError(f"{name}: {path} cannot be read: {error.strerror or error}") from None
