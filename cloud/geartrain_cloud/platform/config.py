"""`platform.toml`: what every process of a platform is told, read by this one reader.

It is read before anything else, by `gear up` and by each process that runs alone. Guarantees: with no file
everything has a default. Any mistake is one `ConfigError` that names the file and the key.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from geartrain.adapters.configuration import convert_as, host_and_port, read_as
from geartrain.adapters.tls import Broker, BrokerTable, broker_of
from geartrain.errors import ConfigError
from geartrain_cloud.errors import CertificateError
from geartrain_cloud.platform.places import RESTORING, PlatformPlaces, default_state, read_report

CONFIG_FILE = "platform.toml"
BROKERS = ("auto", "amqtt", "mosquitto")
"""The brokers that `gear up` starts itself."""

_ANY = ("0.0.0.0", "::")  # noqa: S104
"""The addresses of a server that listens to all who reach the machine: compared with, never a default."""

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
OpenPort = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Partitions = Annotated[int, msgspec.Meta(ge=1, le=64)]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the file's tables: a key that is not known is an error."""


class LogSection(_Section, frozen=True):
    """`[log]`: partitions, fixed for the log's life; what may go of it once all queries have read it."""

    partitions: Partitions = 1
    retain_s: Seconds | None = None
    retain_bytes: Positive | None = None


class SparkSection(_Section, frozen=True):
    """`[spark]`: the master; rows_max: rows of a flow and partition in a micro-batch at the most, None for
    the host's own bound; settings over ours.
    """

    master: str = "local[2]"
    rows_max: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None
    settings: dict[str, str] = msgspec.field(default_factory=dict)


class ControlSection(_Section, frozen=True):
    """`[control]`: where REST listens; port 0: 8764, or a free one where that is taken. tls: by HTTPS, as
    it must beyond this machine. certificate, key: PEM of what it shows then, else that of the fleet's name.
    address: by which clients reach it and which the certificate is for, else the fleet's, else `host`.
    backups: the folder of those that are made by REST, else one beside the state folder.
    """

    host: str = "127.0.0.1"
    port: Port = 0
    tls: bool = False
    certificate: str = ""
    key: str = ""
    address: str = ""
    backups: str = ""


class FleetSection(_Section, frozen=True):
    """`[fleet]`: address: by which devices on other machines reach the platform, empty for none;
    mqtt_port, device_port: where the broker and control listen for them; certificate_days: how long a
    device's certificate lasts; join_timeout_s, idle_after_s: after which a device that never shows, or falls
    silent, no longer holds the clock of flows with live sources.
    """

    address: str = ""
    mqtt_port: OpenPort = 8883
    device_port: OpenPort = 8443
    certificate_days: Annotated[float, msgspec.Meta(gt=0, le=3_650)] = 90.0
    join_timeout_s: Seconds = 60.0
    idle_after_s: Seconds = 30.0


class LocalSection(_Section, frozen=True):
    """`[local]`: what the file of each device that this machine runs holds besides, as `gear-agent --device`
    reads it, which checks it.
    """

    spool: dict[str, Any] = msgspec.field(default_factory=dict)
    commit: dict[str, Any] = msgspec.field(default_factory=dict)
    uplink: dict[str, Any] = msgspec.field(default_factory=dict)
    apps: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables that hold something."""
        return {name: table for name, table in msgspec.structs.asdict(self).items() if table}


class TablesSection(_Section, frozen=True):
    """`[tables]`: store: a PostgreSQL in which each run of an app gets a schema; empty for SQLite files.
    retain_s: how old rows become, by their event time.
    """

    store: str = ""
    retain_s: Seconds | None = None


class _File(_Section, frozen=True):
    state: str = "."
    broker: str | BrokerTable = "auto"
    broker_port: Port = 0
    broker_certs: str = ""
    log: LogSection = msgspec.field(default_factory=LogSection)
    spark: SparkSection = msgspec.field(default_factory=SparkSection)
    control: ControlSection = msgspec.field(default_factory=ControlSection)
    fleet: FleetSection = msgspec.field(default_factory=FleetSection)
    local: LocalSection = msgspec.field(default_factory=LocalSection)
    tables: TablesSection = msgspec.field(default_factory=TablesSection)


@dataclass(frozen=True, slots=True)
class PlatformConfig:
    """A checked file, or the defaults for a state folder.

    path: the file, None where there is none; broker: `auto`, `amqtt` or `mosquitto` (started by `gear up`),
    `host:port`, or a table as in an agent's file; broker_port: of one that is started, 0 for any free one;
    broker_certs: the folder of a fleet's certificates, for a broker that runs elsewhere.
    """

    state: Path
    path: Path | None = None
    broker: str | BrokerTable = "auto"
    broker_port: int = 0
    broker_certs: Path | None = None
    log: LogSection = field(default_factory=LogSection)
    spark: SparkSection = field(default_factory=SparkSection)
    control: ControlSection = field(default_factory=ControlSection)
    fleet: FleetSection = field(default_factory=FleetSection)
    local: LocalSection = field(default_factory=LocalSection)
    tables: TablesSection = field(default_factory=TablesSection)

    @property
    def places(self) -> PlatformPlaces:
        """Where everything lies."""
        return PlatformPlaces(self.state)

    @property
    def is_open(self) -> bool:
        """Whether devices on other machines may join."""
        return bool(self.fleet.address)

    @property
    def certs(self) -> Path:
        """The fleet's authority: its own, or that of the broker that runs elsewhere."""
        return self.broker_certs or self.places.fleet

    @property
    def backups(self) -> Path:
        """Where backups are kept that are made by REST."""
        named = self.control.backups
        return self.beside(named) if named else self.state.with_name(f"{self.state.name}.backups")

    def beside(self, name: str) -> Path:
        """A file that the configuration names, from its own folder."""
        return (self.path or self.state).parent / name

    def rest_url(self, port: int) -> str:
        """Where clients reach REST, which listens at `port`."""
        control = self.control
        if not control.tls:
            return f"http://{_joined(control.host, port)}"
        return f"https://{_joined(control.address or self.fleet.address or control.host, port)}"

    @property
    def rest_authority(self) -> dict[str, str]:
        """`ca`, the file of who has signed REST's certificate, where that is the fleet's authority."""
        control = self.control
        return {"ca": str(self.certs / "ca.pem")} if control.tls and not control.certificate else {}

    @property
    def device_broker(self) -> str:
        """`host:port` of the broker as devices on other machines reach it."""
        named = self.broker.address if isinstance(self.broker, BrokerTable) else self.broker
        return _joined(self.fleet.address, self.fleet.mqtt_port) if named in BROKERS else named

    @property
    def device_url(self) -> str:
        """Where control listens for devices."""
        return f"https://{_joined(self.fleet.address, self.fleet.device_port)}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """How another process is told to read the same: `--config FILE` or `--state DIR`."""
        if self.path is not None:
            return ("--config", str(self.path), "--state", str(self.state))
        return ("--state", str(self.state))

    def broker_now(self, role: str) -> Broker:
        """The broker to connect to, for `role` `ingest`, `down` or `control`.

        Raises `ConfigError` while there is none, and `CertificateError` where the role has no certificate.

        A broker that `gear up` starts is found where it says so; a process that runs alone waits for it or
        ends with this error.
        """
        if isinstance(self.broker, BrokerTable):
            return broker_of(self.broker, (self.path or self.state).parent)
        if self.broker in BROKERS:
            found = read_report(self.places.broker).get("cloud", {}).get(role)
            if not isinstance(found, str | dict):
                raise ConfigError(
                    f"there is no broker in {self.state}: start gear up there, or name one with "
                    'broker = "HOST:PORT" in the configuration'
                )
        elif self.broker_certs is None:
            found = self.broker
        else:
            from geartrain_cloud.certs import CLOUD, Fleet  # only who has certificates waits for cryptography

            found = Fleet(self.broker_certs).broker_key(CLOUD, role, self.broker)
        return broker_of(found if isinstance(found, str) else convert_as(found, BrokerTable), self.state)


def read_platform(path: Path | None = None, state: Path | None = None) -> PlatformConfig:
    """The configuration in the TOML file `path`, or that of the state folder; raises `ConfigError`.

    state: over the file's key; where neither is given, the default folder. A `platform.toml` in the state
    folder is read when no other file is named.
    """
    folder = None if state is None and path is not None else (state or default_state()).absolute()
    if path is None:
        own = (folder or default_state()) / CONFIG_FILE
        if not own.is_file():
            return PlatformConfig(_restored((folder or default_state()).absolute()))
        path = own
    found, beside = read_as(path, _File), path.absolute().parent
    if isinstance(found.broker, str) and found.broker not in BROKERS:
        _checked(path, lambda: host_and_port(str(found.broker)))
    if found.fleet.address:
        _check_address(path, found)
    _check_control(path, found)
    if found.tables.store:
        _check_store(path, found.tables.store)
    return PlatformConfig(
        _restored(folder or beside / found.state),
        path.absolute(),
        found.broker,
        found.broker_port,
        beside / found.broker_certs if found.broker_certs else None,
        found.log,
        found.spark,
        found.control,
        found.fleet,
        found.local,
        found.tables,
    )


def _restored(folder: Path) -> Path:
    """The state folder; raises `ConfigError` where it is half restored."""
    if (folder / RESTORING).exists():
        raise ConfigError(
            f"{folder} is half restored, for gear restore did not come to its end: run gear restore BACKUP "
            f"--state {folder} again"
        )
    return folder


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is that of this machine itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_control(path: Path, found: _File) -> None:
    """Raise `ConfigError` where REST would go in clear beyond this machine, or lacks a certificate."""
    control = found.control
    if not control.tls:
        for name in ("certificate", "key", "address"):
            if getattr(control, name):
                raise ConfigError(f"{path}: control.{name} is for TLS: write tls = true beside it")
        if not is_loopback(control.host):
            raise ConfigError(
                f"{path}: control.host: {control.host} is reached from other machines, and whoever listens "
                "on the way could read tokens: write tls = true beside it, or leave host out"
            )
        return
    if bool(control.certificate) != bool(control.key):
        raise ConfigError(
            f"{path}: control.certificate and control.key belong together: give both, or neither"
        )
    if not control.certificate and (control.address or not found.fleet.address):
        raise ConfigError(
            f"{path}: control.tls: REST shows the certificate of the fleet's address: write [fleet] address, "
            "or name files of your own in control.certificate and control.key"
        )
    if control.host in _ANY and not (control.address or found.fleet.address):
        raise ConfigError(
            f"{path}: control.host: nobody can be told to ask {control.host}: write in control.address "
            "the name that the certificate is for"
        )


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_address(path: Path, found: _File) -> None:
    """Raise `ConfigError` for an address that no certificate can be for, or where devices lack a broker."""
    from geartrain_cloud.certs.names import check_host  # only who has a fleet waits for cryptography

    address = found.fleet.address
    try:
        check_host(address)
    except CertificateError as error:
        raise ConfigError(
            f"{path}: fleet.address: {error}: write a name or an address without a port"
        ) from None
    if found.broker == "amqtt":
        raise ConfigError(
            f"{path}: fleet.address: amqtt listens to this machine only: leave out broker, or write "
            'broker = "mosquitto"'
        )
    if found.broker not in BROKERS and not found.broker_certs:
        raise ConfigError(
            f"{path}: fleet.address: name the folder of gear certs for this broker, which signs what devices "
            "ask for: broker_certs"
        )


def _check_store(path: Path, store: str) -> None:
    """Raise `ConfigError` for an address that is none of PostgreSQL's, or that holds a password."""
    try:
        parts = urlsplit(store)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigError(f"{path}: tables.store is no address such as postgresql://user@host/database")
    asked = parse_qs(parts.query, keep_blank_values=True)
    if parts.password is not None or {"password", "sslpassword"} & asked.keys():
        raise ConfigError(
            f"{path}: tables.store holds a password, which does not belong into a configuration: use "
            "PGPASSWORD or ~/.pgpass"
        )


def _checked(path: Path, check: Callable[[], Any]) -> None:
    try:
        check()
    except ConfigError as error:
        raise ConfigError(f"{path}: broker: {error}: or write auto, amqtt or mosquitto") from None
