"""Serial ports that are pseudo-terminals: spoken to, unplugged and plugged in again."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import struct
import sys
import termios
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from geartrain import Record
from geartrain.errors import SourceError
from geartrain_devices.live import Framed, LiveBufferSplit
from geartrain_devices.serial_frames import CHECKS, Frames, Lines
from geartrain_devices.serial_lines import SerialLines
from tests.devices.agent_process import AgentProcess
from tests.devices.lines_flow import Line
from tests.waiting import WAIT_S


class Weight(Record):
    kilograms: float
    is_stable: bool = True


class Meter(Record):
    count: int
    volts: float


class Port:
    """A port under a name that stays the same while it is unplugged and plugged in."""

    def __init__(self, folder: Path) -> None:
        self.name = folder / "port"
        self.plug()

    def plug(self) -> None:
        self.device, self._system = os.openpty()
        self.name.symlink_to(os.ttyname(self._system))

    def unplug(self) -> None:
        self.name.unlink()
        os.close(self.device)
        os.close(self._system)

    def says(self, data: bytes) -> None:
        os.write(self.device, data)


class Found:
    """What a split has given."""

    def __init__(self, split: LiveBufferSplit) -> None:
        self.split, self.position = split, 0
        self.values: list[Any] = []
        self.reasons: list[str] = []
        self.raws: list[bytes] = []

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.values) + len(self.reasons) < count:
                found = await self.split.read(self.position, 1_000)
                self.position = found.position
                self.values += found.values
                self.reasons += [one.reason for one in found.rejects]
                self.raws += [one.raw for one in found.rejects]
                await asyncio.sleep(0.005)

    async def is_open(self, port: Port) -> None:
        """Wait until the source has set its own speed."""
        async with asyncio.timeout(WAIT_S):
            while termios.tcgetattr(port.device)[4] != termios.B19200:
                await self.until(0)
                await self.split.read(self.position, 1)
                await asyncio.sleep(0.02)


def listen(
    port: Port, story: Callable[[Found], Awaitable[None]], kind: type[Any] = Line, **options: Any
) -> Found:
    async def run() -> Found:
        source = SerialLines[Any](port=str(port.name), baud=19_200, **options)
        (split,) = source.open("d1", "scale", kind)
        assert isinstance(split, LiveBufferSplit)
        found = Found(split)
        try:
            await found.is_open(port)
            await story(found)
        finally:
            await split.close()
        return found

    return asyncio.run(run())


def test_lines_come_whole_after_the_garbage_that_a_port_begins_with(tmp_path: Path) -> None:
    port = Port(tmp_path)

    async def story(found: Found) -> None:
        port.says(b"\xff\x00.25 kg\r\n+ 12.50 ")
        await asyncio.sleep(0.1)
        port.says(b"kg\r\n- 0.75 kg\r\n? 1.00 kg\r\n\r\noverload\r\n\xfe\r\n")
        await found.until(6)

    fields = {"kilograms": "weight"}
    pattern = r"(?P<sign>[+-]|\?) +(?P<weight>[\d.]+) kg"
    found = listen(port, story, Weight, pattern=pattern, fields=fields)
    assert found.values == [Weight(12.5), Weight(0.75), Weight(1.0)]
    name = f"d1/scale: port {port.name}: "
    advice = 'set encoding to that of the text, such as encoding = "cp1252"'
    assert found.reasons == [
        name + "the port was opened within it, so that its beginning may be missing",
        name + "it does not fit the pattern",
        name + f"it is not UTF-8 text, at its byte 1 (0xfe): {advice}",
    ]
    assert found.raws == [b"\xff\x00.25 kg\r", b"overload\r", b"\xfe\r"]


def test_a_port_that_is_unplugged_is_opened_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = Port(tmp_path)

    async def story(found: Found) -> None:
        port.says(b"one\rtw")
        await found.until(1)
        await asyncio.sleep(0.1)
        port.unplug()
        await found.until(2)
        await asyncio.sleep(0.5)
        port.plug()
        await found.is_open(port)
        port.says(b"three\r")
        await found.until(3)

    found = listen(port, story, ending="\\r", whole_start=True)
    assert found.values == [Line("one"), Line("three")]
    assert found.reasons == [f"d1/scale: port {port.name}: the port was lost within it"]
    assert found.raws == [b"tw"]
    assert "is gone" in caplog.text
    assert "cannot be opened" in caplog.text


def test_another_device_under_the_same_name_is_noticed(tmp_path: Path) -> None:
    """Not every driver says that a device was unplugged."""
    port = Port(tmp_path)

    async def story(found: Found) -> None:
        port.name.unlink()  # the former one stays open
        port.plug()
        await found.is_open(port)
        port.says(b"here\n")
        await found.until(1)

    assert listen(port, story, whole_start=True).values == [Line("here")]


def test_a_port_has_one_reader_and_its_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = Port(tmp_path)

    async def story(found: Found) -> None:
        flags, speed = termios.tcgetattr(port.device)[2], termios.tcgetattr(port.device)[4]
        assert speed == termios.B19200
        assert flags & termios.PARODD  # a pseudo-terminal takes no other size than 8, and no parity
        assert flags & termios.CSTOPB
        (second,) = SerialLines[Line](port=str(port.name)).open("d1", "second", Line)
        await second.read(0, 1)
        await asyncio.sleep(0.2)
        await second.close()

    with caplog.at_level(logging.WARNING):
        listen(port, story, data_bits=7, parity="odd", stop_bits=2)
    assert "source second: port" in caplog.text
    assert "another program has it open: end that one" in caplog.text


def test_frames_are_found_in_what_is_not_one(tmp_path: Path) -> None:
    port, noise = Port(tmp_path), random.Random(7)
    meters = [Meter(number, number / 8) for number in range(50)]
    told = b""

    async def story(found: Found) -> None:
        nonlocal told
        for meter in meters:
            frame = b"\xaa\x55" + struct.pack("<Hf", meter.count, meter.volts)
            crc = 0xFFFF  # bit by bit, as the standard of Modbus describes it
            for byte in frame:
                crc ^= byte
                for _ in range(8):
                    crc = (crc >> 1) ^ 0xA001 if crc & 1 else crc >> 1
            garbage = noise.randbytes(noise.randrange(4)) + noise.choice(
                (b"", b"\xaa", b"\xaa\x55", frame[:5])
            )
            told += garbage
            port.says(garbage + frame + struct.pack("<H", crc))
            if meter.count % 7 == 0:
                await asyncio.sleep(0.01)
        await found.until(len(meters))
        while len(found.values) < len(meters):
            await found.until(len(found.values) + len(found.reasons) + 1)

    found = listen(port, story, Meter, frame="<Hf", begin="aa55", check="crc16")
    assert found.values == meters
    assert b"".join(found.raws) == told
    assert all("bytes are no frame" in reason for reason in found.reasons)


@pytest.mark.parametrize("seed", range(30))
def test_lines_are_cut_whatever_the_pieces(seed: int) -> None:
    choose = random.Random(seed)
    lines = [bytes(choose.choices(b"abc\r", k=choose.choice((1, 3, 20, 21, 90)))) + b"." for _ in range(40)]
    data = b"".join(line + b"\r\n" for line in lines)
    framing, found = Lines(b"\r\n", 20, is_whole=bool(seed % 2)), list[Framed]()
    while data:
        size = choose.choice((1, 2, 7, 200))
        found += framing.feed(data[:size])
        data = data[size:]
    long = "it has {} bytes, above line_bytes_max = 20: the first ones are kept"
    expected = [
        Framed(line[:20], long.format(len(line)) if len(line) > 20 else "", max(0, len(line) - 20))
        for line in lines
    ]
    if not seed % 2 and not expected[0].problem:
        expected[0] = Framed(lines[0], "the port was opened within it, so that its beginning may be missing")
    assert found + framing.end() == expected


def test_checks_are_those_of_others() -> None:
    assert CHECKS["crc16"](b"123456789") == b"\x37\x4b"  # the check value of CRC-16/MODBUS is 0x4b37
    assert CHECKS["xor8"](b"GPGLL,1") == bytes([0x47 ^ 0x50 ^ 0x47 ^ 0x4C ^ 0x4C ^ 0x2C ^ 0x31])
    assert CHECKS["sum8"](b"\xff\x02") == b"\x01"


def test_endless_garbage_is_told_in_pieces_and_not_kept() -> None:
    framing, found = Frames(b"\xaa", 4, lambda data: zlib.crc32(data).to_bytes(4, "big")), list[Framed]()
    for _ in range(100):
        found += framing.feed(b"\xaa" * 1_000)
    found += framing.end()
    assert sum(len(one.raw) for one in found) == 100_000
    assert max(len(one.raw) for one in found) == 4_096


def test_mistakes_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for options, said in (
        ({"port": ""}, "has no port"),
        ({"ending": ""}, "ending is empty"),
        ({"check": "crc16"}, "begin and check are of frames"),
        ({"frame": "<Hf"}, "frames need begin or check"),
        ({"frame": "<Hf", "begin": "a5a"}, "is not hexadecimal"),
        ({"frame": "<Hy", "begin": "aa"}, "is no layout as Python's struct takes it"),
        ({"frame": "Hf", "begin": "aa"}, "must begin with < or >"),
        ({"frame": "<H", "begin": "aa"}, "has 1 values, and Meter 2"),
        ({"frame": "<H9999s", "begin": "aa"}, "1 to 1024 bytes"),
    ):
        with pytest.raises(SourceError, match=said):
            SerialLines[Meter](**{"port": "/dev/ttyS0", **options}).open("d1", "s", Meter)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "serial", None)
    with pytest.raises(SourceError, match=r'pip install "geartrain-devices\[serial\]"'):
        SerialLines[Line](port="/dev/ttyS0").open("d1", "s", Line)


@pytest.mark.slow
def test_an_agent_reads_a_port(tmp_path: Path) -> None:
    port = Port(tmp_path)
    agent = AgentProcess(tmp_path, "serial", {"port": str(port.name), "baud": 19_200}, policy="drop_oldest")

    async def story(agent: AgentProcess) -> None:
        await agent.until(lambda: termios.tcgetattr(port.device)[4] == termios.B19200)
        port.says(b"half\n1\n2\n")
        await agent.until(lambda: len(agent.records()) == 2)
        port.unplug()
        port.plug()
        await agent.until(lambda: termios.tcgetattr(port.device)[4] == termios.B19200)
        port.says(b"half\n3\n")
        await agent.until(lambda: len(agent.records()) == 3)
        await agent.until(lambda: len(agent.records("_dead_letters")) == 2)

    agent.run(story)
    assert agent.records() == [Line("1"), Line("2"), Line("3")]
