"""Apps of one device that share what can be opened only once: over real sockets, and as processes."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import termios
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from geartrain import Flow, Table
from geartrain.errors import SourceError
from geartrain.runtime.opened import open_sources
from geartrain.source import Batch, Source, Split
from geartrain_devices import sharing
from geartrain_devices.live import Framed, LiveBufferSplit
from geartrain_devices.modbus import ModbusRtu
from geartrain_devices.serial_lines import SerialLines
from geartrain_devices.sharing import (
    ITEM_BYTES_MAX,
    READERS_MAX,
    WAITING_BYTES_MAX,
    ExclusiveSplit,
)
from tests.devices.agent_process import AgentProcess
from tests.devices.lines_flow import Line
from tests.waiting import WAIT_S


class Sensor:
    """What can be opened once; it says what the test has it say."""

    def __init__(self, folder: Path) -> None:
        self.path, self.shared = folder / "sensor", folder / "shared"
        self.path.touch()
        self.shared.mkdir(mode=0o700)
        self.hear: Callable[[Framed], None] | None = None
        self.opened = 0

    async def listen(self, hear: Callable[[Framed], None]) -> None:
        assert self.hear is None, "it is open"
        self.hear, self.opened = hear, self.opened + 1
        try:
            await asyncio.Event().wait()
        finally:
            self.hear = None

    def says(self, *lines: bytes) -> None:
        assert self.hear is not None
        for line in lines:
            self.hear(Framed(line))


class Camera(Source[bytes]):
    exclusive: ClassVar[tuple[str, ...]] = ("path",)
    each_its_own: ClassVar[tuple[str, ...]] = ("prefix",)
    path: str = ""
    width: int = 640
    prefix: str = ""

    def on(self, sensor: Sensor, app: str, shared: Path | None = None) -> App:
        read = partial(self._read, self.prefix.encode())
        split = ExclusiveSplit("source eyes", "d1", app, self, Framed, sensor.listen, read)
        split.share(shared or sensor.shared, app)
        return App(split)

    @staticmethod
    def _read(prefix: bytes, one: Framed) -> tuple[int, bytes]:
        return 0, prefix + one.raw

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        return []  # a test makes its split by `on`


class App:
    """A reader's agent: what it has read."""

    def __init__(self, split: Split) -> None:
        self.split, self.position = split, 0
        self.values: list[Any] = []
        self.reasons: list[str] = []

    async def read(self) -> None:
        found: Batch = await self.split.read(self.position, 10_000)
        self.position = found.position
        self.values += found.values
        self.reasons += [one.reason for one in found.rejects]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await self.read()
                await asyncio.sleep(0.002)


def tell(story: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(WAIT_S):
            await story()

    asyncio.run(whole())


async def both_hear(sensor: Sensor, owner: App, reader: App) -> None:
    """Until the reader has connected; then both forget what they have heard."""
    await owner.until(lambda: sensor.hear is not None)
    async with asyncio.timeout(WAIT_S):
        while not reader.values:
            sensor.says(b"?")
            await owner.read()
            await reader.read()
            await asyncio.sleep(0.005)
    sensor.says(b"!")
    await owner.until(lambda: owner.values[-1].endswith(b"!"))
    await reader.until(lambda: reader.values[-1].endswith(b"!"))
    owner.values.clear()
    reader.values.clear()


def test_one_opens_it_and_the_others_hear_it_until_another_has_to(tmp_path: Path) -> None:
    sensor = Sensor(tmp_path)
    other_name = tmp_path / "by-id"
    other_name.symlink_to(sensor.path)

    async def story() -> None:
        owner = Camera(path=str(sensor.path)).on(sensor, "first.1")
        await owner.until(lambda: sensor.hear is not None)
        reader = Camera(path=str(other_name), prefix="read ").on(sensor, "second.1")
        await both_hear(sensor, owner, reader)
        lines = [b"%d" % n for n in range(500)]
        sensor.says(*lines)
        await owner.until(lambda: len(owner.values) == 500)
        await reader.until(lambda: len(reader.values) == 500)
        assert (owner.values, reader.values) == (lines, [b"read " + line for line in lines])
        assert (sensor.opened, owner.reasons, reader.reasons) == (1, [], [])
        await owner.split.close()
        assert sensor.hear is None
        await reader.until(lambda: sensor.hear is not None)
        sensor.says(b"alone")
        await reader.until(lambda: len(reader.values) == 501)
        again = Camera(path=str(sensor.path)).on(sensor, "first.1")
        await both_hear(sensor, reader, again)
        assert sensor.opened == 2
        (reason,) = reader.reasons
        gone = "app first.1 does not have it open any more: what was said until it is open again is missing"
        assert reason == f"d1/second.1: {gone}"
        await again.split.close()
        await reader.split.close()

    tell(story)


def test_apps_that_would_open_it_otherwise_are_refused_by_name(tmp_path: Path) -> None:
    sensor = Sensor(tmp_path)

    async def story() -> None:
        owner = Camera(path=str(sensor.path)).on(sensor, "first.1")
        await owner.until(lambda: sensor.hear is not None)
        wide = Camera(path=str(sensor.path), width=1_920).on(sensor, "second.1")
        with pytest.raises(SourceError) as raised:
            await wide.until(lambda: False)
        assert str(raised.value) == (
            "source eyes: app first.1 opens it with width = 640, app second.1 with width = 1920, "
            "and both have one path: give both the same"
        )
        sensor.says(b"on")
        await owner.until(lambda: owner.values == [b"on"])
        await owner.split.close()

    tell(story)


def test_it_is_opened_anew_where_it_is_plugged_in_elsewhere(tmp_path: Path) -> None:
    sensor, name = Sensor(tmp_path), tmp_path / "by-id"
    (tmp_path / "elsewhere").touch()
    name.symlink_to(sensor.path)

    async def story() -> None:
        owner = Camera(path=str(name)).on(sensor, "first.1")
        await owner.until(lambda: sensor.hear is not None)
        name.unlink()
        name.symlink_to(tmp_path / "elsewhere")
        await owner.until(lambda: sensor.opened == 2 and sensor.hear is not None)
        reader = Camera(path=str(tmp_path / "elsewhere")).on(sensor, "second.1")
        await both_hear(sensor, owner, reader)
        await reader.split.close()
        await owner.split.close()
        assert sensor.opened == 2

    tell(story)


def hello(app: str, options: dict[str, Any]) -> bytes:
    body = msgspec.msgpack.encode({"app": app, "options": options})
    return struct.pack(">I", len(body)) + body


def connected(sensor: Sensor) -> socket.socket:
    (path,) = sensor.shared.glob("*.sock")
    client = socket.socket(socket.AF_UNIX)
    with sharing._address(path.parent, path.stem) as address:
        client.connect(address)
    return client


async def received(client: socket.socket, count: int) -> bytes:
    data, loop = b"", asyncio.get_running_loop()
    client.setblocking(False)
    while len(data) < count:
        came = await loop.sock_recv(client, count - len(data))
        assert came
        data += came
    return data


def test_a_reader_that_falls_behind_loses_by_number_and_holds_up_nobody(tmp_path: Path) -> None:
    sensor = Sensor(tmp_path)
    lines = [b"%06d" % n + bytes(10_000) for n in range(1_000)]

    async def story() -> None:
        owner = Camera(path=str(sensor.path)).on(sensor, "first.1")
        await owner.until(lambda: sensor.hear is not None)
        with connected(sensor) as client:
            options = {"source": "Camera", "width": 640}
            client.sendall(hello("slow.1", options))
            (size,) = struct.unpack(">I", await received(client, 4))
            greeted = msgspec.msgpack.decode(await received(client, size))
            assert greeted == {"app": "first.1", "options": options}
            await asyncio.sleep(0.2)  # the owner has its greeting by then
            for line in lines:  # nobody reads them at the other end
                sensor.says(line)
                await owner.read()
            assert owner.values == lines
            got, lost = list[bytes](), 0
            while len(got) + lost < len(lines):
                size, missed = struct.unpack(">II", await received(client, 8))
                lost += missed
                if size:
                    got.append(msgspec.msgpack.decode(await received(client, size), type=Framed).raw)
            assert len(got) + lost == len(lines)
            assert lost > 0
            assert got == lines[: len(got)]
            assert WAITING_BYTES_MAX // 10_100 <= len(got) < 500
        await owner.split.close()

    tell(story)


def test_a_reader_is_told_what_it_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geartrain_devices.sharing.WAITING_MAX", 10)
    sensor = Sensor(tmp_path)

    async def story() -> None:
        owner = Camera(path=str(sensor.path)).on(sensor, "first.1")
        await owner.until(lambda: sensor.hear is not None)
        reader = Camera(path=str(sensor.path)).on(sensor, "second.1")
        await both_hear(sensor, owner, reader)
        sensor.says(*(b"%d" % n for n in range(25)))  # at once, so that nothing is sent meanwhile
        await reader.until(lambda: bool(reader.reasons))
        assert reader.values == [b"%d" % n for n in range(10)]
        (reason,) = reader.reasons
        behind = "because this app did not keep up with app first.1, which has opened it"
        assert reason == f"d1/second.1: 15 records were dropped here, {behind}"
        await owner.until(lambda: len(owner.values) == 25)
        await reader.split.close()
        await owner.split.close()

    tell(story)


DEEP = b"\x91" * 5_000 + b"\xc0"
NONSENSE = [
    b"",
    b"\x00",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff\xff\xff\xff" + bytes(100),
    struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1",
    struct.pack(">I", len(DEEP)) + DEEP,
    hello("x" * 300, {}),
    hello("other.1", {"width": 5}),
    hello("slow.1", {"source": "Camera", "width": 640}) + b"and more",
]


def test_nonsense_of_another_process_stops_no_app(tmp_path: Path) -> None:
    sensor = Sensor(tmp_path)

    async def story() -> None:
        owner = Camera(path=str(sensor.path)).on(sensor, "first.1")
        await owner.until(lambda: sensor.hear is not None)
        for data in NONSENSE:
            with connected(sensor) as client:
                client.sendall(data)
                await owner.read()
                await asyncio.sleep(0.02)
        clients = [connected(sensor) for _ in range(READERS_MAX)]
        await asyncio.sleep(0.1)
        with connected(sensor) as one_too_many:
            one_too_many.setblocking(False)
            with pytest.raises((ConnectionError, AssertionError)):
                await received(one_too_many, 1)
        for client in clients:
            client.close()
        reader = Camera(path=str(sensor.path)).on(sensor, "second.1")
        await both_hear(sensor, owner, reader)
        await reader.split.close()
        await owner.split.close()
        assert sensor.opened == 1

    tell(story)


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">II", ITEM_BYTES_MAX + 1, 0),
        struct.pack(">II", 4, 0) + b"\xc1\xc1\xc1\xc1",
        struct.pack(">II", len(DEEP), 0) + DEEP,
        struct.pack(">II", 3, 0) + msgspec.msgpack.encode([1, 2]),
    ],
)
def test_an_owner_that_sends_nonsense_is_left_and_told_of(
    tmp_path: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    sensor = Sensor(tmp_path)

    async def story() -> None:
        owner = Camera(path=str(sensor.path)).on(sensor, "first.1")
        await owner.until(lambda: sensor.hear is not None)
        (path,) = sensor.shared.glob("*.sock")
        path.unlink()
        left = asyncio.Event()

        async def serve(stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(hello("bad.1", {"source": "Camera", "width": 640}) + sent)
            while await stream.read(1_000):
                pass
            writer.close()
            left.set()

        with sharing._address(path.parent, path.stem) as address:
            server = await asyncio.start_unix_server(serve, path=address)
        reader = Camera(path=str(sensor.path)).on(sensor, "second.1")
        await reader.until(left.is_set)
        assert "source eyes: app bad.1, which has opened it, sends nonsense" in caplog.text
        server.close()
        await reader.split.close()
        await owner.split.close()
        assert reader.values == []

    tell(story)


def test_the_folder_may_be_deep(tmp_path: Path) -> None:
    sensor, deep = Sensor(tmp_path), tmp_path / ("a" * 100) / "shared"
    deep.mkdir(parents=True)

    async def story() -> None:
        owner = Camera(path=str(sensor.path)).on(sensor, "first.1", deep)
        await owner.until(lambda: sensor.hear is not None)
        reader = Camera(path=str(sensor.path)).on(sensor, "second.1", deep)
        await both_hear(sensor, owner, reader)
        await reader.split.close()
        await owner.split.close()
        assert sensor.opened == 1
        assert any(deep.glob("*.lock"))

    tell(story)


def test_a_port_is_one_whatever_reads_it(tmp_path: Path) -> None:
    master, slave = os.openpty()
    port, shared = os.ttyname(slave), tmp_path / "shared"
    shared.mkdir()

    async def story() -> None:
        (lines,) = SerialLines[Line](port=port).open("d1", "lines", Line)
        (registers,) = ModbusRtu[int](port=port, registers={"value": "holding 1"}).open("d1", "meter", int)
        for split, app in ((lines, "scale.1"), (registers, "meter.1")):
            assert isinstance(split, ExclusiveSplit)
            split.share(shared, app)
        scale = App(lines)
        await scale.until(lambda: any(shared.glob("*.sock")))
        with pytest.raises(SourceError) as raised:
            await App(registers).until(lambda: False)
        assert "app scale.1" in str(raised.value)
        assert "app meter.1" in str(raised.value)
        await registers.close()
        await lines.close()

    tell(story)
    os.close(master)
    os.close(slave)


class Unshared(Source[Line]):
    exclusive: ClassVar[tuple[str, ...]] = ("path",)
    path: str = "camera"

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        return [LiveBufferSplit(device, step, lambda _: asyncio.sleep(0))]


def test_a_split_that_cannot_be_shared_is_one_sentence(tmp_path: Path) -> None:
    flow = Flow("eyes")
    flow.source("eyes", Unshared(), out=Line).sink("out", Table("eyes"))
    assert [one.step for one in open_sources(flow.graph(), "d1")] == ["eyes"]
    with pytest.raises(SourceError) as raised:
        open_sources(flow.graph(), "d1", tmp_path)
    assert str(raised.value) == (
        "source eyes, split d1: its source is exclusive, so that it must define share"
    )


class Talker:
    """A pseudo-terminal that says one number a line, for ever."""

    def __init__(self) -> None:
        self.master, self._slave = os.openpty()
        os.set_blocking(self.master, False)
        self.port, self.said, self._rest = os.ttyname(self._slave), 0, b""

    async def talk(self) -> None:
        while True:
            self._rest += b"%d\n" % self.said
            self.said += 1
            with suppress(BlockingIOError):
                self._rest = self._rest[os.write(self.master, self._rest) :]
            await asyncio.sleep(0.01)

    def is_open(self) -> bool:
        return bool(termios.tcgetattr(self.master)[4] == termios.B19200)


def sharing_agents(folder: Path, options: dict[str, Any]) -> list[AgentProcess]:
    """Two that have only the folder for sharing in common, where the kernel has Landlock."""
    state, agents = folder / "state", []
    for flow in ("serial", "weights"):
        for own in (folder / flow, state / flow, state / "shared"):
            own.mkdir(parents=True, exist_ok=True)
        more = {"state": str(state / flow), "shared": str(state / "shared"), "private": [str(state)]}
        agents.append(AgentProcess(folder / flow, flow, options, policy="drop_oldest", more=more))
    return agents


def heard(agent: AgentProcess) -> list[int]:
    return [int(record.line) for record in agent.records()]


@pytest.mark.slow
def test_two_agents_share_a_port_and_either_may_be_killed(tmp_path: Path) -> None:
    """Each line once at each while both live, and what is missing is where the owner was killed."""
    talker = Talker()
    one, two = sharing_agents(tmp_path, {"port": talker.port, "baud": 19_200})

    async def on_both() -> tuple[int, int]:
        """The lines of a while in which both have lived."""

        def newest() -> list[int]:
            return [max(heard(agent), default=-1) for agent in (one, two)]

        now = talker.said
        await one.until(lambda: min(newest()) >= now)
        first = max(newest())
        await one.until(lambda: min(newest()) >= first + 100)
        return first, first + 100

    whiles, killed = list[tuple[int, int]](), list[int]()

    async def story() -> None:
        talking = asyncio.create_task(talker.talk())
        await one.until(talker.is_open)
        await one.until(lambda: len(heard(one)) > 0)  # it owns the port
        two.start()
        whiles.append(await on_both())
        killed.append(max(heard(two)))
        one.kill()
        await two.until(lambda: max(heard(two)) > talker.said - 20 > killed[0] + 100)
        one.start()
        whiles.append(await on_both())
        one.kill()  # a reader now
        until = talker.said + 50
        await two.until(lambda: max(heard(two)) >= until)
        whiles.append((whiles[1][0], until))
        talking.cancel()

    with two.with_broker():
        one.run(lambda _: two.with_ingest(story))
    for agent, shared in ((one, whiles[:2]), (two, whiles)):
        lines = heard(agent)
        assert lines == sorted(set(lines))
        for first, last in shared:
            assert [n for n in lines if first <= n <= last] == [*range(first, last + 1)]
    lines = heard(two)
    gaps = [(a, b) for a, b in pairwise(lines) if b != a + 1]
    assert len(gaps) <= 1
    assert all(a >= killed[0] for a, _ in gaps)
    reasons = [letter.reason for letter in two.records("_dead_letters")]
    assert sum("app serial does not have it open any more" in reason for reason in reasons) == 1
