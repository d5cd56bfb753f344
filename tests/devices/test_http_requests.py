"""What servers really answer: marks, encodings and nothing at all; proxies; and why an address is silent."""

from __future__ import annotations

import ast
import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

from geartrain import Digits, Record
from geartrain.errors import SourceError
from geartrain.source import Batch
from geartrain_devices.http_poll import EMPTY, HttpPoll
from tests.ports import free_port
from tests.waiting import WAIT_S


class Heat(Record):
    celsius: int
    unit: str = ""


class Price(Record):
    price: Annotated[Decimal, Digits(18, 9)]


LATIN = "application/json; charset=iso-8859-1"


class Server(BaseHTTPRequestHandler):
    answers: ClassVar[list[tuple[int, bytes, str]]] = []
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, body, kind = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        return


@contextmanager
def server(*answers: tuple[int, bytes, str]) -> Iterator[str]:
    Server.answers, Server.asked = list(answers), []
    running = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
        running.server_close()


def polled(source: HttpPoll[Any], kind: Any, rows: int) -> Batch:
    async def run() -> Batch:
        (split,) = source.open("d1", "heat", kind)
        values: list[Any] = []
        rejects: list[Any] = []
        counts: dict[str, int] = {}
        at = 0
        async with asyncio.timeout(WAIT_S):
            while len(values) + len(rejects) < rows:
                found = await split.read(at, 100)
                at, values, rejects = (
                    found.position,
                    values + list(found.values),
                    rejects + list(found.rejects),
                )
                for name, count in found.counts.items():
                    counts[name] = counts.get(name, 0) + count
                await asyncio.sleep(0.005)
        await split.close()
        return Batch(values, [], [], at, rejects, counts=counts)

    return asyncio.run(run())


def test_answers_are_read_by_mark_and_header_and_nothing_is_no_data() -> None:
    answers = [
        (204, b"", ""),
        (200, b"", "application/json"),
        (200, b'\xef\xbb\xbf{"celsius": 1}', "application/json"),
        (200, '{"celsius": 2, "unit": "°C"}'.encode("utf-16"), "application/json"),
        (200, '{"celsius": 3, "unit": "°C"}'.encode("latin-1"), LATIN),
        (200, '{"celsius": 4, "unit": "°C"}'.encode("latin-1"), "application/json"),
        (200, b'{"celsius": 5}', "application/json; charset=klingon"),
    ]
    with server(*answers) as url:
        found = polled(HttpPoll(url=url, every_s=0.01), Heat, 5)
    assert found.values == [Heat(1), Heat(2, "°C"), Heat(3, "°C"), Heat(5)]
    assert [reject.code for reject in found.rejects] == ["not_utf8"]
    assert found.counts == {EMPTY: 2}


def test_an_option_says_the_encoding_where_a_server_does_not() -> None:
    with server((200, '[{"celsius": 4, "unit": "°C"}]'.encode("cp1252"), "application/json")) as url:
        found = polled(HttpPoll(url=url, every_s=0.01, items="[0]", encoding="cp1252"), Heat, 1)
        assert found.rejects, "an object is no list of records"
    with server((200, '{"all": [{"celsius": 4, "unit": "°C"}]}'.encode("cp1252"), "text/plain")) as url:
        found = polled(HttpPoll(url=url, every_s=0.01, items="all", encoding="cp1252"), Heat, 1)
    assert found.values == [Heat(4, "°C")]


def test_a_number_in_a_list_of_items_is_exact() -> None:
    with server((200, b'{"all": [{"price": 123456789.123456789}]}', "application/json")) as url:
        found = polled(HttpPoll(url=url, every_s=0.01, items="all"), Price, 1)
    assert found.values == [Price(Decimal("123456789.123456789"))]


def test_a_proxy_is_asked_that_an_option_or_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    far = "http://meter.invalid/now"
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with server((200, b'{"celsius": 1}', "application/json")) as url:
        assert polled(HttpPoll(url=far, every_s=0.01, proxy=url), Heat, 1).values == [Heat(1)]
        assert set(Server.asked) == {far}
        monkeypatch.setenv("http_proxy", url)
        assert polled(HttpPoll(url=far, every_s=0.01), Heat, 1).values == [Heat(1)]
        Server.asked.clear()
        assert polled(HttpPoll(url=f"{url}/own", every_s=0.01, proxy="none"), Heat, 1).values == [Heat(1)]
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert polled(HttpPoll(url=f"{url}/own", every_s=0.01), Heat, 1).values == [Heat(1)]
        assert set(Server.asked) == {"/own"}


@pytest.mark.parametrize("proxy", ["proxy:3128", "http://", "ftp://proxy", "http://a b"])
def test_what_is_no_proxy_is_refused(proxy: str) -> None:
    with pytest.raises(SourceError, match="is no address of a proxy, such as http://proxy"):
        HttpPoll[Heat](url="http://x", proxy=proxy).open("d1", "heat", Heat)


def test_why_an_address_is_silent_is_said_in_our_own_words(caplog: pytest.LogCaptureFixture) -> None:
    good = (200, b'{"celsius": 1}', "application/json")
    with server((404, b"", ""), (429, b"", ""), (500, b"", ""), good) as url:
        polled(HttpPoll(url=url, every_s=0.01, proxy="none"), Heat, 1)
    for said in ("status 404: see whether url is right", "status 429: ask more seldom: set every_s higher"):
        assert f"it answers with {said}" in caplog.text
    assert "it answers with status 500: see the log of the server" in caplog.text

    async def silent(url: str) -> None:
        (split,) = HttpPoll[Heat](url=url, every_s=0.01, proxy="none").open("d1", "heat", Heat)
        caplog.clear()
        async with asyncio.timeout(WAIT_S):
            while not caplog.text:
                await split.read(0, 1)
                await asyncio.sleep(0.01)
        await split.close()

    asyncio.run(silent(f"http://127.0.0.1:{free_port()}/"))
    assert "does not answer: nothing listens there: see whether the server runs" in caplog.text
    with server(good) as url:
        asyncio.run(silent(url.replace("http:", "https:")))
    assert "it does not speak TLS as this machine does" in caplog.text


PAGE = (Path(__file__).parents[2] / "docs" / "sources" / "http.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([{\[].*?)` \| `(.*?)` \|$", re.MULTILINE)


def test_each_row_of_the_page_is_read_as_it_says() -> None:
    rows = ROW.findall(PAGE)
    assert len(rows) >= 5
    for sent, options in rows:
        call = ast.parse(f"f({options})", mode="eval").body
        assert isinstance(call, ast.Call)
        given: dict[str, Any] = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        with server((200, sent.encode(), "application/json")) as url:
            assert polled(HttpPoll(url=url, every_s=0.01, **given), Heat, 1).values == [Heat(21)], sent
