"""An address that is asked again and again, whose server knows what has changed, over restarts."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from geartrain import Record
from geartrain.adapters.files import write_durable
from geartrain.errors import SourceError
from geartrain_devices.http_place import NOTHING, answered
from geartrain_devices.http_poll import HttpPoll
from geartrain_devices.live import BUFFER_MAX
from tests.waiting import WAIT_S, Wait, wait_for

COUNT = 40


class Reading(Record):
    number: int


class Service(ThreadingHTTPServer):
    """body: what it answers, with a validator in `form`; asked: the conditions of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = b"[]"
        self.form = "ETag"
        self.changed = "Wed, 21 Oct 2015 07:28:00 GMT"
        self.asked: list[tuple[str, str]] = []
        self.heard = threading.Condition()

    def hold(self, *numbers: int) -> None:
        self.body = json.dumps([{"number": number} for number in numbers]).encode()

    @property
    def etag(self) -> str:
        return f'W/"{hash(self.body)}"'

    def source(self, **options: Any) -> HttpPoll[Reading]:
        url = f"http://127.0.0.1:{self.server_port}/"
        return HttpPoll(url=url, **{"every_s": 0.005, "items": "[0]", **options})

    def until_asked(self, count: int) -> None:
        with self.heard:
            least = len(self.asked) + count
            assert self.heard.wait_for(lambda: len(self.asked) >= least, WAIT_S)


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        with self.server.heard:
            tag, since = self.headers.get("If-None-Match", ""), self.headers.get("If-Modified-Since", "")
            self.server.asked.append((tag, since))
            self.server.heard.notify_all()
        body = b"[" + self.server.body + b"]"
        is_known = tag == self.server.etag or (not tag and since == self.server.changed)
        self.send_response(304 if is_known else 200)
        if self.server.form == "ETag":
            self.send_header("ETag", self.server.etag)
        if self.server.form == "Last-Modified":
            self.send_header("Last-Modified", self.server.changed)
        self.end_headers()
        if not is_known:
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        return


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield found
    found.shutdown()
    thread.join(WAIT_S)
    found.server_close()


async def read_some(split: Any, position: int, count: int) -> tuple[list[int], int]:
    """Numbers of so many records, and the position behind them."""
    found: list[int] = []
    wait = Wait("rows of the service")
    while len(found) < count:
        wait.check()
        batch = await split.read(position, count - len(found))
        assert not batch.rejects
        assert list(batch.numbers) == [*range(position, batch.position)]
        found += [value.number for value in batch.values]
        position = batch.position
        await asyncio.sleep(0.001)
    return found, position


async def nothing_new(service: Service, split: Any, position: int, asks: int = 3) -> None:
    """It is asked so many times, and gives nothing."""
    waiting = asyncio.create_task(asyncio.to_thread(service.until_asked, asks))
    while not waiting.done():
        assert (await split.read(position, 10)).position == position
        await asyncio.sleep(0.001)
    await waiting
    assert (await split.read(position, 10)).position == position


def opened(source: HttpPoll[Reading]) -> Any:
    (split,) = source.open("d1", "readings", Reading)
    return split


@pytest.mark.parametrize("form", ["ETag", "Last-Modified", ""])
def test_an_answer_that_has_not_changed_gives_nothing_also_after_a_restart(
    form: str, service: Service, tmp_path: Path
) -> None:
    service.form = form
    service.hold(1, 2, 3)
    source = service.source(keep=str(tmp_path / "keep"))
    condition = {"ETag": (service.etag, ""), "Last-Modified": ("", service.changed)}.get(form, ("", ""))

    async def run() -> None:
        split = opened(source)
        found, position = await read_some(split, 0, 3)
        await nothing_new(service, split, position)
        await split.close()
        assert (found, service.asked[0], service.asked[-1]) == ([1, 2, 3], ("", ""), condition)
        service.asked.clear()
        again = opened(source)
        await nothing_new(service, again, position)
        assert service.asked[0] == condition
        service.hold(4)
        service.changed = "Wed, 21 Oct 2015 07:29:00 GMT"
        assert await read_some(again, position, 1) == ([4], 4)
        await again.close()

    asyncio.run(run())


def test_what_an_agent_does_not_have_is_asked_for_without_a_condition(
    service: Service, tmp_path: Path
) -> None:
    service.hold(*range(5))
    source = service.source(keep=str(tmp_path))

    async def run(position: int, count: int) -> list[int]:
        split = opened(source)
        found, _ = await read_some(split, position, count)
        await split.close()
        return found

    for position, wanted in ((0, [0, 1]), (0, [0, 1, 2, 3]), (2, [2, 3, 4]), (0, [0, 1, 2, 3, 4])):
        service.asked.clear()
        assert asyncio.run(run(position, len(wanted))) == wanted  # its end waits for a request under way
        assert service.asked[0] == ("", "")
    service.hold(7, 8)  # the rest of the answer before is gone
    assert asyncio.run(run(3, 2)) == [7, 8]


def test_a_place_that_is_being_written_is_waited_for_at_the_end(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, may_go_on = threading.Event(), threading.Event()

    def slowly(path: Path, data: bytes) -> None:
        writing.set()
        wait_for("the test to let the service go on", may_go_on.is_set)
        write_durable(path, data)

    monkeypatch.setattr("geartrain_devices.http_place.write_durable", slowly)
    service.hold(1, 2)
    source = service.source(keep=str(tmp_path))

    async def run() -> None:
        split = opened(source)
        assert (await split.read(0, 10)).position == 0
        assert await asyncio.to_thread(writing.wait, WAIT_S)
        closing = asyncio.create_task(split.close())
        await asyncio.wait([closing], timeout=0.05)
        is_closed_early = closing.done()
        may_go_on.set()
        await closing
        assert not is_closed_early

    asyncio.run(run())
    assert json.loads(next(tmp_path.glob("*.json")).read_bytes())["end"] == 2


def test_however_often_it_is_started_again_each_record_is_there_once(
    service: Service, tmp_path: Path
) -> None:
    service.hold(*range(COUNT))
    source, rng = service.source(keep=str(tmp_path)), random.Random(7)

    async def run() -> list[int]:
        committed: list[int] = []
        while len(committed) < COUNT:
            split, position = opened(source), len(committed)
            while rng.random() < 0.7 and len(committed) < COUNT:
                found, position = await read_some(split, position, min(rng.randint(1, 6), COUNT - position))
                if rng.random() < 0.3:
                    break  # the process ends before it has committed
                committed += found
            await split.close()
        split = opened(source)
        await nothing_new(service, split, COUNT)
        await split.close()
        return committed

    assert asyncio.run(run()) == [*range(COUNT)]


def test_an_answer_that_is_larger_than_the_buffer_is_there_whole(service: Service) -> None:
    count = BUFFER_MAX + 500
    service.hold(*range(count))

    async def run() -> None:
        split = opened(service.source())
        assert (await read_some(split, 0, count))[0] == [*range(count)]
        await split.close()

    asyncio.run(run())


def test_a_folder_belongs_to_one_process_and_its_file_must_be_whole(service: Service, tmp_path: Path) -> None:
    service.hold(1)
    source = service.source(keep=str(tmp_path))

    async def run() -> None:
        split = opened(source)
        await read_some(split, 0, 1)
        other = opened(source)
        with pytest.raises(SourceError, match="another process asks as d1/readings"):
            await read_some(other, 0, 1)
        await split.close()

    async def third() -> None:
        split = opened(source)
        with pytest.raises(SourceError, match=r"json, which says what was answered last, cannot be read"):
            await read_some(split, 1, 1)
        await split.close()

    asyncio.run(run())
    (path,) = tmp_path.glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("{")
    asyncio.run(third())


def test_a_change_within_the_second_of_an_answer_is_not_missed() -> None:
    date = formatdate(1_000_000, usegmt=True)
    for before, condition in ((0, False), (1, True)):
        modified = formatdate(1_000_000 - before, usegmt=True)
        assert bool(answered(b"x", "", modified, date, 1).conditions) == condition
    for changed, said in (("never", date), (date, "")):
        assert not answered(b"x", "", changed, said, 1).conditions


@pytest.mark.parametrize("etag", ["x" * 5_000, "a\r\nX: y", "ä"])
def test_an_etag_that_no_header_takes_is_no_condition(etag: str) -> None:
    assert answered(b"x", etag, "", "", 1).conditions == NOTHING.conditions == {}
