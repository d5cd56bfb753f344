"""Sinks in the cloud beside the flow's own tables: another database, files, lines, a topic, an address.

Last on a record's path; `geartrain_cloud.sinks` writes them, and says which are exactly once and which at
least once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import msgspec

from geartrain.declarations.kafka import check_brokers, client_properties
from geartrain.declarations.limits import (
    check_case,
    check_columns,
    check_folder,
    check_name,
    check_postgres,
)
from geartrain.declarations.options import Count, FilePath, Port, Positive, SecretOrText
from geartrain.declarations.secrets import secret_name
from geartrain.declarations.sink import Sink, set_by
from geartrain.declarations.web_requests import address_fault, check_open_headers
from geartrain.errors import ConfigError
from geartrain.printable import is_word
from geartrain.schema import Schema

TOPIC_FIELD = re.compile(r"\{(\w+)\}")
"""In the topic of an `MqttSink`: what the value of a field takes the place of."""
KAFKA_OURS = (
    "bootstrap.servers",
    "transactional.id",
    "enable.idempotence",
    "acks",
    "transaction.timeout.ms",
    "isolation.level",
    "enable.auto.commit",
    "auto.offset.reset",
    "enable.partition.eof",
)
"""The properties of librdkafka that a `KafkaSink` says itself."""
_KAFKA_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_KAFKA_SECRET = re.compile(r"password|secret|^sasl\.username$")
"""Properties that may be secrets."""
_PASSWORDS = (
    re.compile(r"^(?!postgres(?:ql)?://).*\bpassword\s*=\s*'?(?!secret:)[^\s']", re.DOTALL),
    re.compile(r"^postgres(?:ql)?://[^/?#@:]*:(?!secret(?::|%3A))[^/?#@]+@", re.IGNORECASE),
    re.compile(r"^postgres(?:ql)?://[^?]*\?(?:.*&)?password=(?!secret(?::|%3A))[^&]", re.IGNORECASE),
)
"""Addresses of a database that show a password, in both forms that libpq reads."""
DSN_IS_OPEN = (
    "its dsn holds a password, which does not belong into a flow or a configuration: write "
    "password=secret:NAME, or use PGPASSWORD or ~/.pgpass"
)
"""What is said of a `PostgresTable` whose dsn shows one."""
_WILD = frozenset("+#{}\0")
"""What no part of a topic may hold in which MQTT publishes."""


@dataclass(frozen=True)
class PostgresTable(Sink):
    """A table in a PostgreSQL database: exactly once.

    Args:
        name: what the table is called.
        key: fields that name a row, as for every sink.
        dsn: where the database is, as libpq has it: `host=db.example dbname=plant user=geartrain`, or a
            `postgresql://` address. Empty means the PG… variables of the environment. A password does not
            belong here: write `password=secret:NAME`, or it comes from PGPASSWORD or ~/.pgpass.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    dsn: str = ""

    def _check(self, step: str, schema: Schema) -> None:
        """Refuse names, fields and key that PostgreSQL cannot hold, and a password in `dsn`."""
        where = f"sink {step!r}"
        check_name(where, self.name)
        check_columns(self.name, self.key, schema)
        check_postgres(where, self.name, self.key, schema)
        if any(pattern.search(self.dsn) for pattern in _PASSWORDS):
            raise ConfigError(f"{where}: {DSN_IS_OPEN}")


@dataclass(frozen=True)
class ParquetTable(Sink):
    """A folder of Parquet files: exactly once, rows are only added.

    Args:
        name: what the folder is called, `NAME.parquet`.
        key: must be empty: rows are not replaced.
        folder: where the folder is made; empty for the folder of the flow's own tables.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    folder: FilePath = ""

    def _check(self, step: str, schema: Schema) -> None:
        """Refuse a key, and a name that no folder can have."""
        check_folder(f"sink {step!r}", self.name, self.key, "Parquet files are")


@dataclass(frozen=True)
class DeltaTable(Sink):
    """A Delta table in a folder: exactly once, rows are only added.

    Args:
        name: what the folder is called, `NAME.delta`.
        key: must be empty: rows are not replaced.
        folder: where the folder is made; empty for the folder of the flow's own tables.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    folder: FilePath = ""

    def _check(self, step: str, schema: Schema) -> None:
        """Refuse a key, a name that no folder can have, and fields that are one to Delta."""
        check_folder(f"sink {step!r}", self.name, self.key, "rows of a Delta table are")
        check_case(self.name, schema)


@dataclass(frozen=True)
class ConsoleSink(Sink):
    """Lines of JSON on the standard output of the Spark host, for looking on: at least once.

    Args:
        name: what the lines begin with.
        key: not used.
        rows_max: how many rows of a micro-batch are printed; the others are counted.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    rows_max: Count = 20


@dataclass(frozen=True)
class MqttSink(Sink):
    """Messages of JSON to a topic: at least once, each with its record's `_id`, which is equal in a
    repetition.

    Args:
        name: what the sink is called.
        key: not used.
        topic: where to publish; the value of a field takes the place of `{field}`.
        host: of the broker.
        port: of the broker.
        tls: whether the connection is encrypted.
        ca: the file of the certificate authority, from the folder of the platform's file; empty for the
            system's.
        certificate: the file of the client's certificate.
        private_key: the file of its key. An agent's table `[broker]` calls it `key`.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    required: ClassVar[tuple[str, ...]] = ("topic", "host")

    topic: str = ""
    host: str = "127.0.0.1"
    port: Port = 1883
    tls: bool = False
    ca: FilePath = ""
    certificate: FilePath = ""
    private_key: FilePath = ""

    def _check(self, step: str, schema: Schema) -> None:
        """Refuse a topic to which nothing can be published, and no name of a broker."""
        where, names = f"sink {step!r}", [field.name for field in schema.fields]
        if wrong := [name for name in TOPIC_FIELD.findall(self.topic) if name not in names]:
            raise ConfigError(
                f"{where}: its topic {self.topic!r} names {wrong[0]!r}, which is not a field; its fields: "
                f"{', '.join(names)}"
            )
        if set(TOPIC_FIELD.sub("", self.topic)) & _WILD:
            raise ConfigError(
                f"{where}: topic = {self.topic!r} must be a topic such as alerts/{{street}}, without + and #"
            )
        if self.host and not is_word(self.host):
            raise ConfigError(f"{where}: host = {self.host!r} must be the name or the address of a broker")


@dataclass(frozen=True)
class KafkaSink(Sink):
    """Messages of JSON to a topic of Kafka: exactly once for consumers that read committed messages.

    Args:
        name: what the sink is called.
        key: fields that make the key of a message, by which Kafka chooses its partition; without them the
            partition is any.
        brokers: where the cluster is, such as `kafka-1:9092,kafka-2:9092`.
        topic: where the messages go.
        marks: the topic that keeps how far each query is; it is made, compacted, if there is none.
        properties: properties of librdkafka, such as `security.protocol`; a password is `secret:NAME`.
        properties_file: a file of lines `NAME=VALUE` that stand above these: the place for passwords.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    required: ClassVar[tuple[str, ...]] = ("brokers", "topic", "marks")

    brokers: str = ""
    topic: str = ""
    marks: str = "geartrain-marks"
    properties: dict[str, str] = field(default_factory=dict)
    properties_file: FilePath = ""

    def _check(self, step: str, schema: Schema) -> None:
        """Refuse addresses and topics that cannot be, and properties that are not for a user."""
        where = f"sink {step!r}"
        check_brokers(where, self.brokers)
        for name, topic in (("topic", self.topic), ("marks", self.marks)):
            if topic.strip() and (not _KAFKA_TOPIC.fullmatch(topic) or topic in (".", "..")):
                raise ConfigError(
                    f"{where}: {name} = {topic!r} cannot be a topic of Kafka: write up to 249 letters, "
                    "digits, `.`, `_` and `-`"
                )
        if self.marks and self.marks == self.topic:
            raise ConfigError(f"{where}: marks cannot be the topic itself: name another topic")
        asked = asked_secrets(f"{where}: properties", self.properties)
        plain = {name: value for name, value in self.properties.items() if name not in asked}
        client_properties(where, plain, {}, KAFKA_OURS)
        if open_one := next((name for name in asked if not _KAFKA_SECRET.search(name)), None):
            raise ConfigError(f"{where}: properties: {open_one} is no secret: write its value")


def asked_secrets(where: str, options: Mapping[str, str]) -> dict[str, str]:
    """By option, the name of the secret that stands in its place.

    Args:
        where: how the sentence of an error begins.
        options: the values of options.

    Returns:
        Those that are references to secrets.

    Raises:
        ConfigError: for a reference whose name cannot be one.
    """
    found = {option: secret_name(value, f"{where}: {option}") for option, value in options.items()}
    return {option: name for option, name in found.items() if name}


@dataclass(frozen=True)
class WebhookSink(Sink):
    """Records of JSON to an HTTP address: at least once, each request with a key that is equal in a
    repetition.

    Args:
        name: what the sink is called.
        key: not used.
        url: where to POST, such as `https://hooks.example/alerts`; one that is a secret is `secret:NAME`. A
            redirection is not followed.
        rows_max: how many records a request carries at the most. With 1, its body is the record; with more,
            it is a list.
        timeout_s: how long a request may take, seconds.
        headers: headers of each request; the value of one that is a secret is `secret:NAME`.
        headers_file: a file of lines `NAME: VALUE` that stand above these, which only its owner may read: the
            place for tokens.
        ca: the file of the certificate authority; empty for the system's.
        certificate: the file of the client's certificate.
        private_key: the file of its key.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    required: ClassVar[tuple[str, ...]] = ("url",)

    url: SecretOrText = ""
    rows_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    timeout_s: Positive = 10.0
    headers: dict[str, str] = field(default_factory=dict)
    headers_file: FilePath = ""
    ca: FilePath = ""
    certificate: FilePath = ""
    private_key: FilePath = ""

    def _check(self, step: str, schema: Schema) -> None:
        """Refuse an address or headers that cannot be, and options of TLS without it."""
        where, is_open = f"sink {step!r}", self.url.lower().startswith("http://")
        is_secret = bool(asked_secrets(where, {"url": self.url}))
        if self.url and not is_secret and (why := address_fault(self.url)):
            raise ConfigError(f"{where}: its url {why}: {set_by(step, 'url')}")
        if is_open and (self.ca or self.certificate or self.private_key):
            raise ConfigError(f"{where}: ca, certificate and private_key are for a url with https://")
        asked = asked_secrets(f"{where}: headers", self.headers)
        check_open_headers(where, [one for one in self.headers.items() if one[0] not in asked])
