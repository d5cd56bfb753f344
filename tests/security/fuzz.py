"""Good bytes spoiled and thrown at what reads bytes of others: `python -m tests.security.fuzz COUNT`.

Its readers: the decoders of the wire, what a sensor publishes, syslog and its headers, texts, files of CSV
and JSON lines, log files, serial lines, values of JSON, payloads, times, registers, answers of HTTP, a spool
that is opened, publishes that ingest takes, requests to pages and to the device listener, and what apps that
share a sensor say. Guarantees: input `n` of a reader is
the same in every run, but for what it says of the state that ingest was in. A reader passes if nothing but
its own errors came out, if no byte of what it cuts up is missing, and if memory did not grow by more than
64 MiB from when it was warm.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import re
import shutil
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from geartrain.errors import WireError
from geartrain.records.record import Record
from geartrain.wire.body import decode_rows
from geartrain.wire.codec import decode_control, decode_envelope, decode_gap, decode_header, decode_schemas
from geartrain_devices.json_fields import JsonFields
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.line_fields import LineFields, LineOptions
from geartrain_devices.serial_frames import CHECKS, Frames, Framing, Lines
from geartrain_devices.syslog_frames import Stream
from geartrain_devices.syslog_messages import parse
from geartrain_devices.syslog_times import SentTimes
from geartrain_devices.tail_files import TailFiles
from geartrain_devices.written_times import TimeOptions
from tests.security.fuzz_devices import device_requests
from tests.security.fuzz_files import csv_files, json_files, texts
from tests.security.fuzz_ingest import publishes
from tests.security.fuzz_page import requests
from tests.security.fuzz_sharing import sharing
from tests.security.fuzz_spool import spool
from tests.security.fuzz_values import answers, json_values, payloads, registers, times
from tests.security.measured import Memory, Outcome, fast_folder
from tests.security.spoil import inputs, spoiled, structured
from tests.wire import golden_batches as golden

GROWTH_BYTES_MAX = 64 << 20
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def kept(name: str) -> bytes:
    """A golden file."""
    return (golden.FOLDER / f"{name}.bin").read_bytes()


def wire(numbers: range) -> Outcome:
    """All that is decoded from the wire, up or down: golden files by what reads them, and by others."""
    headers = [kept(name) for name in golden.HEADERS]
    rows = [kept("few_body"), kept("many_body")]
    readers: list[tuple[Callable[[bytes], object], list[bytes]]] = [
        (decode_header, headers),
        (decode_envelope, [kept("envelope")]),
        (decode_control, [kept(name) for name in golden.CONTROLS]),
        (decode_schemas, [kept("schemas")]),
        (lambda data: decode_gap(golden.GAP_HEADER, data), [kept("gap_body")]),
        (lambda data: decode_rows(golden.QUOTE, golden.FEW_HEADER, data), rows[:1]),
        (lambda data: decode_rows(golden.QUOTE, golden.MANY_HEADER, data), rows[1:]),
        (lambda data: decode_rows(golden.QUOTE, golden.FEW_HEADER, data), [*headers, *rows]),
    ]
    ways = [(decode, inputs(seeds, numbers, structured)) for decode, seeds in readers]
    memory, refused = Memory(numbers), 0
    for number in numbers:
        memory.look(number)
        decode, found = ways[number % len(ways)]
        try:
            decode(next(found)[1])
        except WireError:
            refused += 1
    return Outcome("wire", len(numbers) - refused, refused, memory.growth_bytes())


class Reading(Record):
    """What a sensor says."""

    value: float
    name: str
    count: int = 0
    tags: list[str] | None = None


def sensors(numbers: range) -> Outcome:
    """The JSON that plain sensors publish."""
    good = (
        b'{"time": 1767225600.5, "state": {"v": [{"x": 1.5}]}, "name": "a", "count": 3, "tags": ["b"]}',
        b'{"time": "2026-01-01T00:00:00Z", "state": {"v": [{"x": -1e308}]}, "name": "\\u03a9\\ud83e"}',
        b'{"time": 99999999999999999999, "state": {"v": []}, "name": null, "count": 1e999}',
        b"[" * 600 + b"]" * 600,
        b'{"state":' * 300 + b"1" + b"}" * 300,
    )
    fields = JsonFields(
        "sensor", Reading, "time", ValueOptions(time_unit="s"), {"value": "state.v[0].x", "name": "$topic[1]"}
    )
    plain = JsonFields("sensor", float, "", ValueOptions(time_unit="s"), {"value": "$value"})
    memory, refused = Memory(numbers), 0
    for number, data in inputs((*good, b"21.5"), numbers, spoiled):
        memory.look(number)
        try:
            (fields if number % 4 else plain).read(data, "sensors/a/data" if number % 3 else "x")
        except ValueError:
            refused += 1
    return Outcome("sensors", len(numbers) - refused, refused, memory.growth_bytes())


def syslog(numbers: range) -> Outcome:
    """Streams of syslog messages, cut at any place; each message with structured data and older ones. Each
    byte of a connection is in a frame, was passed over and counted, or is of the framing.
    """
    good = (
        b"<34>1 2003-10-11T22:14:15.003Z m.example su - ID47 - \xef\xbb\xbf'su root' failed\n",
        b"109 <165>1 2003-08-24T05:14:15.000003-07:00 h a 1 m "
        rb'[x@1 iut="3" b="\"\]\\"][y@1 class="high"][z@2] An entry' + b"." * 8,
        b"<13>Feb  5 17:32:18 10.0.0.99 cron[42]: ran\r\n",
        b"99999999 <13>too long",
        b"20240102 03:04:05 host app: hello\n",
        b"9 <13>12345",
    )
    memory, taken = Memory(numbers), 0
    stream, fed, found = Stream(480), 0, 0
    for number, data in inputs(good, numbers, spoiled):
        memory.look(number)
        frames = [*stream.feed(data[: number % 97]), *stream.feed(data[number % 97 :])]
        fed += len(data)
        if number % 50 == 49:
            frames += stream.end()
        is_good = False
        for framed in frames:
            found += len(framed.raw) + framed.passed
            try:
                parse(framed.raw)
                is_good |= not framed.problem
            except ValueError:
                pass
        taken += is_good
        if number % 50 == 49:
            if found + stream.framing_bytes != fed:
                raise AssertionError(f"input {number}: {fed} bytes, of which {found} came out")
            stream, fed, found = Stream(480), 0, 0
    return Outcome("syslog", taken, len(numbers) - taken, memory.growth_bytes())


def syslog_headers(numbers: range) -> Outcome:
    """Messages in older forms: what is not taken as a time, host, app or process is whole in the text."""
    good = (
        b"<13>Feb  5 17:32:18 10.0.0.99 cron[42]: ran",
        b"<30>2024-01-02T03:04:05.678901+01:00 gw1 sshd[4321]: session opened",
        b"<190>Nov  5 14:01:20 10.1.186.49 87117903: 87117909: Nov  5 14:01:19.115: %FMANFP-6-X: F0: list",
        b"<188>179767: fakhost: Nov 23 22:23:27.833 NewYork: %SW_MATM-4-X: Host bd60 flapping",
        b'<13>2024 Jun  8 11:54:15 UTC my.host.com CRON(pam_unix)[12]: {"key":"value"}',
        b"<13> Sep 8 18:11:57 fe80::1%eth0 last message repeated 3 times",
        b"<150>1 2022-03-29T18:04:30.4+02:00 proxy1 squid: [2022] 10.0.0.9 - - - GET",
        b"<134>1 1563249630.774247467 remote_DC1_appliance security_event ids_alerted",
        b"<134>12/31/23 1:02 CET gw a: b",
    )
    every = TimeOptions(time_zone="Europe/Berlin", time_unit="s", time_format="%m/%d/%y %H:%M CET")
    by_options = SentTimes("source s", every)
    memory, refused = Memory(numbers), 0
    for number, data in inputs(good, numbers, spoiled):
        memory.look(number)
        try:
            found = parse(data, "", by_options) if number % 2 else parse(data)
        except ValueError:
            refused += 1
            continue
        if found.version:
            continue
        rest, text = data.partition(b">")[2], found.message
        marked = [at for mark in UTF16_MARKS if (at := rest.find(mark)) >= 0]
        if marked and rest[min(marked) :].decode("utf-16", errors="replace") == text:
            rest, text = rest[: min(marked)], ""  # all of it stands behind a mark that says how it is written
        head = rest.decode(errors="replace")
        if not head.endswith(text):
            raise AssertionError(f"input {number}: {data!r} became the text {text!r}")
        head = re.sub(
            r"^\d{1,3} (?=\d{4}-|\d{9}|\d\d/)", "", head.removesuffix(text)
        )  # a version with an older header
        for part in (found.sent.text if found.sent else "", found.host, found.app, found.process):
            head = head.replace(part or "", "", 1)
        if head.strip(" -[]:\ufeff"):
            raise AssertionError(f"input {number}: {data!r} lost {head!r}")
    return Outcome("syslog_headers", len(numbers) - refused, refused, memory.growth_bytes())


def serial(numbers: range) -> Outcome:
    """Lines and frames of a serial port, entered anywhere."""
    layout = struct.Struct("<Hf")
    good = tuple(
        b"\xaa\x55" + layout.pack(n, n / 8) + CHECKS["crc16"](b"\xaa\x55" + layout.pack(n, n / 8))
        for n in range(8)
    )
    text = (b"+ 12.50 kg\r\n", b"- 0.75 kg\r\n\r\n", b"\xff\x00" * 40)
    fields = LineFields("serial", Reading, LineOptions(pattern=r"(?P<name>[+-]) (?P<value>[0-9.]+) kg"))
    ways = [(inputs(good, numbers, spoiled), True), (inputs(text, numbers, spoiled), False)]
    framings: list[Framing] = [
        Frames(b"\xaa\x55", layout.size, CHECKS["crc16"]),
        Lines(b"\r\n", 64, is_whole=True),
    ]
    memory, taken = Memory(numbers), 0
    for number in numbers:
        memory.look(number)
        found, is_frame = ways[number % 2]
        is_good = False
        for framed in framings[number % 2].feed(next(found)[1]):
            try:
                if not framed.problem and is_frame:
                    layout.unpack(framed.raw)
                elif not framed.problem:
                    fields.read(framed.raw)
                is_good |= not framed.problem
            except ValueError:
                pass
        taken += is_good
    return Outcome("serial", taken, len(numbers) - taken, memory.growth_bytes())


class Line(Record):
    """A line of a log."""

    line: str


def tail(numbers: range) -> Outcome:
    """Log files of spoiled lines: each line is a record or a dead letter with its bytes, in order."""
    good = (
        b"2026-01-01 00:00:00 gr\xc3\xb6\xc3\x9fer\r\n",
        b"\xef\xbb\xbfa mark, and no end",
        b"\xff\xfea\x00\n\x00",
        b"x" * 200 + b"\n\n \n",
        b"short\n",
    )
    memory, taken, refused = Memory(numbers), 0, 0
    with fast_folder() as folder, asyncio.Runner() as runner:
        log, whole, before = Path(folder) / "a.log", b"begin\n", 0
        for number, data in inputs(good, numbers, spoiled):
            memory.look(number)
            whole += data
            if number % 50 < 49 and number + 1 < numbers.stop:
                continue
            log.write_bytes(whole + b"\n")
            keep = Path(folder) / "keep"
            keep.mkdir()
            found = runner.run(_lines_of(log, keep))
            shutil.rmtree(keep)
            lines = [line.rstrip(b"\r").removeprefix(b"\xef\xbb\xbf") for line in whole.split(b"\n")]
            expected = [line for line in lines if line.strip()]
            if [raw for raw, _ in found] != [line[:100] for line in expected]:
                raise AssertionError(f"input {number}: lines are missing, or came twice")
            texts = sum(is_record for _, is_record in found)
            inputs_here = number + 1 - numbers.start - before
            before += inputs_here
            good_share = texts * inputs_here // max(1, len(found))
            taken, refused = taken + good_share, refused + inputs_here - good_share
            whole = b"begin\n"
    return Outcome("tail", taken, refused, memory.growth_bytes())


async def _lines_of(log: Path, keep: Path) -> list[tuple[bytes, bool]]:
    """(its bytes up to the cap, whether it is a record) of each line of a log."""
    (split,) = TailFiles[Line](path=str(log), keep=str(keep), line_bytes_max=100).open("d", "s", Line)
    found: list[tuple[int, bytes, bool]] = []
    position = -1
    while (batch := await split.read(max(position, 0), 1_000)).position != position:
        position = batch.position
        records = zip(batch.numbers, batch.values, strict=True)
        found += [(number, value.line.encode(), True) for number, value in records]
        found += [(one.number, one.raw, False) for one in batch.rejects]
    await split.close()
    return [(raw, is_record) for _, raw, is_record in sorted(found)]


READERS: dict[str, Callable[[range], Outcome]] = {
    "wire": wire,
    "sensors": sensors,
    "syslog": syslog,
    "syslog_headers": syslog_headers,
    "serial": serial,
    "tail": tail,
    "texts": texts,
    "csv_files": csv_files,
    "json_files": json_files,
    "json_values": json_values,
    "payloads": payloads,
    "times": times,
    "registers": registers,
    "answers": answers,
    "spool": spool,
    "publishes": publishes,
    "requests": requests,
    "device_requests": device_requests,
    "sharing": sharing,
}


def main(arguments: list[str] | None = None) -> int:
    """Fuzz, and print a line for each reader; 1 if one grew too much."""
    parser = argparse.ArgumentParser(description="Throw spoiled bytes at whatever reads bytes of others.")
    parser.add_argument("count", type=int, help="inputs for each reader")
    parser.add_argument("--only", choices=READERS, help="one reader")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the number of the first input")
    options = parser.parse_args(arguments)
    fat = 0
    for name in [options.only] if options.only else READERS:
        since_s = time.process_time()
        found = READERS[name](range(options.first, options.first + options.count))
        fat |= found.growth_bytes > GROWTH_BYTES_MAX
        print(
            f"{name:10} {found.taken:>10,} taken {found.refused:>10,} refused "
            f"{found.growth_bytes / (1 << 20):>8.1f} MiB more {time.process_time() - since_s:>8.0f} s",
            flush=True,
        )
    return fat


if __name__ == "__main__":
    sys.exit(main())
