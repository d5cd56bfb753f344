"""Records as messages to a topic of Kafka, each micro-batch one transaction of its messages and its mark.

A store beside the flow's own tables. Guarantees: a consumer that reads committed messages sees each record
once. The mark says which micro-batch of a query is held, and stands in a compacted topic of the same cluster.
A micro-batch that the cluster holds is not written again. One that a crash left open is aborted when the
query comes back. Of two processes that write for one query, the older one is fenced off.

The mark in a topic, written in the transaction of the records, is how Kafka Connect keeps the offsets of its
sources (KIP-618).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from geartrain.adapters.kafka_properties import read_properties, refused_user, trouble_of
from geartrain.declarations.cloud_sink import KAFKA_OURS, KafkaSink
from geartrain.declarations.kafka import client_properties
from geartrain.declarations.sink import Sink
from geartrain.records.codes import Code, Refusal
from geartrain.schema import ColumnBatch, Schema
from geartrain_cloud.sinks.binding import Mark
from geartrain_cloud.sinks.evolution import Evolution
from geartrain_cloud.sinks.layout import Layout, TableError, table_errors
from geartrain_cloud.sinks.marked import MarkedStore
from geartrain_cloud.sinks.rows import message_rows
from geartrain_cloud.sinks.secrets import NONE, SinkSecrets, asked_in, without
from geartrain_cloud.sinks.store import Rows

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_LOG = logging.getLogger("geartrain.sinks")

T = TypeVar("T")

BYTES_MAX = 1_000_000
"""What one message may take, as librdkafka and Kafka have it by default; property `message.max.bytes`."""
_AWAY_S_MAX = 60.0
_TURN_S = 0.5
"""How long the first call lasts before it is heard whether a broker refuses the user; doubled each time."""
_ATTEMPTS = 3
_TRANSACTION_MS = 300_000
"""How long the cluster waits for an open transaction of a query that does not come back."""
_GROUP = "geartrain"  # which Kafka wants of a consumer, and nothing is committed under


class Way(NamedTuple):
    """How sinks reach a cluster: sinks that say the same share its transactions."""

    brokers: str
    marks: str
    properties: tuple[tuple[str, str], ...]


class Said(NamedTuple):
    """One message."""

    topic: str
    key: bytes | None
    value: bytes


class KafkaTopics(MarkedStore[Way]):
    """The Kafka sinks of one flow. Used from one thread at a time."""

    def __init__(self, flow: str, secrets: SinkSecrets = NONE) -> None:
        super().__init__(flow)
        self._secrets = secrets
        self._sinks: dict[str, tuple[KafkaSink, Schema, Way]] = {}
        self._clusters: dict[Way, Cluster] = {}

    def check(self, layout: Layout) -> None:
        """Raise `TableError` for options that cannot be."""
        if isinstance(layout.table, KafkaSink):
            _check_properties(f"sink {layout.sink!r}", _way_of(layout, layout.table))

    def declare(self, sink_id: str, sink: Sink, schema: Schema) -> None:
        """Say what comes; raises `TableError` for options that cannot be."""
        if isinstance(sink, KafkaSink):
            way = _way_of(Layout(sink_id, sink, schema), sink)
            self._sinks[sink_id] = (sink, schema, way)
            self._clusters.setdefault(way, Cluster(way, self._flow, partial(self._filled, sink_id, way)))

    def _filled(self, sink_id: str, way: Way) -> dict[str, str]:
        """The properties with the values of their secrets; raises `AwayError` where one is missing."""
        found = dict(way.properties)
        return found | self._secrets.all(sink_id, asked_in(f"sink {sink_id!r}", found))

    def planned(self, layouts: Sequence[Layout]) -> list[Evolution]:
        """A topic has no columns; raises `TableError` for options that cannot be."""
        for layout in layouts:
            self.check(layout)
        return []

    def evolve(self, layouts: Sequence[Layout]) -> None:
        """Have the sinks be these; a cluster that is new begins with the next micro-batch."""
        known = set(self._clusters)
        self._sinks = {}
        for layout in layouts:
            self.declare(layout.sink, layout.table, layout.schema)
        for way in known - {way for _, _, way in self._sinks.values()}:
            self._clusters.pop(way).close()
        self._replace(known)

    def _places(self) -> Iterable[Way]:
        return self._clusters

    def _named(self, place: Way) -> tuple[str, str]:
        return f"Kafka at {place.brokers}", f"topic {place.marks}"

    def _mark(self, place: Way, query: str) -> Mark | None:
        return self._clusters[place].mark(query)

    def _put(self, place: Way, query: str, mark: Mark, rows: Rows) -> None:
        self._clusters[place].write(query, mark, self._messages(rows, place))

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, Refusal]:
        """The rows whose message is too large."""
        sink, schema, way = self._sinks[sink_id]
        limit = int(dict(way.properties).get("message.max.bytes", BYTES_MAX))
        sizes = (len(said.value) + len(said.key or b"") for said in _messages(sink, schema, rows))
        return {
            row: Refusal(
                Code.TOO_LARGE, f"its message takes {size} bytes, and Kafka takes {limit} (message.max.bytes)"
            )
            for row, size in enumerate(sizes)
            if size > limit - _OVERHEAD_BYTES
        }

    def _messages(self, rows: Rows, way: Way) -> Iterator[Said]:
        for sink_id, batches in rows.items():
            sink, schema, its_way = self._sinks[sink_id]
            if its_way == way:
                for batch in batches:
                    yield from _messages(sink, schema, batch)

    def close(self) -> None:
        """Leave the clusters."""
        for cluster in self._clusters.values():
            cluster.close()


_OVERHEAD_BYTES = 512
"""What Kafka's own form of a message takes beside its key and value, at the most."""


class Cluster:
    """One cluster: the marks of a flow's queries, and a transactional producer for each."""

    def __init__(self, way: Way, flow: str, properties: Callable[[], dict[str, str]]) -> None:
        """properties: those of the way, with the values of their secrets; raises `AwayError`."""
        self.way, self._properties = way, properties
        self._flow = flow
        self._producers: dict[str, Producer] = {}
        self._marks: dict[str, Mark | None] = {}
        self._trouble: dict[str, str] = {}
        self._is_refused = False  # of what is done now

    def mark(self, query: str) -> Mark | None:
        """What the cluster holds of a query, None for nothing; raises `TableError`.

        Whoever asks has from then on the right to write: another process that writes for the query is fenced.
        """
        if query not in self._producers:
            self._open(query)
        return self._marks[query]

    def write(self, query: str, mark: Mark, messages: Iterator[Said] | tuple[()]) -> None:
        """Write messages and the mark in one transaction; raises `TableError`."""
        from confluent_kafka import KafkaException

        self.mark(query)
        kept = list(messages)
        for attempt in range(1, _ATTEMPTS + 1):
            producer = self._producers[query]
            try:
                self._transact(producer, query, mark, kept)
                self._marks[query] = mark
                return
            except KafkaException as raised:
                producer.poll(0)
                error: KafkaError = raised.args[0]
                if error.txn_requires_abort() and attempt < _ATTEMPTS and not self._trouble:
                    why = trouble_of(self.way.brokers, error)
                    _LOG.warning("a transaction of %s is tried again: %s", self.way.brokers, why)
                    producer.abort_transaction(_AWAY_S_MAX)
                    continue
                self._drop(query)  # the next one asks the cluster what it holds
                raise self._failed(query, error) from None

    def _transact(self, producer: Producer, query: str, mark: Mark, messages: list[Said]) -> None:
        producer.poll(0)  # what was said of before
        self._trouble.clear()
        self._is_refused = False
        producer.begin_transaction()
        for said in messages:
            self._produce(producer, said)
        self._produce(producer, Said(self.way.marks, self._key(query), _mark_bytes(mark)), 0)
        self._in_turns(producer, producer.commit_transaction)

    def _produce(self, producer: Producer, said: Said, partition: int = -1) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self._trouble.setdefault(said.topic, trouble_of(self.way.brokers, error))

        while True:
            try:
                producer.produce(said.topic, said.value, said.key, partition, on_delivery=delivered)
                return
            except BufferError:
                producer.poll(0.1)  # its queue is full: the cluster takes some of it first

    def _failed(self, query: str, error: KafkaError) -> TableError:
        from confluent_kafka import KafkaError as Codes

        where = f"Kafka at {self.way.brokers}"
        if error.code() in (Codes._FENCED, Codes.PRODUCER_FENCED, Codes.INVALID_PRODUCER_EPOCH):  # noqa: SLF001
            return TableError(
                f"{where}: another process writes for query {query!r} of flow {self._flow}: end one of both"
            )
        if self._is_refused:
            return TableError(refused_user(self.way.brokers))
        for topic, said in self._trouble.items():
            return TableError(f"records for topic {topic} are not taken: {said}")
        return TableError(trouble_of(self.way.brokers, error))

    def _heard(self, error: KafkaError) -> None:
        """What librdkafka says by itself, of which a time-out that comes of it tells nothing."""
        if error.code() == error._AUTHENTICATION:  # noqa: SLF001 - it has no other name
            self._is_refused = True

    def _in_turns(self, client: Any, ask: Callable[[float], T]) -> T:
        """Ask for so long at a time, ever longer, and hear between whether the user is refused.

        A call of librdkafka would wait for the whole time, and then say that it timed out.
        """
        from confluent_kafka import KafkaException

        deadline, turn_s = time.monotonic() + _AWAY_S_MAX, _TURN_S
        while True:
            try:
                return ask(min(turn_s, max(deadline - time.monotonic(), _TURN_S)))
            except KafkaException as raised:
                client.poll(0)
                error: KafkaError = raised.args[0]
                is_late = error.code() in (error._TIMED_OUT, error._TRANSPORT)  # noqa: SLF001
                is_over = error.txn_requires_abort() or not (is_late or error.retriable())
                if self._is_refused or is_over or time.monotonic() > deadline:
                    raise
                turn_s *= 2

    def _open(self, query: str) -> None:
        from confluent_kafka import KafkaException, Producer

        self._is_refused = False
        try:
            producer = Producer(
                {
                    "log_level": "2",
                    **self._properties(),
                    "bootstrap.servers": self.way.brokers,
                    "transactional.id": f"geartrain/{self._flow}/{query}",
                    "transaction.timeout.ms": str(_TRANSACTION_MS),
                    "error_cb": self._heard,
                }
            )
            self._in_turns(producer, producer.init_transactions)
            self._make_marks()
            self._marks[query] = self._read_mark(query)
        except KafkaException as raised:
            raise self._failed(query, raised.args[0]) from None
        self._producers[query] = producer

    def _make_marks(self) -> None:
        """Have the topic of marks be there, compacted; raises `TableError` where it cannot be made."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        if self._has_marks():
            return
        topic = NewTopic(self.way.marks, 1, config={"cleanup.policy": "compact"})
        given: dict[str, Any] = {
            "log_level": "2",
            **self._properties(),
            "bootstrap.servers": self.way.brokers,
        }
        given["error_cb"] = self._heard
        admin = AdminClient(given)
        try:
            making = admin.create_topics([topic], request_timeout=_AWAY_S_MAX)[self.way.marks]
            while not (making.done() or self._is_refused):
                admin.poll(0.1)
            if self._is_refused:
                raise TableError(refused_user(self.way.brokers))
            making.result()
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if error.code() != error.TOPIC_ALREADY_EXISTS:
                raise TableError(
                    f"Kafka at {self.way.brokers} has no topic {self.way.marks}, and it cannot be made "
                    f"({error.name()}): make it with one partition and cleanup.policy=compact"
                ) from None

    def _reader(self) -> Any:
        from confluent_kafka import Consumer

        return Consumer(
            {
                "log_level": "2",
                **self._properties(),
                "bootstrap.servers": self.way.brokers,
                "group.id": _GROUP,
                "enable.auto.commit": "false",
                "enable.partition.eof": "true",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "error_cb": self._heard,
            }
        )

    def _has_marks(self) -> bool:
        reader = self._reader()
        try:
            listed = self._in_turns(reader, partial(reader.list_topics, self.way.marks))
            return listed.topics[self.way.marks].error is None
        finally:
            reader.close()

    def _read_mark(self, query: str) -> Mark | None:
        """The newest mark of a query; raises `TableError`."""
        found = self._read_marks().get(self._key(query))
        return None if found is None else _read_bytes(found, self.way)

    def _read_marks(self) -> dict[bytes, bytes | None]:
        """The newest value of each key of the topic; raises `TableError`."""
        from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

        reader, found = self._reader(), dict[bytes, bytes | None]()
        deadline = time.monotonic() + _AWAY_S_MAX
        try:
            reader.assign([TopicPartition(self.way.marks, 0, OFFSET_BEGINNING)])
            while time.monotonic() < deadline and not self._is_refused:
                for message in reader.consume(1_000, 1.0):
                    error = message.error()
                    if error is None:
                        found[message.key() or b""] = message.value()
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - it has no other name
                        return found
        finally:
            reader.close()
        if self._is_refused:
            raise TableError(refused_user(self.way.brokers))
        raise TableError(
            f"Kafka at {self.way.brokers}: topic {self.way.marks} was not read to its end within "
            f"{_AWAY_S_MAX:g} s: see whether its brokers are up"
        )

    def _key(self, query: str) -> bytes:
        return f"{self._flow}/{query}".encode()

    def _drop(self, query: str) -> None:
        self._producers.pop(query, None)
        self._marks.pop(query, None)

    def close(self) -> None:
        """Leave it."""
        self._producers.clear()
        self._marks.clear()


def _way_of(layout: Layout, sink: KafkaSink) -> Way:
    """How a sink reaches its cluster; raises `TableError` for options that cannot be."""
    where = f"sink {layout.sink!r}"
    try:
        import confluent_kafka  # noqa: F401 - an extra: only who uses it has it
    except ImportError:
        raise TableError(
            f'{where}: Kafka needs confluent-kafka: pip install "geartrain-cloud[kafka]"'
        ) from None
    layout.check_complete()
    path = Path(sink.properties_file) if sink.properties_file else None
    asked = asked_in(f"{where}: properties", sink.properties)
    with table_errors():
        properties = client_properties(
            where, without(sink.properties, asked), read_properties(where, path), KAFKA_OURS
        )
    references = {name: sink.properties[name] for name in asked if name not in properties}
    return Way(sink.brokers, sink.marks, tuple(sorted((properties | references).items())))


def _check_properties(where: str, way: Way) -> None:
    """Raise `TableError` for properties that librdkafka does not take; without brokers, it asks nobody."""
    from confluent_kafka import KafkaException, Producer

    given = dict(way.properties)
    for name in asked_in(where, given):
        # Its value is not known yet; a user without a password is refused as well.
        given |= {name: "x"} if name.startswith("sasl.") else {}
        given = given if name.startswith("sasl.") else without(given, (name,))

    def fault(properties: Mapping[str, str]) -> KafkaError | None:
        try:
            Producer({"log_level": "0", **properties})
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            return error
        return None

    if (found := fault(given)) is not None:
        name = next((name for name, value in given.items() if fault({name: value}) is not None), "")
        which = f"properties: {name}: " if name else ""
        raise TableError(f"{where}: {which}{trouble_of(way.brokers, found)}")


def _messages(sink: KafkaSink, schema: Schema, rows: ColumnBatch) -> Iterator[Said]:
    for message in message_rows(schema, rows):
        yield Said(sink.topic, _message_key(sink, message), msgspec.json.encode(message))


def _message_key(sink: KafkaSink, row: Mapping[str, Any]) -> bytes | None:
    """The text of one field as it is; several fields, and all that is no text, as JSON."""
    if not sink.key:
        return None
    values = [row[name] for name in sink.key]
    if len(values) == 1:
        return values[0].encode() if isinstance(values[0], str) else msgspec.json.encode(values[0])
    return msgspec.json.encode(values)


def _mark_bytes(mark: Mark) -> bytes:
    return json.dumps([mark.checkpoint, mark.batch_id, dict(mark.positions)], sort_keys=True).encode()


def _read_bytes(raw: bytes, way: Way) -> Mark:
    try:
        return msgspec.convert(json.loads(raw), Mark)
    except (ValueError, msgspec.ValidationError):
        raise TableError(
            f"Kafka at {way.brokers}: topic {way.marks} holds what is no mark: name another topic in marks"
        ) from None
