"""The page's server: what it answers, what it refuses, and that it tells no stranger anything."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from geartrain_cloud.errors import PageError
from geartrain_cloud.pages.connections import ENOUGH
from geartrain_cloud.pages.server import serve
from geartrain_cloud.sinks.tables import rows
from geartrain_examples.stocks.page import StockPage
from tests.pages.conftest import HOSTILE, served, tables_of, write_prices
from tests.waiting import WAIT_S


def get(address: str, path: str, host: str | None = None) -> tuple[int, dict[str, str], bytes]:
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.hostname or "", where.port or 0, timeout=WAIT_S)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    connection.close()
    return found


def ask(address: str, path: str) -> tuple[int, Any]:
    status, headers, body = get(address, path)
    assert headers["content-type"].startswith("application/json")
    return status, json.loads(body)


def test_symbols_have_their_periods_and_all(sample_page: str) -> None:
    status, found = ask(sample_page, "/api/symbols")
    assert status == 200
    periods = {one["symbol"]: one["periods"] for one in found["symbols"]}
    assert list(periods) == ["AAPL", "FB", "GOOG", "IBM", "MSFT"]
    assert periods["FB"] == ["2012", "2013", "all"]
    assert periods["AAPL"][0] == "2000"


def test_report_is_the_row_of_the_table_with_its_curves(sample_page: str, sample_tables: Path) -> None:
    status, report = ask(sample_page, "/api/report/AAPL?period=2008")
    assert status == 200
    row = rows(sample_tables, "drawdown", {"symbol": "AAPL", "period": "2008"})[0]
    assert {name: report[name] for name in row} == row
    series = report["series"]
    assert len(series["prices"]) == row["prices"] == series["quotes"]
    assert max(series["drawdowns"]) == row["drawdown"]
    assert series["times"][series["drawdowns"].index(row["drawdown"])] == row["trough_time"]
    assert report["drawdown_fraction"] == row["drawdown"] / row["peak"]
    assert (report["last_time"], report["last_price"]) == (series["times"][-1], series["prices"][-1])


def test_times_under_water_and_to_recover(sample_page: str) -> None:
    _, goog = ask(sample_page, "/api/report/GOOG")
    assert goog["period"] == "all"
    assert goog["recovered_time"] == "2012-09-24T00:00:00Z"
    assert goog["under_water_s"] == 1784 * 86_400  # 2007-11-06 to 2012-09-24
    assert goog["recovery_s"] == 1400 * 86_400  # 2008-11-24 to 2012-09-24
    _, aapl = ask(sample_page, "/api/report/AAPL?period=2008")
    assert aapl["recovered_time"] is None
    assert aapl["recovery_s"] is None
    assert aapl["under_water_s"] == 363 * 86_400  # 2008-01-03 to the year's last price


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/api/report/XYZ?period=2008", "there is no stock 'XYZ': there are AAPL, FB, GOOG, IBM, MSFT"),
        ("/api/report/FB?period=1999", "FB has no period '1999': it has 2012 to 2013, and all"),
        ("/api/report/FB?period=%25", "FB has no period '%': it has 2012 to 2013, and all"),
        ("/api/report", "there is no such page: ask for /api/symbols or /api/report/SYMBOL?period=2008"),
        (
            "/api/report/FB/2012",
            "there is no such page: ask for /api/symbols or /api/report/SYMBOL?period=2008",
        ),
        ("/nothing", "/nothing: Not Found"),
        ("/../flow.py", "/../flow.py: Not Found"),
        ("/%2e%2e/flow.py", "/../flow.py: Not Found"),
    ],
)
def test_unknown_is_404_with_a_sentence(sample_page: str, path: str, sentence: str) -> None:
    assert ask(sample_page, path) == (404, {"error": sentence})


def test_files_are_served_with_headers_that_forbid_foreign_code(sample_page: str) -> None:
    kinds = {
        "/": "text/html",
        "/page.css": "text/css",
        "/page.js": "text/javascript",
        "/icon.svg": "image/svg+xml",
    }
    for path, kind in kinds.items():
        status, headers, body = get(sample_page, path)
        assert (status, headers["content-type"].split(";")[0]) == (200, kind)
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
        assert b"//cdn" not in body


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "10.0.0.1"])
def test_foreign_name_is_refused(sample_page: str, host: str) -> None:
    status, _, body = get(sample_page, "/api/symbols", host)
    assert status == 421
    assert json.loads(body) == {"error": "/api/symbols: this page answers only to 127.0.0.1 and localhost"}


@pytest.mark.parametrize("host", ["localhost:x", "localhost:99999999", "localhos: close"])
def test_a_name_that_is_none_is_refused_with_a_sentence(sample_page: str, host: str) -> None:
    status, _, body = get(sample_page, "/api/symbols", host)
    assert (status, list(json.loads(body))) == (400, ["error"])


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]", "[::1]:80"])
def test_loopback_names_are_answered(sample_page: str, host: str) -> None:
    assert get(sample_page, "/api/symbols", host)[0] == 200


def test_other_methods_are_refused_with_a_sentence(sample_page: str) -> None:
    where = urlsplit(sample_page)
    connection = http.client.HTTPConnection(where.hostname or "", where.port or 0, timeout=WAIT_S)
    connection.request("POST", "/api/symbols", body=b"x")
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())) == (405, {"error": "/api/symbols: Method Not Allowed"})


def test_symbols_may_hold_any_text(tmp_path: Path) -> None:
    prices = write_prices(tmp_path / "p.csv", [(HOSTILE, "2020-01-01", 2.0), (HOSTILE, "2020-01-02", 1.0)])
    with served(tables_of(prices, tmp_path)) as address:
        status, report = ask(address, f"/api/report/{quote(HOSTILE, safe='')}?period=2020")
    assert (status, report["symbol"], report["drawdown"]) == (200, HOSTILE, 1.0)


def test_tables_that_are_not_there_are_a_sentence(tmp_path: Path) -> None:
    with served(tmp_path / "tables.sqlite") as address:
        status, answer = ask(address, "/api/symbols")
    assert status == 503
    assert answer["error"].endswith("run the flow first")


def test_taken_port_is_a_sentence(tmp_path: Path) -> None:
    async def never() -> None:
        raise AssertionError("it must not come to serving")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PageError, match=rf"the page cannot listen on 127\.0\.0\.1:{port}: "):
            asyncio.run(serve(StockPage(), tmp_path, lambda _: None, never, port=port))


def raw(address: str, request: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON value of what a page answers to bytes."""
    where = urlsplit(address)
    with socket.create_connection((where.hostname, where.port), timeout=WAIT_S) as connection:
        connection.sendall(request)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, json.loads(answer.read())


HOST = b"Host: localhost\r\n"


@pytest.mark.parametrize(
    ("request_", "status", "sentence"),
    [
        (b"hello\r\n\r\n", 400, "this is no request that can be read: Invalid method encountered"),
        (b"GET / HTTP/9.9.9\r\n" + HOST, 400, "this is no request that can be read: Bad status line"),
        (b"GET / HTTP/1.1\r\n", 400, "this is no request that can be read: Missing 'Host' header in request"),
        (
            b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n" + HOST,
            400,
            "this is no request that can be read: Got more than 8190 bytes when reading",
        ),
        (
            b"GET / HTTP/1.1\r\nX: " + b"y" * 9_000 + b"\r\n" + HOST,
            400,
            "this is no request that can be read: Got more than 8190 bytes when reading",
        ),
        (
            b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 100,
            400,
            "this is no request that can be read: Too many headers received",
        ),
        (
            b"GET /<script>alert(1)</script> HTTP/1.x\r\n" + HOST,
            400,
            "this is no request that can be read: Bad status line",
        ),
        (
            b"GET http://localhost/api/symbols HTTP/1.1\r\nHost: evil.example\r\n",
            421,
            "/api/symbols: this page answers only to 127.0.0.1 and localhost",
        ),
        (
            b"GET /api/symbols HTTP/1.1\r\nContent-Length: 50000000\r\n" + HOST,
            400,
            "/api/symbols: it has a body, and a page takes none",
        ),
        (
            b"GET /api/symbols HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HOST,
            400,
            "/api/symbols: it has a body, and a page takes none",
        ),
        (
            b"GET / HTTP/1.1\r\nExpect: x\r\n" + HOST,
            417,
            "/: it has a header Expect, and a page takes no body",
        ),
        (
            b"FOO / HTTP/1.1\r\n" + HOST,
            400,
            "this is no request that can be read: Invalid method encountered",
        ),
    ],
)
def test_what_is_no_request_for_a_page_is_refused_with_a_sentence(
    sample_page: str, request_: bytes, status: int, sentence: str
) -> None:
    got, headers, answer = raw(sample_page, request_ + (b"" if request_.endswith(b"\r\n\r\n") else b"\r\n"))
    assert (got, answer) == (status, {"error": sentence})
    assert headers["content-type"].startswith("application/json")
    assert headers["x-content-type-options"] == "nosniff"
    assert get(sample_page, "/api/symbols")[0] == 200


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/api/symbols?x=1", 400, "/api/symbols: there is no parameter 'x' here: it takes none"),
        ("/page.js?v=2", 400, "/page.js: there is no parameter 'v' here: it takes none"),
        ("/?token=x", 400, "/: there is no parameter 'token' here: it takes none"),
        (
            "/api/report/FB?period=all&%3Cb%3E%0A=1",
            400,
            "/api/report/FB: there is no parameter '<b>\\n' here: it takes period",
        ),
        (
            "/api/report/FB?period=2012&period=all",
            400,
            "/api/report/FB: the parameter 'period' is given twice",
        ),
        (
            f"/api/symbols?{'&'.join(f'a{n}=' for n in range(20))}",
            400,
            "/api/symbols: it has 20 parameters; 16 are the most",
        ),
        (
            f"/api/report/{'x' * 5_000}",
            414,
            f"/api/report/{'x' * 5_000}: its address has 5012 characters; 4096 are the most",
        ),
    ],
)
def test_what_a_page_does_not_know_is_refused_with_a_sentence(
    sample_page: str, path: str, status: int, sentence: str
) -> None:
    assert ask(sample_page, path) == (status, {"error": sentence})


def test_no_more_connections_than_enough_are_answered(
    sample_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geartrain_cloud.pages.connections.CONNECTIONS_MAX", 8)
    with served(sample_tables) as address:
        where = urlsplit(address)
        many = [
            socket.create_connection((where.hostname or "", where.port or 0), timeout=WAIT_S)
            for _ in range(8)
        ]
        try:
            for one in many:  # each is kept open after its answer
                one.sendall(b"GET /api/symbols HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert one.recv(12) == b"HTTP/1.1 200"
            status, headers, body = get(address, "/api/symbols")
            assert status == 503
            assert headers["connection"] == "close"
            assert headers["x-content-type-options"] == "nosniff"
            assert json.loads(body) == {"error": ENOUGH}
            many.pop().close()
            assert _until_answered(address) == 200
        finally:
            for one in many:
                one.close()


def test_who_is_refused_and_silent_is_cut_off(sample_tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geartrain_cloud.pages.connections.CONNECTIONS_MAX", 0)
    monkeypatch.setattr("geartrain_cloud.pages.connections.REFUSALS_MAX", 2)
    monkeypatch.setattr("geartrain_cloud.pages.connections.REFUSAL_S", 1.0)
    with served(sample_tables) as address:
        where = urlsplit(address)
        silent = [
            socket.create_connection((where.hostname or "", where.port or 0), timeout=WAIT_S)
            for _ in range(3)
        ]
        assert [_end_of(one) for one in reversed(silent)] == ["cut off"] * 3  # the third of them at once
        monkeypatch.setattr("geartrain_cloud.pages.connections.CONNECTIONS_MAX", 8)
        assert _until_answered(address) == 200


def _end_of(one: socket.socket) -> str:
    with one:
        try:
            return "cut off" if one.recv(1) == b"" else "answered"
        except ConnectionResetError:
            return "cut off"


def _until_answered(address: str) -> int:
    status, tries = 0, 0
    while status != 200 and tries < 200:
        status, tries = get(address, "/api/symbols")[0], tries + 1
        time.sleep(0.05)
    return status
