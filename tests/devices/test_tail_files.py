"""Log files on a real disk: written, renamed, cut short, deleted and packed; read through restarts."""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import re
import shutil
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from geartrain import Record
from geartrain.adapters.files import write_durable
from geartrain.errors import SourceError
from geartrain.source import Reject
from geartrain_devices import tail_places
from geartrain_devices.tail_files import TailFiles
from tests.devices.agent_process import AgentProcess


class Line(Record):
    line: str


class Access(Record):
    who: str
    status: int
    took: float = 0.0


class Clock:
    """Seconds that a test moves on."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Tail:
    """A reader of `app.log` that is killed and comes back: what it committed is what counts."""

    def __init__(self, folder: Path, kind: type[Any] = Line, **options: Any) -> None:
        self.clock = Clock()
        self.options = {"path": str(folder / "app.log"), "keep": str(folder / "keep")} | options
        self.kind, self.position = kind, 0
        self.values: list[Any] = []
        self.times: list[int] = []
        self.numbers: list[int] = []
        self.rejects: list[Reject] = []
        self.start()

    def start(self) -> None:
        source = TailFiles[Any](**self.options)
        source.monotonic_s = self.clock  # type: ignore[method-assign]
        (self.split,) = source.open("d1", "logs", self.kind)
        self.at = self.position

    def kill(self) -> None:
        """What was read and not committed is forgotten."""
        asyncio.run(self.split.close())
        self.start()

    def read(self, reads: int = 1, limit: int = 100, *, commit: bool = True) -> None:
        """Read; what is not committed would be lost by a kill, and is thrown away here."""
        for _ in range(reads):
            found = asyncio.run(self.split.read(self.at, limit))
            assert len(found.values) + len(found.rejects) <= limit
            assert found.position >= self.at
            self.at = found.position
            if commit:
                self.position = self.at
                self.values += found.values
                self.times += found.times
                self.numbers += found.numbers
                self.rejects += found.rejects

    def drain(self) -> None:
        """Read until nothing comes for long."""
        for _ in range(40):
            self.clock.now_s += 3
            self.read(3)

    @property
    def lines(self) -> list[str]:
        return [value.line for value in self.values]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def write(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def rename(log: Path) -> None:
    """As logrotate does: app.log.2 from app.log.1, app.log.1 from app.log."""
    for number in range(60, 0, -1):
        old = log.with_name(f"app.log.{number}")
        if old.exists():
            old.rename(log.with_name(f"app.log.{number + 1}"))
    if log.exists():
        log.rename(log.with_name("app.log.1"))


def copy_and_cut(log: Path) -> None:
    """As logrotate does with `copytruncate`."""
    if not log.exists():
        return
    for number in range(60, 0, -1):
        old = log.with_name(f"app.log.{number}")
        if old.exists():
            old.rename(log.with_name(f"app.log.{number + 1}"))
    shutil.copy(log, log.with_name("app.log.1"))
    os.truncate(log, 0)


def test_lines_come_once_in_order_and_partial_ones_wait(log: Path, tmp_path: Path) -> None:
    write(log, "a", "b")
    tail = Tail(tmp_path)
    with log.open("a") as file:
        file.write("c begins")
        file.flush()
        tail.read(3)
        assert tail.lines == ["a", "b"]
        file.write(" and ends\r\n\n")
    tail.read(2)
    assert (tail.lines, tail.rejects) == (["a", "b", "c begins and ends"], [])
    assert tail.numbers == sorted(set(tail.numbers))


def test_a_renamed_log_is_read_to_its_end_though_its_writer_goes_on(log: Path, tmp_path: Path) -> None:
    write(log, "a")
    tail = Tail(tmp_path)
    tail.read(2)
    with log.open("a") as writer:
        rename(log)
        write(log, "c")
        tail.read(2)
        writer.write("b, written late\nand no end")
    tail.drain()
    assert tail.lines == ["a", "b, written late", "and no end", "c"]


def test_who_writes_to_a_file_that_was_left_is_still_heard(log: Path, tmp_path: Path) -> None:
    write(log, "a")
    tail = Tail(tmp_path)
    with log.open("a") as writer:
        tail.read(2)
        rename(log)
        write(log, "b")
        tail.drain()
        writer.write("very late\n")
        writer.flush()
        tail.drain()
        write(log, "c")
        tail.drain()
        tail.kill()
        tail.drain()
    assert (tail.lines, tail.rejects) == (["a", "b", "very late", "c"], [])


def test_a_copy_that_was_cut_short_gives_the_rest_from_the_copy(log: Path, tmp_path: Path) -> None:
    write(log, "a")
    tail = Tail(tmp_path)
    tail.read(2)
    write(log, "b")
    copy_and_cut(log)
    write(log, "c", "d", "e is longer than all that was there before")
    tail.drain()
    assert (tail.lines, tail.rejects) == (
        ["a", "b", "c", "d", "e is longer than all that was there before"],
        [],
    )


def test_a_log_that_is_emptied_without_a_copy_is_told(
    log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(log, "a")
    tail = Tail(tmp_path)
    tail.read(2)
    write(log, "lost")
    os.truncate(log, 0)
    tail.drain()
    write(log, "b")
    tail.drain()
    assert tail.lines == ["a", "b"]
    said = "it was cut short after byte 2 was read, and no copy of it is there"
    assert [one.reason for one in tail.rejects] == [f"lines may be lost here: file {log}: {said}"]
    assert "lines_lost: source logs" in caplog.text


def test_a_file_that_was_deleted_is_read_while_it_is_open_and_told_after_a_restart(
    log: Path, tmp_path: Path
) -> None:
    write(log, "a")
    tail = Tail(tmp_path)
    tail.read(1)
    log.unlink()
    tail.read(2)
    write(log, "b")
    tail.drain()
    assert (tail.lines, tail.rejects) == (["a", "b"], [])
    write(log, "c")
    log.unlink()
    write(log, "d", "e")
    tail.kill()
    tail.drain()
    assert tail.lines == ["a", "b", "d", "e"]
    assert "a file that was read up to byte 2 is gone or packed" in tail.rejects[0].reason


def test_packed_and_strange_files_are_passed_over(log: Path, tmp_path: Path) -> None:
    write(log, "a")
    (tmp_path / "app.log.2.gz").write_bytes(gzip.compress(b"old\n"))
    (tmp_path / "app.log.d").mkdir()
    (tmp_path / "app.logs").write_text("other\n")
    tail = Tail(tmp_path, begin="oldest")
    tail.drain()
    rename(log)
    tail.kill()
    tail.drain()
    (tmp_path / "app.log.1.gz").write_bytes(gzip.compress((tmp_path / "app.log.1").read_bytes()))
    (tmp_path / "app.log.1").unlink()
    write(log, "b")
    tail.drain()
    assert (tail.lines, tail.rejects) == (["a", "b"], [])


@pytest.mark.parametrize(
    ("begin", "expected"),
    [("start", ["b", "c", "d"]), ("end", ["c", "d"]), ("oldest", ["a", "b", "c", "d"])],
)
def test_where_a_first_life_begins(begin: str, expected: list[str], log: Path, tmp_path: Path) -> None:
    write(log, "a")
    rename(log)
    write(log, "b")
    tail = Tail(tmp_path, begin=begin)
    tail.read(3, commit=False)
    write(log, "c")
    tail.kill()  # before its first commit
    rename(log)
    write(log, "d")
    tail.drain()
    assert tail.lines == expected


def test_long_lines_are_capped_with_their_reason_though_a_restart_falls_within(
    log: Path, tmp_path: Path
) -> None:
    with log.open("wb") as file:
        file.write(b"x" * 700_000)
        file.flush()
        tail = Tail(tmp_path, line_bytes_max=100)
        for _ in range(4):
            tail.read()
            tail.kill()
        file.write(b"x" * 700_000 + b"\nshort\n" + b"y" * 101 + b"\r\n" + b"z" * 100 + b"\r\n")
    tail.drain()
    assert tail.lines == ["short", "z" * 100]
    assert [(one.reason, one.raw) for one in tail.rejects] == [
        ("app.log, byte 0: it is longer than line_bytes_max = 100 bytes", b"x" * 100),
        (
            "app.log, byte 1400000: the line from byte 0 on ends here; 1399900 bytes of it were passed over",
            b"",
        ),
        (
            "app.log, byte 1400007: it has 101 bytes, above line_bytes_max = 100; the first ones are kept",
            b"y" * 100,
        ),
    ]
    assert {one.code for one in tail.rejects} == {"too_long"}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_byte_order_mark_says_how_a_log_is_written(log: Path, tmp_path: Path, encoding: str) -> None:
    """Written in pieces that end within a character, rotated both ways, and read through restarts."""
    name, mark = encoding.removesuffix("-sig"), "\ufeff"
    lines = [f"[{number}] größer Ω 😀 \u0a0a\u0d0a {number}" for number in range(60)]
    tail, choose = Tail(tmp_path, line_bytes_max=400), random.Random(encoding)
    for part, begin in enumerate(range(0, 60, 15)):
        raw = (mark + "".join(f"{line}\r\n" for line in lines[begin : begin + 15])).encode(name)
        while raw:
            size = choose.choice((1, 3, 50, 400))
            with log.open("ab") as file:
                file.write(raw[:size])
            raw = raw[size:]
            if choose.random() < 0.2:
                tail.read(commit=False)
                tail.kill()
            tail.read()
        if part < 3:
            (rename if part % 2 else copy_and_cut)(log)
    tail.drain()
    assert (tail.lines, tail.rejects) == (lines, [])


def test_a_log_without_a_mark_is_read_by_its_option_or_refused_in_one_sentence(
    log: Path, tmp_path: Path
) -> None:
    lines = ["2019-11-13 04:54:54,DEBUG,hello", "2019-11-13 04:54:55,DEBUG,wörld"]
    log.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-16-le"))
    with pytest.raises(SourceError, match='set encoding = "utf-16-le"') as refused:
        Tail(tmp_path, keep=str(tmp_path / "refused")).read(3)
    assert str(refused.value).startswith(f"source logs: file {log}: it seems to be UTF-16 text")
    tail = Tail(tmp_path, encoding="utf-16-le")
    tail.drain()
    assert tail.lines == lines
    log.write_bytes("[1] größer\n".encode("cp1252"))
    tail = Tail(tmp_path, keep=str(tmp_path / "other"), encoding="cp1252")
    tail.drain()
    assert tail.lines == ["[1] größer"]
    with pytest.raises(SourceError, match="encoding = 'utf-9' cannot be read"):
        Tail(tmp_path, encoding="utf-9")


def test_marks_and_nuls_within_a_log_become_no_part_of_a_record(log: Path, tmp_path: Path) -> None:
    log.write_bytes(b"\xef\xbb\xbf[1] a\n\xef\xbb\xbf[2] b\nwith a \0 NUL\n\xef\xbb\xbf\n")
    tail = Tail(tmp_path)
    tail.drain()
    assert tail.lines == ["[1] a", "[2] b"]
    assert [(one.code, one.raw) for one in tail.rejects] == [("not_text", b"with a \0 NUL")]
    log.write_bytes(b'\xef\xbb\xbf{"line": "a"}\n\xef\xbb\xbf{"line": "b"}\n')
    tail = Tail(tmp_path, keep=str(tmp_path / "other"), json=True)
    tail.drain()
    assert (tail.lines, tail.rejects) == (["a", "b"], [])


def test_a_long_line_that_is_cut_short_within_is_passed_over_to_its_end(log: Path, tmp_path: Path) -> None:
    with log.open("ab") as file:
        file.write(b"first\n" + b"x" * 300_000)
    tail = Tail(tmp_path, line_bytes_max=100)
    tail.read(5)
    with log.open("ab") as file:
        file.write(b"x" * 200_000 + b"\nsecond\n")
    copy_and_cut(log)
    write(log, "third")
    tail.drain()
    assert tail.lines == ["first", "second", "third"]
    assert [len(one.raw) for one in tail.rejects] == [100, 0]
    assert "the line from byte 6 on ends here; 499900 bytes of it were passed over" in tail.rejects[1].reason


def test_bytes_that_are_no_text_and_lines_that_fit_no_pattern_are_kept(log: Path, tmp_path: Path) -> None:
    log.write_bytes(
        b"10.0.0.1 [10/Oct/2000:13:55:36 -0700] 200 0.25\n"
        b"10.0.0.2 [10/Oct/2000:13:55:37 -0700] 500 -\n"
        b"\xff\xfe\n"
        b"10.0.0.3 [yesterday] 200 1\n"
        b"nonsense\n"
        b"10.0.0.4 [10/Oct/2000:13:55:40 -0700] 99999999999999999999 1\n"
    )
    tail = Tail(
        tmp_path,
        Access,
        pattern=r"(?P<who>\S+) \[(?P<at>[^]]+)\] (?P<status>\d+) (?:(?P<took>[\d.]+)|-)",
        time="at",
        time_format="%d/%b/%Y:%H:%M:%S %z",
    )
    tail.drain()
    assert tail.values == [Access("10.0.0.1", 200, 0.25), Access("10.0.0.2", 500)]
    assert tail.times == [971_211_336_000_000, 971_211_337_000_000]  # date -d '2000-10-10 13:55:36 -0700' +%s
    advice = 'set encoding to that of the text, such as encoding = "cp1252"'
    assert [one.reason.partition(": ")[2] for one in tail.rejects] == [
        f"it is not UTF-8 text, at its byte 1 (0xff): {advice}",
        "its time 'yesterday' is not written as '%d/%b/%Y:%H:%M:%S %z', nor as ISO 8601",
        "it does not fit the pattern",
        "field status is 99999999999999999999, which does not fit into 64 bits",
    ]
    assert tail.rejects[0].raw == b"\xff\xfe"


def test_json_lines_and_the_time_of_reading(log: Path, tmp_path: Path) -> None:
    write(log, '{"who": "a", "meta": {"code": 3}}', "{")
    tail = Tail(tmp_path, Access, json=True, fields={"status": "meta.code"})
    before = time.time_ns() // 1_000
    tail.drain()
    assert tail.values == [Access("a", 3)]
    assert before <= tail.times[0] <= time.time_ns() // 1_000
    assert "it is not JSON" in tail.rejects[0].reason


def test_a_hole_that_a_cut_left_is_passed_over(log: Path, tmp_path: Path) -> None:
    with log.open("w") as writer:  # not for appending: it goes on at its own place
        writer.write("a\n")
        writer.flush()
        tail = Tail(tmp_path)
        tail.read(2)
        copy_and_cut(log)
        writer.write("b\n")
    tail.drain()
    assert (tail.lines, tail.rejects) == (["a", "b"], [])


def test_two_readers_never_share_a_place_and_mistakes_are_one_sentence(log: Path, tmp_path: Path) -> None:
    write(log, "a")
    first, second = Tail(tmp_path), Tail(tmp_path)
    first.read()
    with pytest.raises(SourceError, match=r"another process reads .* end it, or set another folder as keep"):
        second.read()
    asyncio.run(first.split.close())
    (kept,) = (tmp_path / "keep").glob("*.json")
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.write_text("{")
    with pytest.raises(SourceError, match="remove it, and the log is read from its beginning"):
        second.read()
    for options, said in (
        ({"path": ""}, "source logs has no file"),
        ({"keep": ""}, 'set keep = "FOLDER"'),
        ({"path": str(tmp_path / "no" / "app.log")}, "there is no folder"),
        ({"pattern": "a("}, "is no regular expression at its character 2"),
        ({"pattern": "(?P<a>.)", "time": "b"}, "there is no group 'b' in its pattern; its groups: a"),
        ({"rotated": "a/b"}, "must be of names"),
        ({"time_unit": "h"}, "time_unit = 'h' must be one of s, ms, us"),
    ):
        with pytest.raises(SourceError, match=said.replace("(", r"\(")):
            Tail(tmp_path, Line, **options)


class KilledError(Exception):
    """The process ends here."""


class DeadlyDisk:
    """Ends the process before or after some writes."""

    def __init__(self, choose: random.Random) -> None:
        self._choose, self.chance = choose, 0.0

    def write(self, path: Path, content: bytes) -> None:
        if self._choose.random() < self.chance:
            raise KilledError
        write_durable(path, content)
        if self._choose.random() < self.chance:
            raise KilledError


@pytest.mark.parametrize("seed", range(30))
def test_every_line_comes_once_whatever_is_done_to_the_log(
    seed: int, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are counted; what a reader has committed at the end are all of them, in order. It is killed
    between reads, and before and after it writes down where it is.
    """
    choose = random.Random(seed)
    disk = DeadlyDisk(choose)
    monkeypatch.setattr(tail_places, "write_durable", disk.write)
    written: list[str] = []
    tail = Tail(tmp_path)
    tail.read()
    disk.chance = 0.2

    def read(reads: int = 1, limit: int = 100, *, commit: bool = True) -> None:
        try:
            tail.read(reads, limit, commit=commit)
        except KilledError:
            tail.kill()

    def a_line() -> str:
        written.append(f"{len(written)} " + "x" * choose.choice((0, 3, 80, 3_000)))
        return written[-1]

    ways = ("rename", "copy") if seed % 3 == 2 else ("rename",) if seed % 3 else ("copy",)
    for _ in range(120):
        what = choose.choice(
            ("write", "write", "write", "read", "read", "wait", "forget", "kill", "rotate", "lazy")
        )
        if what == "write":
            write(log, *(a_line() for _ in range(choose.randint(1, 4))))
        elif what == "lazy":  # the halves of one line, with a look between them
            line = a_line()
            with log.open("a") as file:
                file.write(line[: len(line) // 2])
                file.flush()
                read(commit=choose.random() < 0.5)
                file.write(line[len(line) // 2 :] + "\n")
            if tail.at != tail.position:
                tail.kill()
        elif what == "rotate":
            (rename if choose.choice(ways) == "rename" else copy_and_cut)(log)
        elif what == "kill":
            tail.kill()
        elif what == "forget":
            read(choose.randint(1, 4), choose.randint(1, 5), commit=False)
            tail.kill()
        else:
            tail.clock.now_s += 6 if what == "wait" else 0.2
            read(choose.randint(1, 4), choose.randint(1, 5))
    disk.chance = 0.0
    tail.drain()
    tail.drain()
    assert tail.lines == written
    assert tail.rejects == []
    assert tail.numbers == sorted(set(tail.numbers))


@pytest.mark.slow
def test_an_agent_that_is_killed_loses_and_doubles_no_line(log: Path, tmp_path: Path) -> None:
    agent = AgentProcess(
        tmp_path, "tail", {"path": str(log), "keep": str(tmp_path / "keep"), "rotate_wait_s": 0.2}
    )
    written: list[str] = []

    def more() -> None:
        lines = [f"line {len(written) + n}" for n in range(50)]
        written.extend(lines)
        write(log, *lines)

    async def story(agent: AgentProcess) -> None:
        for turn in range(12):
            more()
            if turn % 4 == 1:
                rename(log)
            elif turn % 4 == 3:
                copy_and_cut(log)
            more()
            seen = agent.ingest.seq
            if turn % 3 == 2:
                agent.kill()
                more()
                rename(log)
                agent.start()
            await agent.until(lambda before=seen: agent.ingest.seq > before)  # type: ignore[misc]
        await agent.until(lambda: len(agent.records()) >= len(written))

    agent.run(story)
    assert [record.line for record in agent.records()] == written
    assert agent.records("_dead_letters") == []


DOCS = Path(__file__).parents[2] / "docs" / "sources" / "log_files.md"


def rows_of_the_docs() -> list[tuple[bytes, dict[str, Any]]]:
    """(a file, the options that read it) of each row of the table that shows a file."""
    rows = []
    for row in DOCS.read_text().split("| The file | Options |")[1].splitlines()[2:]:
        file, options = row.split("|")[1:3]
        if ": `" in file:
            raw = file.rsplit(": `", 1)[1].rstrip("` ").encode().decode("unicode_escape").encode("latin-1")
            written = [one.strip() for one in re.findall(r"`([^`]+)`", options)]
            rows.append((raw, tomllib.loads("\n".join(written))))
    return rows


@pytest.mark.parametrize(("raw", "options"), rows_of_the_docs())
def test_the_options_of_the_docs_read_their_files(
    log: Path, tmp_path: Path, raw: bytes, options: dict[str, Any]
) -> None:
    log.write_bytes(raw)
    tail = Tail(tmp_path, **options)
    tail.drain()
    assert (tail.lines, tail.rejects) == (["größer"], [])
