"""Read the records of a Kafka topic, by its partitions and offsets.

A source with positions: each partition is a split, and an offset is a record's number. Guarantees: each
record is read once, also over crashes of the process and of brokers; nothing is committed to Kafka, since the
spool has the position. What Kafka deleted before it was read is told by a dead letter with its offsets. While
no broker answers, the watermark waits. A value that is no such record leaves as a dead letter with its bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec

from geartrain.adapters.kafka_properties import read_properties, refused_user, trouble_of
from geartrain.adapters.system import SystemClock
from geartrain.declarations.kafka import check_brokers, client_properties
from geartrain.declarations.options import Count, SecretText
from geartrain.errors import USER_ERRORS, ConfigError, SourceError
from geartrain.ports import Clock
from geartrain.source import Batch, Reject, Source, Split
from geartrain_devices.json_fields import JsonFields, now_us
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.no_record import refusal_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

PARTITIONS_MAX = 1_000
_QUEUED_KB = 4_096
"""What waits of one partition in memory, at the most, but for one larger record."""
_AGAIN_S, _WARN_S, _ANSWER_S = 5.0, 60.0, 10.0
_OURS = (
    "auto.offset.reset",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "bootstrap.servers",
    "isolation.level",
)
"""What the source itself has to say of a consumer."""

Partitions = Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]


class KafkaTopic(ValueOptions, Source[T]):
    """Records of type `T` from the JSON values of a topic. A record before 1970 is a dead letter.

    How its times and numbers are written, the options of `ValueOptions` say.

    Args:
        brokers: where the cluster is, such as `kafka-1:9092,kafka-2:9092`.
        topic: the topic.
        partitions: how many it has; each is a split.
        properties: properties of librdkafka, such as `security.protocol`.
        properties_file: a file of lines `NAME=VALUE` that stand above these: the place for passwords.
        password: of SASL (`sasl.password`), as `secret:NAME`; empty where the file has it, or there is none.
        time: the path of the event time in a record; empty for the time that Kafka has of it.
        fields: paths by field, for those that are not found by their own name.
        out_of_orderness_ms: how far a record may lie behind the newest of its partition and not be late.
    """

    replayable: ClassVar[bool] = True
    since_1970 = True

    brokers: str = ""
    topic: str = ""
    partitions: Partitions = 1
    properties: dict[str, str] = field(default_factory=dict)
    properties_file: Path | None = None
    password: SecretText = ""
    time: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    out_of_orderness_ms: Count = 0

    def clock(self) -> Clock:
        """The clock by which a cluster that is away is asked again; a test may have its own."""
        return SystemClock()

    def check_settings(self, step: str, out: type[T]) -> None:
        """As of a `Source`."""
        where = f"source {step}"
        try:
            check_brokers(where, self.brokers)
            client_properties(where, self.properties, {}, _OURS)
        except ConfigError as error:
            raise SourceError(str(error)) from None
        JsonFields(where, out, self.time, self, self.fields)

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """A split for each partition; raises `SourceError` naming the option."""
        where = f"source {step}"
        try:
            import confluent_kafka  # noqa: F401 - an extra: only who uses it has it
        except ImportError:
            raise SourceError(
                f'{where}: Kafka needs confluent-kafka: pip install "geartrain-devices[kafka]"'
            ) from None
        for name, value in (("brokers", self.brokers), ("topic", self.topic)):
            if not value.strip():
                raise SourceError(f"{where} has no {name}: set {name} under [sources.{step}]")
        try:
            given = client_properties(
                where, self.properties, read_properties(where, self.properties_file), _OURS
            )
        except ConfigError as error:
            raise SourceError(str(error)) from None
        fields = JsonFields(where, out, self.time, self, self.fields)
        config = {
            "group.id": "geartrain",  # which Kafka wants, and nothing is committed under
            "queued.max.messages.kbytes": str(_QUEUED_KB),
            "log_level": "2",
            **given,
            **({"sasl.password": str(self.password)} if self.password else {}),
            "bootstrap.servers": self.brokers,
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "enable.partition.eof": "true",
            "auto.offset.reset": "error",
        }
        bound_us, clock = self.out_of_orderness_ms * 1_000, self.clock()
        splits = []
        for number in range(self.partitions):
            partition = _Partition(where, config, self.topic, number, self.partitions)
            splits.append(_KafkaSplit(device, step, partition, fields, bound_us, clock))
        return splits


class _Partition:
    """A consumer of one partition. It commits nothing and never waits."""

    def __init__(self, where: str, config: dict[str, str], topic: str, number: int, among: int) -> None:
        """among: how many partitions are read."""
        self.where, self.topic, self.number, self._among = where, topic, number, among
        self._config, self._brokers = config, config["bootstrap.servers"]
        self._consumer: Consumer | None = None
        self.trouble = ""
        """What librdkafka has said since the last look, of brokers and connections."""

    def seek(self, offset: int | None) -> None:
        """Read on at an offset, None for the first that is there; raises `SourceError`."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

        if self._consumer is None:
            try:
                self._consumer = Consumer({**self._config, "error_cb": self.heard})
            except KafkaException as error:
                raise SourceError(f"{self.where}: {trouble_of(self._brokers, error.args[0])}") from None
        at = OFFSET_BEGINNING if offset is None else offset
        self._consumer.assign([TopicPartition(self.topic, self.number, at)])

    def heard(self, error: KafkaError) -> None:
        """Keep what is said, but where the user is refused that: all else comes of it."""
        from confluent_kafka import KafkaError as Codes

        refused = refused_user(self._brokers)
        if error.code() == Codes._AUTHENTICATION:  # noqa: SLF001 - it has no other name
            self.trouble = refused
        elif self.trouble != refused:
            self.trouble = trouble_of(self._brokers, error)

    async def check_count(self) -> None:
        """Warn where the topic has more partitions than are read."""
        from confluent_kafka import KafkaException

        if self._consumer is None:
            return
        try:
            found = await asyncio.to_thread(self._consumer.list_topics, self.topic, _ANSWER_S)
        except (KafkaException, RuntimeError):  # brokers are away, or the split was closed
            return
        there = len(found.topics[self.topic].partitions)
        if there > self._among:
            _LOG.warning(
                "partitions_unread: %s: topic %s has %d partitions, of which %d are read: set partitions "
                "where the flow is written, and submit it again",
                *(self.where, self.topic, there, self._among),
            )

    def take(self, limit: int) -> list[Message]:
        """What is there, up to `limit` records and what is said of the partition."""
        return [] if self._consumer is None else self._consumer.consume(limit, 0)

    def close(self) -> None:
        """Leave the cluster."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


class _Taken(msgspec.Struct):
    """What one read gives."""

    values: list[Any] = []
    times: list[int] = []
    numbers: list[int] = []
    rejects: list[Reject] = []


def _time_of(message: Message) -> int:
    """When a message was written, as Kafka has it, or else now, microseconds since 1970 UTC."""
    kind, time_ms = message.timestamp()
    return time_ms * 1_000 if kind else now_us()


class _KafkaSplit:
    """One partition as the agent reads it."""

    live_clock = True

    def __init__(
        self, device: str, step: str, partition: _Partition, fields: JsonFields, bound_us: int, clock: Clock
    ) -> None:
        self.name, self.label = f"{device}/{partition.number}", f"{device}/{step}/{partition.number}"
        self.out_of_orderness_us, self.is_behind = bound_us, True
        self._partition, self._fields, self._clock = partition, fields, clock
        self._at = -1
        self._is_gone = False
        self._again_s: float | None = None
        self._warned_s = -_WARN_S
        self._checking: asyncio.Task[None] | None = None

    async def read(self, position: int, limit: int) -> Batch:
        """The records that have come, up to `limit`; raises `SourceError`."""
        from confluent_kafka import KafkaError

        if position != self._at:
            self._seek(position)
        taken, now_s = _Taken(), self._clock.monotonic_s()
        messages = self._partition.take(limit)
        for message in () if self._take_all(taken, messages) else messages:
            error = message.error()
            if error is None:
                self._take(taken, message)
                self.is_behind = True
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - it has no other name
                self.is_behind = (
                    False  # the end may lie behind the last record: marks of transactions take offsets
                )
                self._again_s = None
                if self._checking is None and not self._partition.number:
                    self._checking = asyncio.ensure_future(self._partition.check_count())
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - nor has this
                self._partition.seek(None)
                self._is_gone = True
            else:
                self._partition.heard(error)
        if self._partition.trouble:
            self._wait(now_s)
        elif self._again_s is not None and now_s >= self._again_s:
            self._again_s = now_s + _AGAIN_S
            self._partition.seek(self._at or None)  # once it is back, it says where its end is
        return Batch(taken.values, taken.times, taken.numbers, self._at, taken.rejects)

    def _seek(self, position: int) -> None:
        self._at, self.is_behind = position, True
        self._partition.seek(position or None)

    def _wait(self, now_s: float) -> None:
        """Nothing is known of the partition's end until it is heard of again."""
        said, self._partition.trouble, self.is_behind = self._partition.trouble, "", True
        if self._again_s is None:
            self._again_s = now_s + _AGAIN_S
        if now_s >= self._warned_s + _WARN_S:
            self._warned_s = now_s
            _LOG.warning("source %s: topic %s: %s", self.label, self._partition.topic, said)

    def _take(self, taken: _Taken, message: Message) -> None:
        offset, raw = message.offset() or 0, message.value() or b""
        if self._is_gone:
            self._tell_gone(taken, offset)
        if offset < self._at:
            return  # of before it was sought
        self._at = offset + 1
        try:
            if message.value() is None:
                raise ValueError("it has no value")
            time_us, value = self._fields.read(raw)
        except USER_ERRORS as error:  # the user's own constructor: the bytes are the dead letter
            code, problem = refusal_of(error)
            taken.rejects.append(Reject(offset, f"{self.label}: {problem}", raw, code=code))
            return
        taken.values.append(value)
        taken.times.append(_time_of(message) if time_us is None else time_us)
        taken.numbers.append(offset)

    def _take_all(self, taken: _Taken, messages: Sequence[Message]) -> bool:
        """Take messages at once, where each is a plain record behind those before; whether they are."""
        if self._is_gone or any(one.error() is not None or one.value() is None for one in messages):
            return False
        offsets = [one.offset() or 0 for one in messages]
        if not offsets or offsets[0] < self._at:
            return False
        found = self._fields.read_all([one.value() or b"" for one in messages])
        if found is None:
            return False
        times, taken.values = found
        taken.times = [
            _time_of(message) if time_us is None else time_us
            for message, time_us in zip(messages, times, strict=True)
        ]
        taken.numbers, self._at, self.is_behind = offsets, offsets[-1] + 1, True
        return True

    def _tell_gone(self, taken: _Taken, first: int) -> None:
        """The offset that was asked for is not there, and this is the first that is."""
        self._is_gone = False
        if first < self._at:
            raise SourceError(
                f"{self._partition.where}: partition {self._partition.number} of topic "
                f"{self._partition.topic} has no offset {self._at} yet, which was read up to: where the "
                "topic was made anew, kill the app and submit it again"
            )
        reason = f"{self.label}: offsets {self._at} to {first - 1} were deleted before they were read"
        _LOG.warning("records_deleted: %s", reason)
        if first > self._at:
            taken.rejects.append(Reject(first - 1, reason, b""))
            self._at = first

    async def close(self) -> None:
        """Leave the cluster."""
        if self._checking is not None:
            await self._checking
        self._partition.close()
