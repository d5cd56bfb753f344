"""Syslog over real sockets: what senders say against what was put together here, and what is no message."""

from __future__ import annotations

import asyncio
import logging.handlers
import random
import re
import socket
import ssl
import time
import tomllib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from geartrain import Record
from geartrain.errors import SourceError
from geartrain.records.event_time import format_time, parse_time, to_datetime
from geartrain_cloud.certs import DEVICE, SERVER, Fleet
from geartrain_devices import written_times
from geartrain_devices.live import BUFFER_MAX, Framed, LiveBufferSplit
from geartrain_devices.syslog import Syslog
from geartrain_devices.syslog_frames import Stream
from geartrain_devices.syslog_messages import Message, parse
from geartrain_devices.syslog_times import SentTime, SentTimes
from geartrain_devices.written_times import TimeOptions
from tests.devices.agent_process import AgentProcess
from tests.devices.lines_flow import Said
from tests.ports import free_port
from tests.waiting import WAIT_S

_HEAD = b"<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 "
_DATA = b'[exampleSDID@32473 iut="3" eventSource="Application" eventID="1011"]'
EXAMPLES = (
    b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xef\xbb\xbf'su root' failed for me",
    b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time to make the do-nuts.",
    _HEAD + _DATA + b" \xef\xbb\xbfAn application event log entry...",
    _HEAD + _DATA + b'[examplePriority@32473 class="high"]',
)
"""Those of RFC 5424, section 6.5."""


class Event(Record):
    severity: int
    message: str
    host: str | None = None
    app: str | None = None
    source: str | None = None
    version: int = 1
    transport: str = ""
    sender: str = ""
    sent: datetime | None = None


def time_of(message: Message) -> int | None:
    """When a message was sent, microseconds since 1970 UTC, None where it does not say."""
    return None if message.sent is None else message.sent.time


async def opened(source: Syslog[Any], kind: type[Any] = Event) -> LiveBufferSplit:
    (split,) = source.open("d1", "events", kind)
    assert isinstance(split, LiveBufferSplit)
    await split.read(0, 1)
    for port in {source.tcp, source.tls} - {0}:
        await listening(port)
    return split


async def listening(port: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


class Found:
    """What a split has given."""

    def __init__(self, split: LiveBufferSplit) -> None:
        self.split, self.position = split, 0
        self.values: list[Any] = []
        self.times: list[int] = []
        self.reasons: list[str] = []
        self.raws: list[bytes] = []
        self.codes: list[str] = []

    async def read(self, limit: int = 1_000) -> None:
        found = await self.split.read(self.position, limit)
        self.position = found.position
        self.values += found.values
        self.times += found.times
        self.reasons += [one.reason for one in found.rejects]
        self.raws += [one.raw for one in found.rejects]
        self.codes += [one.code for one in found.rejects]

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.values) + len(self.reasons) < count:
                await self.read()
                await asyncio.sleep(0.005)


def listen(story: Callable[[Found], Awaitable[None]], source: Syslog[Any], kind: type[Any] = Event) -> Found:
    async def run() -> Found:
        found = Found(await opened(source, kind))
        try:
            await story(found)
        finally:
            await found.split.close()
        return found

    return asyncio.run(run())


def test_the_examples_of_the_standard() -> None:
    first, second, third, fourth = (parse(raw) for raw in EXAMPLES)
    assert (first.facility, first.severity, first.version, first.process) == (4, 2, 1, None)
    assert (first.host, first.app, first.message_id) == ("mymachine.example.com", "su", "ID47")
    assert (first.message, first.data) == ("'su root' failed for me", {})
    assert time_of(first) == 1_065_910_455_003_000  # date -d 2003-10-11T22:14:15.003Z +%s%6N
    assert (time_of(second), second.process) == (1_061_727_255_000_003, "8710")
    data = {"exampleSDID@32473": {"iut": "3", "eventSource": "Application", "eventID": "1011"}}
    assert (third.data, third.message) == (data, "An application event log entry...")
    assert (fourth.data, fourth.message) == (data | {"examplePriority@32473": {"class": "high"}}, "")


@pytest.mark.parametrize("seed", range(20))
def test_what_is_put_together_is_read_again(seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(50):
        priority, names = choose.randrange(192), [choose.choice(("-", "a", "b.c", "x[1]")) for _ in range(4)]
        data = {
            f"id{n}@1": {
                f"p{m}": "".join(choose.choices('ab"]\\Ω =[\n', k=choose.randrange(6))) for m in range(n)
            }
            for n in range(choose.randrange(4))
        }
        text = "".join(choose.choices('ab"]\\Ω\n<1>', k=choose.randrange(20)))

        def escaped(value: str) -> str:
            return value.replace("\\", "\\\\").replace('"', '\\"').replace("]", "\\]")

        said = "".join(
            f"[{element}" + "".join(f' {name}="{escaped(value)}"' for name, value in found.items()) + "]"
            for element, found in data.items()
        )
        time_us = choose.randrange(2**50)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_us // 1_000_000))
        head = f"<{priority}>1 {stamp}.{time_us % 1_000_000:06d}Z {' '.join(names)} {said or '-'}"
        found = parse((head + (f" {text}" if text else "")).encode())
        assert (found.facility, found.severity, time_of(found)) == (priority // 8, priority % 8, time_us)
        plain = [None if name == "-" else name for name in names]
        assert [found.host, found.app, found.process, found.message_id] == plain
        assert (found.data, found.message) == (data, text)


@pytest.mark.parametrize(
    ("said", "time_us"),
    [
        ("2016-12-31T23:59:60Z", 1_483_228_800_000_000),  # date -d 2017-01-01T00:00:00Z +%s000000
        ("2024-01-02T03:04:05.123456789+01:00", 1_704_161_045_123_456),
    ],
)
def test_times_with_leap_seconds_and_nanoseconds_are_read(said: str, time_us: int) -> None:
    for raw in (f"<14>1 {said} h a - - - x", f"<14>{said} h a: x"):
        found = parse(raw.encode())
        assert (found.sent, found.host, found.app) == (SentTime(said, time_us), "h", "a")


DOCS = Path(__file__).parents[2] / "docs" / "sources" / "syslog.md"


def rows_of_the_docs() -> list[list[str]]:
    """The rows of the table of headers: what is written, host, app, process, message, sent."""
    lines = DOCS.read_text().split("| Behind `<PRIORITY>` |")[1].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [[cell.removeprefix("`").removesuffix("`").replace("\\|", "|") for cell in row] for row in rows]


@pytest.mark.parametrize("row", rows_of_the_docs(), ids=lambda row: row[0][:40])
def test_what_senders_write_is_read_as_the_docs_say(row: list[str]) -> None:
    written, host, app, process, message, sent = row
    found = parse(b"<13>" + written.encode())
    assert (found.facility, found.severity, found.message_id) == (1, 5, None)
    assert [found.host, found.app, found.process] == [part or None for part in (host, app, process)]
    assert found.message == (written if message == "all" else message)
    time_us = time_of(found)
    assert (None if time_us is None else format_time(time_us)) == (sent or None)


def rows_of_times() -> list[list[str]]:
    """The rows of the table of options: what is written, options, sent."""
    lines = DOCS.read_text().split("| Behind `<PRIORITY>` | Options |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def sent_by(written: str, **options: Any) -> SentTime:
    found = parse(b"<13>" + written.encode(), "", SentTimes("source s", TimeOptions(**options)))
    assert found.sent is not None
    assert (found.host, found.message.endswith("session opened")) == ("gw1", True), found
    return found.sent


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_times, "now_us", lambda: parse_time("2026-11-27T14:00:00Z"))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("row", rows_of_times(), ids=lambda row: " ".join(row[:2])[:60])
def test_times_are_read_by_the_options_that_the_docs_name(row: list[str]) -> None:
    written, named, meant = row[0].strip("`"), re.findall("`([^`]*)`", row[1]), row[2].strip("`")
    options = tomllib.loads("\n".join(named))
    found = sent_by(written, **options)
    assert written.removeprefix("1 ").startswith(found.text)
    assert found.time == (None if meant == "refused" else parse_time(meant))
    assert bool(found.problem) == (meant == "refused")
    for name in options:
        others = {one: value for one, value in options.items() if one != name}
        try:
            without = sent_by(written, **others)
        except (SourceError, ValueError, AssertionError):  # refused at the start, or not taken for a time
            continue
        assert without.time is None or name in ("repeated_hour", "time_year")


@pytest.mark.usefixtures("clock")
def test_a_time_that_a_zone_never_showed_is_of_no_other_year() -> None:
    """The clocks went forward on 29 March 2026, and on 30 March 2025."""
    gap = sent_by("Mar 29 02:30:00 gw1 sshd: session opened", time_zone="Europe/Berlin")
    assert gap.time is None
    assert "never showed 2026-03-29T02:30:00" in gap.problem
    word = sent_by("Mar 29 12:00:00 CET gw1 sshd: session opened", time_zone="Europe/Berlin")
    assert (word.time, "not CET" in word.problem) == (None, True)
    year = sent_by("Mar 29 02:30:00 gw1 sshd: session opened", time_zone="Europe/Berlin", time_year=2025)
    assert year.time == parse_time("2025-03-29T01:30:00Z")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"time_format": "%d.%m.%Y %H:%M"},
            "time_format = '%d.%m.%Y %H:%M' has no offset (%z): set time_zone",
        ),
        ({"time_year": 2024}, "times without a year name no offset from UTC, either: set time_zone"),
        ({"time_unit": "h"}, "time_unit = 'h' must be one of s, ms, us, ns"),
        ({"time_zone": "Berlin time"}, "is no name of a zone, such as Europe/Berlin"),
    ],
)
def test_options_of_times_that_cannot_be_are_refused_at_the_start(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SourceError, match=f"^source events: .*{re.escape(reason)}"):
        Syslog[Event](udp=514, **options).open("d1", "events", Event)


def test_a_time_without_an_offset_names_the_option_that_reads_it() -> None:
    with pytest.raises(ValueError, match="is not one of RFC 5424: set time_zone to the zone of its sender"):
        parse(b"<13>1 2024-01-02T03:04:05 gw1 sshd - - - session opened")


@pytest.mark.parametrize("text", ["45 routers are up", "2024 was a good year", "1 2 3 4 5 6 x"])
def test_numbers_that_are_no_times_of_these_years_stay_in_the_message(text: str) -> None:
    found = parse(f"<13>{text}".encode(), "", SentTimes("source s", TimeOptions(time_unit="s")))
    assert (found.sent, found.message) == (None, text)


@pytest.mark.parametrize(
    ("raw", "host", "app", "process", "message"),
    [
        (
            b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed",
            *("mymachine", "su", None, "'su root' failed"),
        ),
        (b"<13>Feb  5 17:32:18 10.0.0.99 cron[42]: ran", "10.0.0.99", "cron", "42", "ran"),
        (b"<13>only a text", None, None, None, "only a text"),
        (b"<13>app: text", None, "app", None, "text"),
        (b"\xef\xbb\xbf<13>app: text", None, "app", None, "text"),
        (b"<13>", None, None, None, ""),
        (
            b"<13>Jun  8 11:54:15 fe80::1%eth0 postfix/smtpd[12]: x",
            "fe80::1%eth0",
            "postfix/smtpd",
            "12",
            "x",
        ),
        (b"<13>Jun  8 11:54:15 gw CRON(pam_unix)[12]: x", "gw", "CRON(pam_unix)", "12", "x"),
        (b"<13>2024 Jun  8 11:54:15 CEST gw a: x", "gw", "a", None, "x"),
        (b"<13>Jun  8 11:54:15 gw app:text", "gw", None, None, "app:text"),
        (b"<13>Jun  8 11:54:15 - a: x", None, "a", None, "x"),
        (b"<13>2024-01-02 03:04:05 gw a: x", "gw", "a", None, "x"),
        (b"<13>2024-01-02T03:04:05.123456789Z gw a: x", "gw", "a", None, "x"),
    ],
)
def test_older_messages_are_marked_and_read_as_far_as_they_can_be(
    raw: bytes, host: str | None, app: str | None, process: str | None, message: str
) -> None:
    found = parse(raw)
    assert (found.version, found.message_id) == (0, None)
    assert (found.host, found.app, found.process, found.message) == (host, app, process, message)


@pytest.mark.parametrize(
    "text",
    [
        *("45: router: link up", "Feb 30 11:54:15 gw a: x", "2019-13-19T12:02:54Z gw a: x", "http://x: y"),
        *("CEF:0|a|b|c", "LEEF:1.0|a|b", '{"a": "b: c"}', '"a": "b"', "level=info msg=x: y", "12:30: closed"),
        *(
            "Nov 23 22:23:27: %SYS-5-CONFIG_I: x",
            "*Mar  1 18:46:11.000: %SYS-5-CONFIG_I: x",
            "10.0.0.1: down",
        ),
        *(
            "%ASA-6-302013: Built",
            "1 1563249630.77 gw a b c=1:2:3 d e",
            "3 errors found in the last hour",
            " x",
        ),
        *("fakhost: Nov 23 22:23:27.833 NewYork: %SW_MATM-4-X: y", "Tue Jan 02 03:04:05 2024 gw a: x"),
    ],
)
def test_what_has_no_clear_header_is_whole_in_the_message(text: str) -> None:
    found = parse(b"<189>" + text.encode())
    assert found == Message(23, 5, 0, None, None, None, None, None, {}, text)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"no priority", "it does not begin with <PRIORITY>"),
        (b"<192>1 - - - - - - x", "its priority 192 is above 191"),
        (b"<1>1 yesterday - - - - - x", "its time 'yesterday' is not one of RFC 5424"),
        (b"<1>1 2003-13-01T00:00:00Z - - - - - x", "2003-13-01"),
        (b'<1>1 - - - - - [a b="c] x', "its structured data has no end at byte"),
        (b"<1>1 - - - - - x", "it has no structured data at byte"),
        (b"<1>1 - - - - - -x", "its structured data has no end at byte"),
        (b"<1>1 - - -", "its header is not one of RFC 5424"),
        (b"<1>1 - - - - - - \xff", "its text: it is not UTF-8 text, at its byte 1 (0xff)"),
        (b"<1>1 - - - - - [" + b"a" * 33 + b"]", "its structured data has no end"),
        (b"<1>1 - - - - - [a" + b' b="c"' * 300 + b"]", "its structured data has more than 256 parameters"),
    ],
)
def test_what_is_no_message_is_one_sentence(raw: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse(raw)


def test_texts_in_other_encodings_are_read_by_the_option() -> None:
    old, new = "<13>Jun  8 11:54:15 gw a: zu heiß", '<13>1 - gw a - - [x y="ß"] zu heiß'
    for text in (old, new):
        assert parse(text.encode("cp1252"), "cp1252") == parse(text.encode())
    with pytest.raises(ValueError, match="parameter y of its structured data: it is not UTF-8 text"):
        parse(new.encode("cp1252"))
    with pytest.raises(SourceError, match="encoding = 'utf-9' cannot be read"):
        Syslog[Event](udp=514, encoding="utf-9").open("d1", "events", Event)


@pytest.mark.parametrize("seed", range(30))
def test_streams_are_cut_into_their_messages_whatever_the_pieces(seed: int) -> None:
    choose = random.Random(seed)
    expected: list[tuple[bytes, bool, int]] = []
    data = b""
    for _ in range(30):
        size = choose.choice((5, 99, 100, 101, 500))
        whole = b"<13>" + bytes(choose.choices(b"abc<> 0", k=size - 4))
        if choose.random() < 0.5:
            data += b"%d " % size + whole
            data += b"\n" if choose.random() < 0.2 else b""
            whole = (b"%d " % size if size > 100 else b"") + whole
        else:
            data += whole + choose.choice((b"\n", b"\r\n", b"\0\n", b"\0"))
        expected.append((whole[:100], size > 100, max(0, len(whole) - 100)))
    found, framing_bytes = cut_up(data, 100, choose)
    assert [(one.raw, bool(one.problem), one.passed) for one in found] == expected
    assert sum(len(one.raw) + one.passed for one in found) + framing_bytes == len(data)


def cut_up(data: bytes, cap: int, choose: random.Random) -> tuple[list[Framed], int]:
    """The frames of a connection whose bytes come in pieces, and the bytes of its framing."""
    stream, found = Stream(cap), list[Framed]()
    while data:
        size = choose.choice((1, 2, 50, 1_000))
        found += stream.feed(data[:size])
        data = data[size:]
    return found + stream.end(), stream.framing_bytes


GOOD = b"<13>Sep 10 00:00:00 localhost logger: good"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"20240102 03:04:05 host app: hello\n", ""),
        (b"29 Jul 2024 host app: hello\n", ""),
        (b"999999999 <13>Sep 10 00:00:00 localhost logger: x\n", "counts 999999999 bytes, above"),
        (b"8000 <13>Sep 10 00:00:00 localhost logger: x\n", "and these are not one message"),
        (b"1 <13>Sep 10 00:00:00 localhost logger: x\n", "and these are not one message"),
        (b"20 <13>Sep 10 00:00:00 localhost logger: x\n", "and these are not one message"),
        (b"1234567890123 <13>x\n", ""),
        (b"12 no priority\0", ""),
    ],
)
def test_a_number_that_is_no_octet_count_costs_one_line(bad: bytes, reason: str) -> None:
    many = GOOD + b"\n"
    for seed in range(3):
        for data in (bad + many * 300, many * 300 + bad + many * 300):
            found, framing_bytes = cut_up(data, 1 << 14, random.Random(seed))
            others = [one for one in found if one.raw != GOOD or one.problem]
            assert [one.raw for one in others] == [bad.rstrip(b"\n\0")]
            assert reason in others[0].problem
            assert len(found) == 1 + data.count(many)
            assert sum(len(one.raw) for one in found) + framing_bytes == len(data)


@pytest.mark.parametrize(
    "bad",
    [
        b"%d " % (len(GOOD) - 3) + GOOD,  # counted in characters, or before something was put in
        b"20000 <13>" + b"x" * 19_996,
        b"20000 <13>" + b"x" * 9_000 + b"\n" + b"y" * 10_995,
        b"12 hello world!",
        b"and no count at all ",
    ],
)
def test_counted_messages_behind_a_wrong_count_are_read(bad: bytes) -> None:
    counted = b"%d " % len(GOOD) + GOOD
    for seed in range(3):
        data = counted * 2 + bad + counted * 300
        found, framing_bytes = cut_up(data, 1 << 14, random.Random(seed))
        good = sum(one == Framed(GOOD) for one in found)
        assert 301 <= good <= 302  # whether a count is true shows behind it: junk there makes it doubtful
        assert 1 <= len(found) - good <= 2
        assert sum(len(one.raw) + one.passed for one in found) + framing_bytes == len(data)


def test_a_counted_message_of_several_lines_stays_whole() -> None:
    lines = b"<13>1 - h a - - - line one\nline two"
    trace = b"<13>1 - h a - - - received:\n<14>a message within another\n"
    counted = b"".join(b"%d " % len(one) + one for one in (lines, trace, lines))
    assert [one.raw for one in Stream(480).feed(counted)] == [lines, trace, lines]


def test_a_line_without_an_end_is_told_before_it_ends() -> None:
    stream, found = Stream(480), list[Framed]()
    for _ in range(200):
        found += stream.feed(b"<13>" + b"x" * 16_380)
    assert len(found) == 3
    assert {len(one.raw) for one in found} == {480}
    last = stream.end()
    assert sum(len(one.raw) + one.passed for one in found + last) == 200 * 16_384


def test_a_stream_that_ends_too_early_says_so() -> None:
    stream = Stream(100)
    assert stream.feed(b"10 <1>abc") == []
    assert stream.end() == [Framed(b"10 <1>abc", "the connection ended after 6 of its 10 bytes")]
    stream = Stream(100)
    assert stream.feed(b"<1>no end") == []
    assert stream.end() == [Framed(b"<1>no end")]
    stream = Stream(100)
    assert stream.feed(b"90 <1>of a line\n<2>of another\n<3>third\n") == []
    assert [one.raw for one in stream.end()] == [b"90 <1>of a line", b"<2>of another", b"<3>third"]


def test_udp_and_tcp_of_a_library_that_others_use(tmp_path: Path) -> None:
    """Python's own handler sends in the old form, ended by a NUL."""
    source = Syslog[Event](udp=free_port(), tcp=free_port(), fields={"source": "data.origin.ip"})

    async def story(found: Found) -> None:
        for port, kind in ((source.udp, socket.SOCK_DGRAM), (source.tcp, socket.SOCK_STREAM)):
            handler = logging.handlers.SysLogHandler(("127.0.0.1", port), socktype=kind)
            handler.ident = "app: "
            handler.emit(logging.LogRecord("x", logging.ERROR, "", 1, "it failed", None, None))
            handler.close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b'<14>1 - h - - - [origin ip="192.0.2.7"] up', ("127.0.0.1", source.udp))
            sender.sendto(b"junk", ("127.0.0.1", source.udp))
        await found.until(4)

    before = time.time_ns() // 1_000
    found = listen(story, source)
    assert sorted(found.values, key=lambda one: (one.transport, one.severity)) == [
        Event(3, "it failed", None, "app", None, 0, "tcp", "127.0.0.1"),
        Event(3, "it failed", None, "app", None, 0, "udp", "127.0.0.1"),
        Event(6, "up", "h", None, "192.0.2.7", 1, "udp", "127.0.0.1"),
    ]
    assert all(before <= one <= time.time_ns() // 1_000 for one in found.times)
    assert found.raws == [b"junk"]
    assert "udp from 127.0.0.1, port " in found.reasons[0]


def test_event_times_are_those_of_the_sender_and_fields_are_read_by_options() -> None:
    class Counted(Record):
        number: int
        begun: datetime
        sent: datetime | None = None

    texts = [
        '<13>1 2024-07-01T12:00:00 gw1 - - - [meta number="7" begun="2024-07-01 11:30"] x',
        '<13>1 2024-03-31T02:30:00 gw1 - - - [meta number="8" begun="2024-07-01"] x',
    ]
    source = Syslog[Counted](
        tcp=free_port(),
        time="sent",
        time_zone="Europe/Berlin",
        numbers_as_text=True,
        fields={"number": "data.meta.number", "begun": "data.meta.begun"},
    )

    async def story(found: Found) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", source.tcp)
        writer.write("".join(f"{text}\n" for text in texts).encode())
        await found.until(len(texts))
        writer.close()

    found = listen(story, source, Counted)
    noon = parse_time("2024-07-01T10:00:00Z")
    assert found.values == [Counted(7, to_datetime(parse_time("2024-07-01T09:30:00Z")), to_datetime(noon))]
    assert found.times == [noon]
    assert "the clocks of Europe/Berlin never showed 2024-03-31T02:30:00" in found.reasons[0]
    assert found.codes == ["bad_time"]


def test_tls_demands_a_certificate_of_its_authority(tmp_path: Path) -> None:
    ours, strangers = Fleet(tmp_path / "ours"), Fleet(tmp_path / "strangers")
    for fleet in (ours, strangers):
        fleet.init("logs")
        fleet.issue(DEVICE, "pump-7")
    ours.issue(SERVER, "localhost")
    paths = ours.paths(SERVER, "localhost")
    source = Syslog[Event](
        tls=free_port(),
        certificate=str(paths.certificate),
        key=str(paths.key),
        ca=str(ours.ca),
        time="sent",
    )

    def send(shown: Fleet | None) -> None:
        context = ssl.create_default_context(cafile=str(ours.ca))
        if shown is not None:
            own = shown.paths(DEVICE, "pump-7")
            context.load_cert_chain(own.certificate, own.key)
        with (
            socket.create_connection(("127.0.0.1", source.tls), timeout=WAIT_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as sender,
        ):
            for message in EXAMPLES:
                sender.sendall(b"%d " % len(message) + message)
            sender.unwrap()

    async def story(found: Found) -> None:
        for stranger in (strangers, None):
            with suppress(OSError):  # by the alert, or the connection is gone, or as if all were well
                await asyncio.to_thread(send, stranger)
        sending = asyncio.ensure_future(asyncio.to_thread(send, ours))
        await found.until(4)
        await sending

    found = listen(story, source)
    assert [one.message for one in found.values] == [parse(raw).message for raw in EXAMPLES]
    assert {one.transport for one in found.values} == {"tls"}
    assert found.times == [time_of(parse(raw)) for raw in EXAMPLES]
    assert [one.sent for one in found.values] == [to_datetime(time_us) for time_us in found.times]
    paths.key.chmod(0o644)
    with pytest.raises(SourceError, match="can be read by others"):
        source.open("d1", "events", Event)


def test_over_tcp_a_sender_waits_and_nothing_is_lost() -> None:
    source, count = Syslog[Event](tcp=free_port()), 4 * BUFFER_MAX

    def send() -> None:
        with socket.create_connection(("127.0.0.1", source.tcp), timeout=WAIT_S) as sender:
            for number in range(count):
                sender.sendall(b"<14>1 - - - - - - %d %s\n" % (number, b"x" * 1_000))

    async def story(found: Found) -> None:
        sending = asyncio.ensure_future(asyncio.to_thread(send))
        await asyncio.sleep(0.5)
        assert not sending.done()  # nobody reads, so it has to wait
        await found.until(count)
        await sending

    found = listen(story, source)
    assert [int(one.message.split()[0]) for one in found.values] == list(range(count))
    assert found.reasons == []


def test_lines_that_begin_with_a_number_cost_themselves_alone_over_tcp() -> None:
    source = Syslog[Event](tcp=free_port())

    def send(bad: bytes, name: bytes, count: int) -> None:
        with socket.create_connection(("127.0.0.1", source.tcp), timeout=WAIT_S) as sender:
            sender.sendall(bad)
            for number in range(count):
                sender.sendall(b"<13>Sep 10 00:00:00 localhost logger: %s %d\n" % (name, number))

    async def story(found: Found) -> None:
        await asyncio.to_thread(send, b"20240102 03:04:05 host app: hello\n", b"good", 300)
        await asyncio.to_thread(send, b"29 Jul 2024 host app: hello\n", b"second", 10)
        await found.until(312)

    found = listen(story, source)
    messages = [f"good {number}" for number in range(300)] + [f"second {number}" for number in range(10)]
    assert sorted(one.message for one in found.values) == sorted(messages)
    assert sorted(found.raws) == [b"20240102 03:04:05 host app: hello", b"29 Jul 2024 host app: hello"]


def lost(found: Found) -> int:
    """How many messages its dead letters say were dropped."""
    return sum(int(reason.split(": ")[1].split()[0]) for reason in found.reasons)


def test_what_udp_loses_is_counted_to_the_unit() -> None:
    source, count = Syslog[Event](udp=free_port()), 30_000

    async def story(found: Found) -> None:
        await asyncio.sleep(0.2)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for number in range(count):  # the loop has no turn meanwhile, so that the kernel has to drop
                sender.sendto(b"<14>1 - - - - - - %d %s" % (number, b"x" * 200), ("127.0.0.1", source.udp))
        async with asyncio.timeout(WAIT_S):
            while len(found.values) + lost(found) < count:
                await found.read()
                await asyncio.sleep(0.01)
        await asyncio.sleep(1.2)  # the kernel is asked again meanwhile: nothing may be counted twice
        await found.read()

    found = listen(story, source)
    assert lost(found) > 0
    assert len(found.values) + lost(found) == count
    assert f"because the kernel's buffer of UDP port {source.udp} was full" in "".join(found.reasons)


def test_a_sender_that_floods_leaves_room_for_the_others(caplog: pytest.LogCaptureFixture) -> None:
    source = Syslog[Event](udp=free_port(), tcp=free_port(), sender_connections_max=2)
    flood = 3 * BUFFER_MAX

    def floods() -> None:
        with socket.create_connection(("127.0.0.1", source.tcp), timeout=WAIT_S) as sender:
            for number in range(flood):
                sender.sendall(b"<14>1 - - tcp - - - %d\n" % number)

    async def story(found: Found) -> None:
        sending = asyncio.ensure_future(asyncio.to_thread(floods))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for number in range(flood):
                sender.sendto(b"<14>1 - - udp - - - %d" % number, ("127.0.0.1", source.udp))
                if number % 100 == 0:
                    await asyncio.sleep(0.001)
        await asyncio.sleep(0.2)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind(("127.0.0.2", 0))
            for number in range(1_000):  # nobody has read meanwhile: all of these find room
                sender.sendto(b"<14>1 - - other - - - %d" % number, ("127.0.0.1", source.udp))
                if number % 100 == 0:
                    await asyncio.sleep(0.001)
        await asyncio.sleep(0.2)
        pairs = [await asyncio.open_connection("127.0.0.1", source.tcp) for _ in range(2)]
        assert await pairs[1][0].read(1) == b""
        async with asyncio.timeout(WAIT_S):
            while len(found.values) + lost(found) < 2 * flood + 1_000:
                await found.read()
                await asyncio.sleep(0.001)
        await sending
        for _, one in pairs:
            one.close()

    found = listen(story, source)
    by = {
        app: [int(one.message) for one in found.values if one.app == app] for app in ("tcp", "udp", "other")
    }
    assert by["other"] == list(range(1_000))
    assert by["tcp"] == list(range(flood))
    assert len(by["udp"]) + lost(found) == flood
    assert "because too many of 127.0.0.1 waited" in "".join(found.reasons)
    assert "sender_lost: source events: 127.0.0.1 sends faster" in caplog.text
    assert "set sender_connections_max higher" in caplog.text


def test_connections_are_bounded_and_a_port_in_use_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    source = Syslog[Event](tcp=free_port(), connections_max=2)

    async def story(found: Found) -> None:
        await asyncio.sleep(0.1)  # the one that looked whether it listens has gone
        pairs = [await asyncio.open_connection("127.0.0.1", source.tcp) for _ in range(2)]
        await asyncio.sleep(0.1)
        refused, writer = await asyncio.open_connection("127.0.0.1", source.tcp)
        assert await refused.read(1) == b""
        writer.close()
        second = Found((source.open("d1", "more", Event))[0])  # type: ignore[arg-type]
        await second.read()
        await asyncio.sleep(0.2)
        for _, one in pairs:
            one.write(b"<14>1 - - - - - - here\n")
        await found.until(2)
        await found.split.close()
        for _, one in pairs:
            one.close()
        await asyncio.sleep(1.2)
        await listening(source.tcp)
        await second.split.close()

    found = listen(story, source)
    assert [one.message for one in found.values] == ["here", "here"]
    assert "connections_refused: source events: 2 connections are open, 2 of them of 127.0.0.1" in caplog.text
    assert "set connections_max higher" in caplog.text
    assert "Address already in use; again in 1 s" in caplog.text


def test_mistakes_are_one_sentence() -> None:
    for source, said in (
        (Syslog[Event](), "listens nowhere: set udp, tcp or tls"),
        (Syslog[Event](tcp=5, tls=5), "are both port 5"),
        (Syslog[Event](tls=6514), "a port with TLS needs certificate and key"),
        (Syslog[Event](udp=514, fields={"nothing": "host"}), "there is no field 'nothing'"),
    ):
        with pytest.raises(SourceError, match=said):
            source.open("d1", "events", Event)


@pytest.mark.slow
def test_an_agent_hears_what_is_sent(tmp_path: Path) -> None:
    port = free_port()
    agent = AgentProcess(tmp_path, "syslog", {"udp": port}, policy="drop_oldest")

    async def story(agent: AgentProcess) -> None:
        sent = 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while not agent.records() or not agent.records("_dead_letters"):
                await asyncio.sleep(0.1)
                sender.sendto(b"<14>1 - - - - - - hello", ("127.0.0.1", port))
                sender.sendto(b"hello?", ("127.0.0.1", port))
                sent += 1
                assert sent < 500

    agent.run(story)
    assert set(agent.records()) == {Said("hello", "127.0.0.1")}
