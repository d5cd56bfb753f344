"""`gear-ingest` as a process, over a real broker: batches in, acks out, SIGTERM, kill -9, exit codes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Literal

import pytest

from geartrain.adapters.mqtt import AiomqttNet, MqttConnection
from geartrain.wire.codec import decode_control
from geartrain.wire.envelope import Ack
from geartrain.wire.topics import ack_topic
from geartrain_cloud.log.reader import LogReader
from tests.cloud.fleet import FLOW, TestDevice, prices
from tests.rosters import document, put_flow
from tests.running_broker import running_broker
from tests.waiting import WAIT_S

CONFIG = """
log = "log"
broker = "127.0.0.1:{port}"
"""


@pytest.fixture
def broker_port(tmp_path: Path, broker_kind: Literal["mosquitto", "amqtt"]) -> Iterator[int]:
    with running_broker(tmp_path / "broker", broker_kind) as broker:
        yield broker.port


@contextmanager
def gear_ingest(folder: Path, port: int, before: str = "") -> Iterator[subprocess.Popen[bytes]]:
    path = folder / "ingest.toml"
    path.write_text(CONFIG.format(port=port), encoding="utf-8")
    put_flow(folder / "log", FLOW, document({"quotes": ("device-1",)}))
    shell = f'{before}exec "$0" -m geartrain_cloud.ingest.main --config "$1"'
    command = ["sh", "-c", shell, sys.executable, str(path)]
    with (folder / "ingest.log").open("ab") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Link:
    """A device's side of the broker."""

    def __init__(self, connection: MqttConnection, device: TestDevice, acked_before: int) -> None:
        self._connection, self._device = connection, device
        self._arrivals = connection.incoming()
        self.acks: list[Ack] = []
        self._acked_before = acked_before

    async def send_until_acked(self) -> None:
        """Publish all batches that are not acked, again and again, until the last is."""
        async with asyncio.timeout(WAIT_S):
            while not self.acks or self.acks[-1].seq < self._device.seq:
                acked = self.acks[-1].seq if self.acks else self._acked_before
                for seq in range(acked + 1, self._device.seq + 1):
                    await self._connection.publish(self._device.topic, self._device.payload(seq))
                await self._hear(0.5)

    async def _hear(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not self.acks or self.acks[-1].seq < self._device.seq:
                    control = decode_control((await anext(self._arrivals)).payload)
                    if isinstance(control, Ack):
                        self.acks.append(control)
        except TimeoutError:
            self._arrivals = self._connection.incoming()


@asynccontextmanager
async def linked(device: TestDevice, port: int, acked_before: int = 0) -> AsyncIterator[Link]:
    async with AiomqttNet("127.0.0.1", port).connect("device") as connection:
        await connection.subscribe(ack_topic(device.name, FLOW))
        yield Link(connection, device, acked_before)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_batches_go_through_a_real_broker_and_sigterm_ends_well(
    tmp_path: Path, broker_port: int, number: int, code: int
) -> None:
    device = TestDevice()

    async def run() -> Ack:
        device.schemas()
        device.quotes(1.0, 2.0)
        async with linked(device, broker_port) as link:
            await link.send_until_acked()
            device.quotes(3.0)
            await link.send_until_acked()
            return link.acks[-1]

    with gear_ingest(tmp_path, broker_port) as process:
        ack = asyncio.run(run())
        process.send_signal(number)
        assert process.wait(timeout=WAIT_S) == code
    assert (ack.seq, ack.digest, ack.epoch) == (3, device.digest, device.epoch)
    assert prices(LogReader(tmp_path / "log")) == [1.0, 2.0, 3.0]
    status = json.loads((tmp_path / "log" / "status.json").read_bytes())
    assert status["flows"][FLOW]["channels"]["quotes"]["rows"] == 3
    assert status["flows"][FLOW]["devices"]["device-1"]["seq"] == 3
    assert status["counters"]["incoming_dropped"] == 0


@pytest.mark.slow
def test_kill_9_loses_and_doubles_nothing(tmp_path: Path, broker_port: int) -> None:
    device = TestDevice()
    device.schemas()

    async def run(process: subprocess.Popen[bytes], acked: int, is_last: bool) -> int:
        """Send 100 batches more; kill ingest at the first ack of any of them, unless it is its last life."""
        first = device.seq
        for _ in range(100):
            device.quotes(float(device.number))
        async with linked(device, broker_port, acked) as link, asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(link.send_until_acked())
            while not is_last and not any(ack.seq > first for ack in link.acks):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            if is_last:
                await sending
            process.kill()
            sending.cancel()
        return link.acks[-1].seq

    acked = [0]
    for life in range(3):
        with gear_ingest(tmp_path, broker_port) as process:
            acked.append(asyncio.run(run(process, acked[-1], is_last=life == 2)))
    assert acked == sorted(acked)
    assert acked[-1] == device.seq
    assert prices(LogReader(tmp_path / "log")) == [float(n) for n in range(300)]


@pytest.mark.slow
def test_full_disk_ends_it_with_one_sentence_and_nothing_acked_is_lost(
    tmp_path: Path, broker_port: int
) -> None:
    device = TestDevice()
    device.schemas()
    for _ in range(60):
        device.quotes(*(float(n) for n in range(200)))

    async def run(process: subprocess.Popen[bytes]) -> int:
        async with linked(device, broker_port) as link, asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(link.send_until_acked())
            while process.poll() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            sending.cancel()
        return link.acks[-1].seq if link.acks else 0

    # No file may grow beyond 300 blocks, so that a segment or the ledger soon cannot be written.
    with gear_ingest(tmp_path, broker_port, before="ulimit -f 300 && ") as process:
        acked = asyncio.run(run(process))
        assert process.wait() == 1
    (sentence,) = [
        line
        for line in (tmp_path / "ingest.log").read_text().splitlines()
        if line.startswith("gear-ingest: ")
    ]
    assert "File too large" in sentence or "disk" in sentence
    logged = len(prices(LogReader(tmp_path / "log")))
    assert logged >= (acked - 1) * 200
    with gear_ingest(tmp_path, broker_port):
        asyncio.run(send_rest(device, broker_port, acked))
    assert prices(LogReader(tmp_path / "log")) == [float(n) for n in range(200)] * 60


async def send_rest(device: TestDevice, port: int, acked: int) -> None:
    async with linked(device, port, acked) as link:
        await link.send_until_acked()


@pytest.mark.slow
def test_mistakes_are_one_sentence_and_an_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "ingest.toml"
    command = [sys.executable, "-m", "geartrain_cloud.ingest.main", "--config", str(path)]

    def run() -> tuple[int, list[str]]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        return done.returncode, done.stderr.splitlines()

    assert run() == (2, [f"gear-ingest: {path} cannot be read: No such file or directory"])
    path.write_text(CONFIG.format(port=1) + "[flows.stocks]\ndevices = ['device-1']\n", encoding="utf-8")
    code, lines = run()
    assert (code, len(lines)) == (2, 1)
    assert "flows: ingest takes them from the log's roster" in lines[0]
    path.write_text(CONFIG.format(port=1), encoding="utf-8")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "ledger.sqlite").write_bytes(b"no database at all" * 1_000)
    code, lines = run()
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith("gear-ingest: the ledger ")
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == ["ledger.sqlite", "lock"]


def test_pyarrow_does_not_import_pandas_in_the_midst_of_the_first_commit() -> None:
    code = (
        "import sys, pyarrow as pa\n"
        "from geartrain_cloud.ingest.main import without_pandas\n"
        "without_pandas()\n"
        "table = pa.table({'a': pa.array([1, None], pa.int64()), 'b': pa.array(['x', None])})\n"
        "assert table.to_pylist() == [{'a': 1, 'b': 'x'}, {'a': None, 'b': None}]\n"
        "print('pandas' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
