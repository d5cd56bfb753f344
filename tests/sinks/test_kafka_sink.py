"""A sink of Kafka on librdkafka's mock cluster, which has transactions but hides no aborted message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from geartrain.schema import derive
from geartrain.sinks import KafkaSink, Table
from geartrain_cloud.hosting.prepared import SinkSaid
from geartrain_cloud.sinks.layout import Layout, TableError
from geartrain_cloud.sinks.opening import SinkPlace
from geartrain_cloud.sinks.tables import rows
from tests.sinks.test_stores import Pair, columns, tables_of
from tests.waiting import WAIT_S

PARTITIONS = 4  # of each topic that the mock makes


class Cluster:
    """One of a broker in this process; it makes a topic when it is asked for, and ends when nobody has it."""

    def __init__(self) -> None:
        config = {"test.mock.num.brokers": 1, "bootstrap.servers": "x", "log_level": 0}
        self.producer = Producer(config)
        brokers = self.producer.list_topics(timeout=WAIT_S).brokers.values()
        self.brokers = ",".join(f"{one.host}:{one.port}" for one in brokers)
        self.producer.list_topics("geartrain-marks", 60)  # made here, since the mock has no requests for that

    def sink(self, **options: Any) -> KafkaSink:
        return KafkaSink("alerts", **{"brokers": self.brokers, "topic": "alerts", **options})

    def read(self, topic: str = "alerts") -> list[tuple[bytes | None, Any]]:
        """(key, value) of all messages, partition by partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.brokers,
                "group.id": "test",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        found: list[tuple[bytes | None, Any]] = []
        ended = 0
        try:
            while ended < PARTITIONS:
                message = consumer.poll(60)
                assert message is not None
                error = message.error()
                if error is None:
                    found.append((message.key(), json.loads(message.value() or b"null")))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF
                    ended += 1
        finally:
            consumer.close()
        return found


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def values(cluster: Cluster) -> list[float]:
    return sorted(message["value"] for _, message in cluster.read())


def test_records_are_messages_with_a_key_and_an_identity(tmp_path: Path, cluster: Cluster) -> None:
    tables = tables_of(tmp_path, cluster.sink(key=("symbol",)), kind=Pair)
    tables.attach("q", "c", has_run=False)
    tables.write("q", 0, {"c": 1}, {"sink0": [columns(Pair, (1, Pair("ä", 1.5)))]})
    tables.close()
    time = "1970-01-01T00:00:00.000001Z"
    said = {"symbol": "ä", "value": 1.5, "_id": "s/1/01", "_time": time}
    assert cluster.read() == [("ä".encode(), said)]
    held = json.loads(json.dumps(dict(cluster.read("geartrain-marks"))[b"trades/q"]))
    assert held == ["c", 0, {"c": 1}]


def test_the_key_of_a_message(tmp_path: Path, cluster: Cluster) -> None:
    keys: list[tuple[tuple[str, ...], bytes | None]] = [
        ((), None),
        (("value",), b"1.5"),
        (("symbol", "value"), b'["a",1.5]'),
    ]
    sinks = [cluster.sink(key=key, topic=f"t{number}") for number, (key, _) in enumerate(keys)]
    tables = tables_of(tmp_path, *sinks, kind=Pair)
    tables.attach("q", "c", has_run=False)
    batch = [columns(Pair, (1, Pair("a", 1.5)))]
    tables.write("q", 0, {"c": 1}, {f"sink{number}": batch for number in range(len(keys))})
    tables.close()
    assert [cluster.read(sink.topic)[0][0] for sink in sinks] == [wanted for _, wanted in keys]


def test_a_micro_batch_that_is_run_again_is_there_once(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ({"sink0": [columns(Pair, (n, Pair("a", float(n))))]} for n in (1, 2))

    def killed(*_: Any) -> bool:
        raise KeyboardInterrupt

    tables = tables_of(tmp_path, cluster.sink(), kind=Pair)
    tables.attach("q", "c", has_run=False)
    with monkeypatch.context() as patched:
        patched.setattr(tables.own, "write", killed)  # between Kafka's commit and the flow's own file
        with pytest.raises(KeyboardInterrupt):
            tables.write("q", 0, {"c": 1}, first)
    tables.close()
    again = tables_of(tmp_path, cluster.sink(), kind=Pair)
    again.attach("q", "c", has_run=False)
    assert again.write("q", 0, {"c": 1}, first)
    assert again.write("q", 1, {"c": 2}, second)
    with pytest.raises(TableError, match="brings micro-batch 4"):
        again.write("q", 4, {"c": 5}, second)
    again.close()
    assert values(cluster) == [1.0, 2.0]


def test_another_checkpoint_is_refused(tmp_path: Path, cluster: Cluster) -> None:
    batches = [{"sink0": [columns(Pair, (n, Pair("a", float(n))))]} for n in range(2)]
    tables = tables_of(tmp_path, cluster.sink(), kind=Pair)
    tables.attach("q", "c", has_run=False)
    for number in range(2):
        tables.write("q", number, {"c": number + 1}, batches[number])
    tables.close()
    again = tables_of(tmp_path, cluster.sink(), kind=Pair)
    with pytest.raises(TableError, match="its checkpoint is not there"):
        again.attach("q", "d", has_run=False)
    again.close()
    assert values(cluster) == [0.0, 1.0]


def test_a_topic_that_comes_with_a_revision_begins_with_its_micro_batch(
    tmp_path: Path, cluster: Cluster
) -> None:
    tables = tables_of(tmp_path, Table("own"), kind=Pair)
    tables.attach("q", "c", has_run=False)
    tables.write("q", 0, {"c": 1}, {})
    tables.evolve([Layout("new", cluster.sink(), derive(Pair))])
    for _ in range(2):
        tables.write("q", 1, {"c": 2}, {"new": [columns(Pair, (1, Pair("a", 1.0)))]})
    tables.write("q", 2, {"c": 3}, {"new": [columns(Pair, (2, Pair("a", 2.0)))]})
    tables.close()
    assert values(cluster) == [1.0, 2.0]


def test_a_record_that_is_too_large_is_a_dead_letter(tmp_path: Path, cluster: Cluster) -> None:
    tables = tables_of(tmp_path, cluster.sink(), kind=Pair)
    tables.attach("q", "c", has_run=False)
    large = Pair("x" * 1_000_000, 1.0)
    tables.write("q", 0, {"c": 1}, {"sink0": [columns(Pair, (1, large), (2, Pair("a", 2.0)))]})
    tables.close()
    assert values(cluster) == [2.0]
    (letter,) = rows(tmp_path / "tables.sqlite", "dead_letters")
    assert "and Kafka takes 1000000 (message.max.bytes)" in letter["reason"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"brokers": " "}, "sink 'sink0' has no brokers: set brokers"),
        ({"topic": ""}, "sink 'sink0' has no topic"),
        ({"marks": "alerts"}, "marks cannot be the topic itself"),
        ({"properties": {"acks": "0"}}, "acks is for the sink to say"),
        ({"properties": {"sasl.password": "x"}}, "properties hold sasl.password: write it to a file"),
        ({"properties_file": "/no/file"}, "properties_file /no/file cannot be read"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(TableError, match=why):
        tables_of(
            tmp_path, KafkaSink("alerts", **{"brokers": "a:1", "topic": "alerts", **options}), kind=Pair
        )


def test_properties_that_librdkafka_refuses_are_one_sentence(tmp_path: Path) -> None:
    tables = tables_of(
        tmp_path, KafkaSink("alerts", brokers="a:1", topic="t", properties={"no.such": "1"}), kind=Pair
    )
    with pytest.raises(
        TableError,
        match=r'^Kafka at a:1 cannot be .* \(No such .*: "no\.such"\): correct ',
    ):
        tables.attach("q", "c", has_run=False)
    tables.close()


def test_a_host_of_flows_gets_it_as_data() -> None:
    sink = KafkaSink("alerts", key=("symbol",), brokers="a:1", topic="t", properties={"linger.ms": "5"})
    assert SinkSaid.of(SinkPlace("s", sink, derive(Pair))).place().sink == sink
