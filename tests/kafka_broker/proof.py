"""A real broker of Kafka under kills: `make kafka-proof`, which needs Java 17 and Maven, and takes minutes.

A writer brings micro-batches to a topic by the sink `KafkaSink`. It is killed 20 times and the broker three
times. Then the source `KafkaTopic` reads the topic, of which the test knows each record. It ends with 0 where
each micro-batch is there once and in order, else with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from geartrain.schema import derive
from geartrain.sinks import KafkaSink
from geartrain_cloud.sinks.kafka import KafkaTopics
from geartrain_devices.kafka_topic import KafkaTopic
from tests.ports import free_port
from tests.sinks.test_stores import Pair, columns
from tests.waiting import WAIT_S

VERSION = "3.9.1"
BATCHES, ROWS, PARTITIONS = 400, 50, 3
WRITERS_KILLED, BROKERS_KILLED = 20, 3
LIMIT_S = 120.0
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>geartrain</groupId><artifactId>kafka-proof</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version>
</dependency></dependencies></project>
"""
_SERVER = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={folder}/logs
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
"""


class Broker:
    """One broker and controller in one process."""

    def __init__(self, folder: Path) -> None:
        self.port, self.folder = free_port(), folder
        self.address = f"127.0.0.1:{self.port}"
        (folder / "pom.xml").write_text(_POM.format(version=VERSION), encoding="utf-8")
        fetch = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}/jars"]
        subprocess.run(fetch, cwd=folder, check=True, timeout=WAIT_S)
        server = _SERVER.format(port=self.port, controller=free_port(), folder=folder)
        (folder / "server.properties").write_text(server, encoding="utf-8")
        name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._run("kafka.tools.StorageTool", "format", "-t", name, "-c", "server.properties").wait(LIMIT_S)
        self.process = self._run("kafka.Kafka", "server.properties")

    def _run(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "broker.log").open("ab") as log:
            command = ["java", "-Xmx512m", "-cp", f"{self.folder}/jars/*", *arguments]
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process = self._run("kafka.Kafka", "server.properties")


def row(batch: int, number: int) -> tuple[int, Pair]:
    at = batch * ROWS + number + 1
    return at, Pair(f"s{at % 17}", at / 8)


def write(address: str, done: Path) -> None:
    """Bring the micro-batches from that on which the file `done` names, as a host does that starts again."""
    store = KafkaTopics("proof")
    store.declare("out", KafkaSink("out", key=("symbol",), brokers=address, topic="out"), derive(Pair))
    first = int(done.read_text()) if done.exists() else 0
    store.attach("q", "c", has_run=first > 0)
    for batch in range(first, BATCHES):
        rows = [row(batch, number) for number in range(ROWS)]
        store.write("q", batch, {"c": batch + 1}, {"out": [columns(Pair, *rows)]})
        fresh = done.with_suffix(".new")
        fresh.write_text(str(batch + 1))
        fresh.rename(done)
    store.close()


async def read(address: str) -> list[list[Pair]]:
    """The records of each partition, in order."""
    source = KafkaTopic[Pair](brokers=address, topic="out", partitions=PARTITIONS)
    found: list[list[Pair]] = []
    for split in source.open("cloud-1", "in", Pair):
        position, values, deadline = 0, list[Pair](), time.monotonic() + LIMIT_S
        while getattr(split, "is_behind", False) or not values:
            assert time.monotonic() < deadline, "a partition was not read to its end"
            batch = await split.read(position, 1_000)
            position = batch.position
            values += batch.values
            await asyncio.sleep(0.02)
        await split.close()
        found.append(values)
    return found


def prove(folder: Path) -> bool:
    chance, broker, done = random.Random(7), Broker(folder), folder / "done"
    try:
        admin = AdminClient({"bootstrap.servers": broker.address})
        made = admin.create_topics([NewTopic("out", PARTITIONS)], request_timeout=LIMIT_S)
        made["out"].result()
        kills = ["writer"] * WRITERS_KILLED + ["broker"] * BROKERS_KILLED
        chance.shuffle(kills)
        began = time.monotonic()
        for which in [*kills, "none"]:
            command = [sys.executable, "-m", "tests.kafka_broker.proof", "--write", broker.address, str(done)]
            writer = subprocess.Popen(command)
            if which == "none":
                assert writer.wait(LIMIT_S) == 0
                break
            held = done.read_text() if done.exists() else "0"
            while writer.poll() is None and (done.read_text() if done.exists() else "0") == held:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.1))
            if which == "broker":
                broker.kill()
                time.sleep(chance.uniform(0, 5))
            if writer.poll() is None:
                os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
            print(f"{which} killed at micro-batch {done.read_text()}", flush=True)
        found = asyncio.run(read(broker.address))
    finally:
        broker.process.kill()
    wanted = [row(batch, number)[1] for batch in range(BATCHES) for number in range(ROWS)]
    is_once = sorted(one.value for part in found for one in part) == [one.value for one in wanted]
    is_ordered = all([one.value for one in part] == sorted(one.value for one in part) for part in found)
    counts = {"records": len(wanted), "found": sum(map(len, found)), "once": is_once, "in order": is_ordered}
    seconds = time.monotonic() - began
    print(json.dumps({"kafka": VERSION, **counts, "seconds": round(seconds)}))
    return is_once and is_ordered


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--write", nargs=2, metavar=("ADDRESS", "FILE"), help="be the writer")
    given = options.parse_args()
    if given.write:
        write(given.write[0], Path(given.write[1]))
        return 0
    if missing := [name for name in ("java", "mvn") if shutil.which(name) is None]:
        print(f"kafka-proof: not run: {' and '.join(missing)} is not installed", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        return 0 if prove(Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
