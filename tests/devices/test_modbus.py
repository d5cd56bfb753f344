"""Modbus over TCP and over a pair of pseudo-terminals, against the servers of pymodbus and plain `struct`."""

from __future__ import annotations

import ast
import asyncio
import os
import random
import re
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pymodbus.constants import ExcCodes
from pymodbus.server import ModbusSerialServer, ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

from geartrain import Record
from geartrain.adapters.system import SystemClock
from geartrain.errors import SourceError
from geartrain_devices.live import LiveBufferSplit
from geartrain_devices.modbus import ModbusRtu, ModbusTcp
from geartrain_devices.modbus_registers import Layout, Span, parse_register
from geartrain_devices.no_record import NoRecordError
from geartrain_devices.sharing import ExclusiveSplit
from tests.devices.agent_process import AgentProcess
from tests.devices.lines_flow import Power
from tests.ports import free_port
from tests.waiting import WAIT_S, in_time


class Drive(Record):
    unit: int
    speed: int
    torque: float
    energy: int
    is_running: bool
    has_fault: bool
    name: str
    note: str = "none"


class Speed(Record):
    unit: int
    speed: int


REGISTERS = {
    "speed": "holding 0 int16",
    "torque": "holding 1 float32 words little",
    "energy": "input 10 uint32",
    "is_running": "coil 3",
    "has_fault": "holding 3 bit 9",
    "name": "holding 4 text 3",
}


def words(raw: bytes) -> list[int]:
    return [word for (word,) in struct.iter_unpack(">H", raw)]


def drive(unit: int, speed: int, action: Any = None) -> SimDevice:
    """A device whose registers were put together here."""
    torque = words(struct.pack(">f", speed / 8))[::-1]
    holding = [*words(struct.pack(">h", speed)), *torque, 1 << 9, *words(b"ab\0c\0\0")]
    return SimDevice(
        unit,
        (
            [SimData(3, values=[True], datatype=DataType.BITS)],
            [SimData(0, values=[False], datatype=DataType.BITS)],
            [SimData(0, values=holding, datatype=DataType.REGISTERS)],
            [SimData(10, values=words(struct.pack(">I", 70_000 + unit)), datatype=DataType.REGISTERS)],
        ),
        action=action,
    )


def expected(unit: int, speed: int) -> Drive:
    return Drive(unit, speed, speed / 8, 70_000 + unit, True, True, "ab")


class Found:
    """What a split has given."""

    def __init__(self, split: LiveBufferSplit) -> None:
        self.split, self.position = split, 0
        self.values: list[Any] = []
        self.times: list[int] = []
        self.reasons: list[str] = []
        self.raws: list[bytes] = []

    async def until(self, is_enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not is_enough():
                found = await self.split.read(self.position, 1_000)
                self.position = found.position
                self.values += found.values
                self.times += found.times
                self.reasons += [one.reason for one in found.rejects]
                self.raws += [one.raw for one in found.rejects]
                await asyncio.sleep(0.005)


def ask(
    source: ModbusTcp[Any] | ModbusRtu[Any],
    story: Callable[[Found], Awaitable[None]],
    kind: type[Any] = Drive,
) -> Found:
    async def run() -> Found:
        (split,) = source.open("d1", "drives", kind)
        assert isinstance(split, LiveBufferSplit)
        found = Found(split)
        try:
            await story(found)
        finally:
            await split.close()
        return found

    return asyncio.run(run())


async def serve(port: int, *devices: SimDevice) -> ModbusTcpServer:
    server = ModbusTcpServer(list(devices), address=("127.0.0.1", port))
    await server.serve_forever(background=True)
    return server


def test_units_behind_one_address_are_read_in_turn() -> None:
    source = ModbusTcp[Drive](
        host="127.0.0.1", port=free_port(), units=[1, 7], registers=REGISTERS, every_s=0.05
    )

    async def story(found: Found) -> None:
        server = await serve(source.port, drive(1, -1_200), drive(7, 350))
        await found.until(lambda: len(found.values) >= 6)
        await shut(server)

    found = ask(source, story)
    assert found.values[:6] == [expected(1, -1_200), expected(7, 350)] * 3
    assert found.reasons == []
    assert found.times == sorted(found.times)


def test_a_source_closes_at_whatever_turn_of_the_loop_it_is_asked_to() -> None:
    """The library waits for answers with `asyncio.wait_for`, which loses cancellations on Python 3.11."""
    source = ModbusTcp[Drive](
        host="127.0.0.1", port=free_port(), units=[1, 7], registers=REGISTERS, every_s=0.01
    )

    async def story() -> None:
        server = await serve(source.port, drive(1, 5), drive(7, 6))
        for turns in range(40):
            (split,) = source.open("d1", "drives", Drive)
            await split.read(0, 1_000)
            for _ in range(turns):
                await asyncio.sleep(0)
            await in_time("the end of the source", split.close())
            closed.append(turns)
        while server.active_connections:  # noqa: ASYNC110 - the server says nothing of an end
            await asyncio.sleep(0.005)
        await shut(server)

    closed = list[int]()
    asyncio.run(in_time("the end of all connections", story()))
    assert closed == list(range(40))


class Hurried(SystemClock):
    """A clock whose hours are short."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self.slept: list[float] = []

    def now_us(self) -> int:
        return int(self.monotonic_s() * 1_000_000)

    def monotonic_s(self) -> float:
        return 1_000_000.0 + self._ahead_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._ahead_s += seconds
        await asyncio.sleep(0.01)


def test_turns_are_those_of_the_clock_and_a_silent_unit_is_asked_ever_less_often() -> None:
    clock = Hurried()

    class OnTime(ModbusTcp[Drive]):
        def clock(self) -> Hurried:
            return clock

    source = OnTime(
        host="127.0.0.1", port=free_port(), units=[1, 9], registers=REGISTERS, every_s=10, timeout_s=0.2
    )

    async def no_answer(*_: Any) -> Any:
        await asyncio.sleep(3_600)

    async def story(found: Found) -> None:
        server = await serve(source.port, drive(1, 5), drive(9, 6, no_answer))
        await found.until(lambda: len(found.values) >= 20)
        await shut(server)

    found = ask(source, story)
    assert found.values[:20] == [expected(1, 5)] * 20
    assert [b - a for a, b in zip(found.times, found.times[1:], strict=False)][:19] == [10_000_000] * 19
    said = f"d1/drives: 127.0.0.1, port {source.port}: unit 9: coil 3 to 3: no answer"
    assert set(found.reasons) == {said}
    assert 4 <= len(found.reasons) <= 6  # in 200 s: at 0, 20, 60, 120, 180


def test_an_exception_is_kept_with_its_meaning_and_stops_no_other_unit() -> None:
    async def refuse(function: int, *_: Any) -> Any:
        return ExcCodes.DEVICE_BUSY if function == 4 else None

    source = ModbusTcp[Drive](
        host="127.0.0.1", port=free_port(), units=[1, 2, 3], registers=REGISTERS, every_s=0.05
    )

    async def story(found: Found) -> None:
        other = SimDevice(3, [SimData(900, values=[1], datatype=DataType.REGISTERS)])
        server = await serve(source.port, drive(1, 5), drive(2, 6, refuse), other)
        await found.until(lambda: len(found.values) >= 10 and len(found.reasons) >= 4)
        await shut(server)

    found = ask(source, story)
    assert set(found.values) == {expected(1, 5)}
    line = f"d1/drives: 127.0.0.1, port {source.port}: "
    assert set(found.reasons) == {
        line + "unit 2: input 10 to 11: exception 6, server device busy",
        line + "unit 3: coil 3 to 3: exception 2, illegal data address",
    }
    assert set(found.raws) == {b"\x84\x06", b"\x81\x02"}


def test_a_device_that_is_away_is_told_once_and_found_again(caplog: pytest.LogCaptureFixture) -> None:
    source = ModbusTcp[Drive](
        host="127.0.0.1", port=free_port(), registers=REGISTERS, every_s=0.05, timeout_s=0.3
    )

    async def story(found: Found) -> None:
        await found.until(lambda: bool(found.reasons))
        server = await serve(source.port, drive(1, 5))
        await found.until(lambda: len(found.values) >= 2)
        await shut(server)
        await found.until(lambda: "cannot be reached" in found.reasons[-1] and len(found.reasons) > 1)
        count = len(found.values)
        server = await serve(source.port, drive(1, 6))
        await found.until(lambda: len(found.values) > count)
        await shut(server)

    found = ask(source, story)
    assert (found.values[0], found.values[-1]) == (expected(1, 5), expected(1, 6))
    assert sum("cannot be reached" in reason for reason in found.reasons) == 2
    assert "cannot be reached; again in 1 s" in caplog.text


@contextmanager
def cable(folder: Path) -> Iterator[tuple[Path, Path, Callable[[], None]]]:
    """Two ports whose wires are joined by a task of the running loop, and what cuts it."""
    ends = [os.openpty() for _ in range(2)]
    names = [folder / "here", folder / "there"]
    for name, (_, end) in zip(names, ends, strict=True):
        name.unlink(missing_ok=True)
        name.symlink_to(os.ttyname(end))
    loop = asyncio.get_running_loop()
    (first, _), (second, _) = ends
    loop.add_reader(first, lambda: os.write(second, os.read(first, 4_096)))
    loop.add_reader(second, lambda: os.write(first, os.read(second, 4_096)))

    def cut() -> None:
        for end in (first, second):
            loop.remove_reader(end)
        for pair in ends:
            for end in pair:
                os.close(end)
        ends.clear()

    yield names[0], names[1], cut
    if ends:
        cut()


async def shut(server: ModbusTcpServer | ModbusSerialServer) -> None:
    await server.shutdown()  # type: ignore[no-untyped-call]


async def on_line(port: Path, *devices: SimDevice) -> ModbusSerialServer:
    server = ModbusSerialServer(list(devices), port=str(port), baudrate=19_200, ignore_missing_devices=True)
    await server.serve_forever(background=True)
    return server


def test_units_on_a_serial_line_that_is_unplugged_and_plugged_again(tmp_path: Path) -> None:
    source = ModbusRtu[Drive](
        port=str(tmp_path / "here"),
        baud=19_200,
        parity="none",
        units=[1, 4, 2],
        registers=REGISTERS,
        every_s=0.1,
        timeout_s=0.3,
    )

    async def too_late(*_: Any) -> Any:
        await asyncio.sleep(0.45)  # within the silence that is kept then, so that it is nobody's answer

    async def story(found: Found) -> None:
        with cable(tmp_path) as (_, there, cut):
            server = await on_line(there, drive(1, -7), drive(2, 9), drive(4, 11, too_late))
            await found.until(lambda: len(found.values) >= 6)
            cut()
            await found.until(lambda: "cannot be reached" in found.reasons[-1])
            await shut(server)
        count = len(found.values)
        with cable(tmp_path) as (_, there, cut):
            server = await on_line(there, drive(1, -8), drive(2, 10), drive(4, 11, too_late))
            await found.until(lambda: len(found.values) >= count + 4)
            await shut(server)

    found = ask(source, story)
    assert set(found.values) == {expected(1, -7), expected(2, 9), expected(1, -8), expected(2, 10)}
    assert found.values[:2] == [expected(1, -7), expected(2, 9)]
    assert any("unit 4: coil 3 to 3: no answer" in reason for reason in found.reasons), found.reasons


def test_two_apps_have_the_turns_of_one_line(tmp_path: Path) -> None:
    """The second hears what the first asks for, with the time of asking; nobody asks twice."""
    source = ModbusRtu[Drive](
        port=str(tmp_path / "here"),
        baud=19_200,
        parity="none",
        units=[1, 2],
        registers=REGISTERS,
        every_s=0.1,
        timeout_s=0.3,
    )
    (tmp_path / "shared").mkdir()
    asked = 0

    async def count(*_: Any) -> Any:
        nonlocal asked
        asked += 1

    async def story() -> None:
        apps = []
        with cable(tmp_path) as (_, there, _cut):
            server = await on_line(there, drive(1, -7), drive(2, 9, count))
            for app in ("first.1", "second.1"):
                (split,) = source.open("d1", "drives", Drive)
                assert isinstance(split, ExclusiveSplit)
                split.share(tmp_path / "shared", app)
                apps.append(Found(split))
                await apps[-1].until(lambda: len(apps[-1].values) >= 2)
            owner, reader = apps
            await reader.until(lambda: len(reader.values) >= 10)
            await owner.until(lambda: reader.times[-1] in owner.times)
            for one in (reader, owner):
                await one.split.close()
            await shut(server)
        begin = owner.times.index(reader.times[0])
        both = slice(begin, begin + len(reader.times))
        assert (owner.times[both], owner.values[both]) == (reader.times, reader.values)
        assert set(reader.values) == {expected(1, -7), expected(2, 9)}
        assert owner.reasons == reader.reasons == []
        requests = 3  # of a turn: holding registers, input registers and a coil
        assert asked <= requests * (owner.values.count(expected(2, 9)) + 1)

    asyncio.run(story())


ORDERS = {
    (False, False): ("", " words big", " bytes big", " order abcd"),
    (True, False): (" words little", " order cdab"),
    (False, True): (" bytes little", " order BADC", " words big bytes little"),
    (True, True): (" order dcba", " words little bytes little"),
}


@pytest.mark.parametrize("seed", range(20))
def test_values_are_those_that_struct_has_put_there(seed: int) -> None:
    choose, registers, wanted, memory = random.Random(seed), {}, {}, bytearray(2 * 2_000)
    formats = {"uint16": "H", "int16": "h", "uint32": "I", "int32": "i", "uint64": "Q", "int64": "q"}
    formats |= {"float32": "f", "float64": "d"}
    address = 0
    for number in range(60):
        kind = choose.choice(sorted(formats))
        address += choose.choice((0, 0, 1, 40))
        size = struct.calcsize(">" + formats[kind])
        raw = (
            choose.randbytes(size)
            if formats[kind] not in "fd"
            else struct.pack(">" + formats[kind], seed / 8)
        )
        is_little, is_swapped = choose.random() < 0.5, choose.random() < 0.5
        words = [raw[n : n + 2][::-1] if is_swapped else raw[n : n + 2] for n in range(0, size, 2)]
        memory[2 * address : 2 * address + size] = b"".join(words[::-1] if is_little else words)
        order = choose.choice(ORDERS[is_little, is_swapped])
        registers[f"f{number}"] = parse_register("r", f"holding {address} {kind}{order}")
        wanted[f"f{number}"] = struct.unpack(">" + formats[kind], raw)[0]
        address += size // 2
    layout = Layout(registers)
    assert all(1 <= span.count <= 125 for span in layout.spans)
    answered = b"".join(bytes(memory[2 * s.address : 2 * (s.address + s.count)]) for s in layout.spans)
    assert layout.values(answered) == wanted


def test_scales_are_exact_and_neighbours_are_read_together() -> None:
    registers = {
        "a": parse_register("r", "input 7 int16 scale 0.1"),
        "b": parse_register("r", "input 8 uint16 scale 10"),
        "c": parse_register("r", "input 20"),
        "d": parse_register("r", "discrete 2"),
    }
    layout = Layout(registers)
    assert layout.spans == [Span("discrete", 2, 1), Span("input", 7, 2), Span("input", 20, 1)]
    raw = b"\x01" + struct.pack(">hHH", -3, 12, 65_535)
    assert layout.values(raw) == {"a": -0.3, "b": 120, "c": 65_535, "d": True}


@pytest.mark.parametrize(
    ("text", "raw", "value"),
    [
        ("float32", struct.pack(">f", 229.01), 229.01),
        ("float32 order cdab", bytes.fromhex("028f4365"), 229.01),
        ("float32 order badc", bytes.fromhex("65438f02"), 229.01),
        ("float32 order dcba", bytes.fromhex("8f026543"), 229.01),
        ("int64 order GHEFCDAB", bytes.fromhex("0708050603040102"), 0x0102030405060708),
        ("uint16 order ba", b"\x01\x02", 0x0201),
        ("text 4", b"Pro3EM-1", "Pro3EM-1"),
        ("text 4 order badc", b"rP3oME1-", "Pro3EM-1"),
        ("text 4 bytes little", b"rP3oME1-", "Pro3EM-1"),
        ("text 5", b"AB\0garbage", "AB"),
        ("text 2", b"\0\0\0\0", ""),
        ("text 2", b"a b ", "a b"),
        ("text 2 encoding latin-1", b"20\xb0C", "20°C"),
        ("int16 scale 0.1 none 0x8000", b"\x80\x00", None),
        ("int16 scale 0.1 none 0x8000", b"\x7f\xff", 3276.7),
        ("int16 none -32768 none 32767", b"\x7f\xff", None),
        ("uint32 order cdab none 0xfffffffe", b"\xff\xfe\xff\xff", None),
        ("float32 none 0x7fc00000", bytes.fromhex("7fc00000"), None),
        ("float32 none -999.5", struct.pack(">f", -999.5), None),
        ("bit 3 bytes little", b"\x08\x00", True),
    ],
)
def test_each_form_of_a_register_is_read(text: str, raw: bytes, value: Any) -> None:
    layout = Layout({"f": parse_register("r", f"holding 7 {text}")})
    found = layout.values(raw)["f"]
    assert found == (pytest.approx(value, rel=1e-7) if isinstance(value, float) else value)
    assert type(found) is type(value)


def test_a_text_of_another_encoding_says_so() -> None:
    layout = Layout({"name": parse_register("r", "holding 7 text 2")})
    with pytest.raises(
        NoRecordError, match=r"field name: .*write the encoding behind it, as in text 2 enc"
    ) as said:
        layout.values(b"20\xb0C")
    assert said.value.code == "not_utf8"


def test_unit_0_is_asked_over_tcp() -> None:
    source = ModbusTcp[Drive](
        host="127.0.0.1", port=free_port(), units=[0], registers={"speed": "holding 500"}, every_s=0.05
    )

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A server that pymodbus' own is not: it answers unit 0, as many devices without a gateway do."""
        with suppress(asyncio.IncompleteReadError):
            while True:
                asked = await reader.readexactly(12)
                count = int.from_bytes(asked[10:12], "big")
                body = bytes([asked[7], 2 * count]) + b"\0\7" * count
                writer.write(asked[:4] + (len(body) + 1).to_bytes(2, "big") + asked[6:7] + body)

    async def story(found: Found) -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", source.port)
        await found.until(lambda: bool(found.values))
        server.close()

    assert ask(source, story, Speed).values[0] == Speed(0, 7)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no register: write it"),
        ("holding", "is no register: write it"),
        ("register 4", "register is none of coil, discrete, input, holding"),
        ("holding 70000", "70000 is no number from 0 to 65535"),
        ("holding 1 int8", "int8 is none of uint16"),
        ("coil 1 int16", "a coil has no type"),
        ("holding 1 bit 16", "16 is no number from 0 to 15"),
        ("holding 65535 float32", "it ends behind 65535"),
        ("holding 1 int16 scale x", "is no register: write it"),
        ("holding 1 text 4 scale 2", "scale is a number, and of numbers"),
        ("holding 1 float32 order abdc", "order abdc is none of abcd, cdab, badc, dcba"),
        ("holding 1 float32 order abcd words big", "order says what words and bytes say"),
        ("holding 1 float32 order abcdefgh", "order abcdefgh is none of"),
        ("holding 1 float32 bytes middle", "bytes is neither big nor little"),
        ("holding 1 int16 none 0x18000", "none 0x18000 is no int16: write 0x8000, or -32768"),
        ("holding 1 uint16 none -1", "none -1 is no uint16"),
        ("holding 1 text 2 none 0x8000", "none is of numbers"),
        ("holding 1 int16 encoding latin-1", "encoding is of texts"),
        ("holding 1 text 2 encoding klingon", "encoding = 'klingon' cannot be read"),
        ("holding 1 int16 scale 2 scale 3", "scale stands twice"),
        ("holding 1 int16 times 2", "times is none of scale, order, words, bytes, none, encoding"),
    ],
)
def test_a_register_that_is_written_wrong_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(SourceError) as error:
        parse_register("source s: registers.f", text)
    assert said in str(error.value)


def test_other_mistakes_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for source, said in (
        (ModbusTcp[Drive](registers=REGISTERS), "has no host"),
        (ModbusTcp[Drive](host="h"), "reads nothing: set registers"),
        (ModbusTcp[Drive](host="h", registers={"x": "coil 1"}), "there is no field 'x'"),
        (ModbusRtu[Drive](registers=REGISTERS), "has no port"),
        (
            ModbusRtu[Drive](port="p", units=[1, 0], registers=REGISTERS),
            "0 is the broadcast of a serial line",
        ),
        (
            ModbusTcp[Drive](host="h", registers={"speed": "holding 0 int16 none 0x8000"}),
            "may be None, which the field does not take: declare it as speed: float | None",
        ),
    ):
        with pytest.raises(SourceError, match=said):
            source.open("d1", "s", Drive)
    monkeypatch.setitem(sys.modules, "pymodbus.client", None)
    with pytest.raises(SourceError, match=r'pip install "geartrain-devices\[modbus\]"'):
        ModbusTcp[Drive](host="h", registers=REGISTERS).open("d1", "s", Drive)


@pytest.mark.slow
def test_an_agent_asks_a_device(tmp_path: Path) -> None:
    port = free_port()
    options = {
        "host": "127.0.0.1",
        "port": port,
        "every_s": 0.1,
        "registers": {"watts": "holding 1 float32 words little"},
    }
    agent = AgentProcess(tmp_path, "modbus", options, policy="drop_oldest")

    async def story(agent: AgentProcess) -> None:
        await agent.until(lambda: len(agent.records("_dead_letters")) == 1)
        server = await serve(port, drive(1, 100))
        await agent.until(lambda: len(agent.records()) >= 5)
        await shut(server)

    agent.run(story)
    assert set(agent.records()) == {Power(1, 12.5)}


PAGE = (Path(__file__).parents[2] / "docs" / "sources" / "modbus.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([0-9a-f ]+)` \| `(holding .*?)` \| `(.*?)` \|$", re.MULTILINE)


def test_each_row_of_the_page_is_read_as_it_says() -> None:
    rows = ROW.findall(PAGE)
    assert len(rows) >= 14
    for sent, written, said in rows:
        value = ast.literal_eval(said)
        found = Layout({"f": parse_register("r", written)}).values(bytes.fromhex(sent))["f"]
        assert found == (pytest.approx(value, rel=1e-7) if isinstance(value, float) else value), written
