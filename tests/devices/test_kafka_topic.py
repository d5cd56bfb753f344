"""A topic on librdkafka's mock cluster: partitions, offsets, values that are none, brokers that go away."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from geartrain import Flow, Record, Table
from geartrain.errors import FlowError, SourceError
from geartrain.runtime.secrets import with_secrets
from geartrain_devices import kafka_topic
from geartrain_devices.kafka_topic import KafkaTopic
from tests.devices.agent_process import AgentProcess
from tests.devices.reading import until
from tests.sinks.sasl_listener import listening
from tests.waiting import WAIT_S, Wait

NOW_MS = 1_767_225_600_000


class Row(Record):
    n: int


class Cluster:
    """One of a broker in this process; topics are made when they are asked for, with 4 partitions."""

    def __init__(self) -> None:
        self._producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "x", "log_level": 0})
        brokers = self._producer.list_topics(timeout=WAIT_S).brokers.values()
        self._said = 0
        self.brokers = ",".join(f"{one.host}:{one.port}" for one in brokers)

    def say(self, partition: int, *values: bytes | None) -> None:
        for value in values:
            self._producer.produce("rows", value, partition=partition, timestamp=NOW_MS + self._said)
            self._said += 1
        assert self._producer.flush(60) == 0


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()  # it ends when nobody has it


def rows(begin: int, end: int) -> list[bytes]:
    return [json.dumps({"n": n}).encode() for n in range(begin, end)]


def opened(at: str, **options: Any) -> list[Any]:
    source = KafkaTopic[Row](**{"brokers": at, "topic": "rows", "partitions": 2, **options})
    return list(source.open("cloud-1", "rows", Row))


def test_partitions_are_splits_and_offsets_are_positions(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        cluster.say(0, *rows(0, 5), b"no JSON", None)
        cluster.say(1, *rows(10, 12))
        first, second = opened(cluster.brokers)
        assert (first.name, second.name) == ("cloud-1/0", "cloud-1/1")
        found = await until(first, 7, limit=3)
        assert [one.n for one in found.values] == found.numbers == [0, 1, 2, 3, 4]
        assert found.times[1] == (NOW_MS + 1) * 1_000
        assert [(one.number, one.raw) for one in found.rejects] == [(5, b"no JSON"), (6, b"")]
        assert "it has no value" in found.rejects[1].reason
        assert [one.n for one in (await until(second, 2)).values] == [10, 11]
        cluster.say(0, *rows(7, 9))
        assert (await until(first, 2, found.position)).numbers == [7, 8]
        await first.close()
        await second.close()
        (again, other) = opened(cluster.brokers, time="n")
        back = await until(again, 4, 3)
        assert (back.numbers, back.times[0]) == ([3, 4, 7, 8], 3_000_000)
        await again.close()
        await other.close()

    asyncio.run(story())
    assert "partitions_unread: source rows: topic rows has 4 partitions, of which 2 are read" in caplog.text


def test_a_position_behind_the_end_of_the_topic_is_refused(cluster: Cluster) -> None:
    async def story() -> None:
        cluster.say(0, *rows(0, 3))
        (split, _) = opened(cluster.brokers)
        with pytest.raises(
            SourceError, match="has no offset 50 yet, which was read up to: where the topic was"
        ):
            await until(split, 1, 50)
        await split.close()

    asyncio.run(story())


def test_offsets_that_kafka_has_deleted_are_told() -> None:
    """Kafka's mock deletes nothing, so the split is told so here."""
    (split, _) = opened("127.0.0.1:9")
    taken = kafka_topic._Taken()
    split._at, split._is_gone = 3, True
    split._tell_gone(taken, 8)
    assert (taken.rejects[0].number, split._at) == (7, 8)
    assert "offsets 3 to 7 were deleted before they were read" in taken.rejects[0].reason


class Said:
    """A message as the consumer of confluent-kafka gives it."""

    def __init__(self, offset: int, value: bytes | None = None) -> None:
        self._offset, self._value = offset, value

    def error(self) -> KafkaError | None:
        return None if self._value else KafkaError(KafkaError._PARTITION_EOF)

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 1, NOW_MS


def test_at_the_end_nothing_is_behind_though_marks_of_transactions_stand_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka's mock has no such marks. With a real broker: `make kafka-proof`."""
    (split, _) = opened("127.0.0.1:9")
    monkeypatch.setattr(split._partition, "seek", lambda _: None)

    async def read(*said: Said) -> tuple[list[int], bool]:
        monkeypatch.setattr(split._partition, "take", lambda _: list(said))
        return (await split.read(max(split._at, 0), 10)).numbers, split.is_behind

    async def story() -> None:
        value = b'{"n": 1}'
        assert await read(Said(0, value), Said(1, value)) == ([0, 1], True)
        assert await read(Said(3)) == ([], False)
        assert await read(Said(3, value), Said(5)) == ([3], False)
        await split.close()

    asyncio.run(story())


def test_without_brokers_it_waits_and_is_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.say(0, *rows(0, 2))
        (split, _) = opened(cluster.brokers)
        found = await until(split, 2)
        del cluster
        wait = Wait("the source to be behind")
        while not split.is_behind:
            wait.check()
            assert not (await split.read(found.position, 10)).values
            await asyncio.sleep(0.01)
        await split.close()

    asyncio.run(story())
    assert "source cloud-1/rows/0: topic rows: " in caplog.text


def test_a_user_whom_the_broker_refuses_is_told_and_its_password_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker's own words have the password in them."""

    async def story() -> None:
        with listening() as broker:
            shown = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ann"}
            (split, _) = opened(broker.brokers, properties=shown, password="planted-4Kq9")
            wait = Wait("the refusal of a user")
            while not caplog.records:
                wait.check()
                await split.read(0, 10)
                await asyncio.sleep(0.01)
            assert split.is_behind
            assert broker.shown[0] == ("ann", "planted-4Kq9")
            await split.close()
            said = f"source cloud-1/rows/0: topic rows: Kafka at {broker.brokers} refuses the user: correct "
            assert caplog.messages == [f"{said}sasl.username, sasl.password or sasl.mechanism"]

    asyncio.run(story())


def test_a_refusal_is_not_hidden_by_what_comes_of_it() -> None:
    (split, _) = opened("b:1")
    partition = split._partition
    for code in (KafkaError._TRANSPORT, KafkaError._AUTHENTICATION, KafkaError._ALL_BROKERS_DOWN):
        partition.heard(KafkaError(code))
        assert partition.trouble.startswith("Kafka at b:1 refuses") == (code != KafkaError._TRANSPORT)


def test_what_cannot_be_is_said_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kafka.properties"
    for options, said in (
        ({"brokers": " "}, "has no brokers"),
        ({"topic": ""}, "has no topic"),
        ({"properties": {"sasl.password": "x"}}, "properties hold sasl.password: write it to a file"),
        ({"properties": {"auto.offset.reset": "latest"}}, "auto.offset.reset is for the source to say"),
        ({"properties_file": file}, "kafka.properties cannot be read"),
    ):
        with pytest.raises(SourceError, match=said):
            opened("b:1", **options)
    file.write_text("# of the cluster\nsasl.username = a\nsecret\n")
    with pytest.raises(SourceError, match=r"line 3: write NAME=VALUE") as caught:
        opened("b:1", properties_file=file)
    assert "secret" not in str(caught.value)
    (split, _) = opened("b:1", properties={"no.such": "1"})
    with pytest.raises(SourceError, match=r"with these properties \(No such .*\): correct properties or"):
        asyncio.run(split.read(0, 1))
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(SourceError, match=r'pip install "geartrain-devices\[kafka\]"'):
        opened("b:1")


def test_its_password_is_a_secret_and_stands_above_the_file(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("sasl.username = reader\nsasl.password = former\n")
    flow = Flow("locked")
    source = KafkaTopic[Row](brokers="b:1", topic="rows", properties_file=file, password="secret:kafka")
    flow.source("rows", source, out=Row).sink("all", Table("all"))
    graph = with_secrets(flow.graph(), {"kafka": "planted"})
    (split,) = graph["rows"].operator.source.open("d", "rows", Row)  # type: ignore[attr-defined]
    given = split._partition._config
    assert (given["sasl.username"], given["sasl.password"]) == ("reader", "planted")
    with pytest.raises(FlowError, match="write secret:NAME") as refused:
        Flow("open").source("rows", KafkaTopic[Row](password="planted"), out=Row)
    assert "planted" not in str(refused.value)


@pytest.mark.slow
def test_an_agent_that_is_killed_reads_each_record_once(tmp_path: Path, cluster: Cluster) -> None:
    options = {"brokers": cluster.brokers, "topic": "rows", "partitions": 2}
    agent = AgentProcess(tmp_path, "kafka", options)

    async def story(agent: AgentProcess) -> None:
        for partition in (0, 1):
            cluster.say(partition, *rows(partition * 1_000, partition * 1_000 + 300))
        await agent.until(lambda: len(agent.records()) > 50)
        agent.kill()
        cluster.say(0, *rows(300, 400))
        agent.start()
        await agent.until(lambda: len(agent.records()) >= 700)

    agent.run(story)
    assert sorted(one.n for one in agent.records()) == [*range(400), *range(1_000, 1_300)]
