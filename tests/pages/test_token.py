"""A page that others can reach: it asks for a token, and tells nothing to who has none."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from geartrain_client.cli import main
from geartrain_cloud.errors import PageError
from geartrain_cloud.pages.server import serve
from geartrain_cloud.pages.token import read_token
from geartrain_examples.stocks.page import StockPage
from tests.waiting import WAIT_S, wait_for

TOKEN = "a-token-of-128-random-bits"


def token_file(folder: Path, content: str = TOKEN + "\n", mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(content)
    path.chmod(mode)
    return path


@contextmanager
def served(tables: Path, token: Path) -> Iterator[int]:
    """The port of a page that listens to all."""
    ready, addresses = threading.Event(), list[str]()
    stop: list[Callable[[], object]] = []

    def announce(address: str) -> None:
        addresses.append(address)
        ready.set()

    async def work() -> None:
        done, loop = asyncio.Event(), asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(done.set))
        await serve(StockPage(), tables, announce, done.wait, host="0.0.0.0", port=0, token_file=token)  # noqa: S104 - to others, which is what is tested

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    try:
        wait_for("the page to serve", ready.is_set)
        yield urlsplit(addresses[0]).port or 0
    finally:
        stop[0]()
        thread.join(WAIT_S)


@pytest.fixture(scope="module")
def port(sample_tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(sample_tables, token_file(tmp_path_factory.mktemp("token"))) as found:
        yield found


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request(method, path, headers={"Host": "page.example", **headers})
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    connection.close()
    return found


@pytest.mark.parametrize(
    "path", ["/", "/api/symbols", "/page.js", "/nothing", "/api/report/AAPL?period=2008"]
)
def test_without_the_token_all_is_401_and_nothing_is_told(port: int, path: str) -> None:
    status, headers, body = get(port, path)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert b"AAPL" not in body.replace(b"/AAPL:", b"")
    assert "set-cookie" not in headers
    for wrong in (
        "Bearer wrong",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer",
    ):
        assert get(port, path, Authorization=wrong)[0] == 401
    for cookie in ("geartrain=", f"geartrain={TOKEN}", f"geartrain={'0' * 64}"):
        assert get(port, path, Cookie=cookie)[0] == 401
    assert get(port, f"{path.partition('?')[0]}?token=wrong")[0] == 401
    assert get(port, path, method="POST")[0] == 401


def test_a_program_sends_it_as_a_bearer(port: int) -> None:
    status, headers, body = get(port, "/api/symbols", Authorization=f"Bearer {TOKEN}")
    assert (status, b"AAPL" in body) == (200, True)
    assert "set-cookie" not in headers


def test_a_link_is_redirected_to_the_address_without_it_and_leaves_a_cookie(port: int) -> None:
    status, headers, body = get(port, f"/api/report/AAPL?period=2008&token={TOKEN}")
    assert (status, headers["location"], body) == (303, "/api/report/AAPL?period=2008", b"")
    cookie = headers["set-cookie"]
    assert TOKEN not in str(headers)
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert (headers["referrer-policy"], headers["cache-control"]) == ("no-referrer", "no-store")
    shown = get(port, headers["location"], Cookie=cookie.partition(";")[0])
    assert (shown[0], b"AAPL" in shown[2]) == (200, True)


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///evil.example"])
def test_the_redirect_stays_on_this_host(port: int, path: str) -> None:
    status, headers, _ = get(port, f"{path}?token={TOKEN}")
    assert status in (303, 400, 404)
    assert not headers.get("location", "/x").startswith(("//", "/\\", "http"))


def test_without_a_token_it_listens_to_nobody_else(tmp_path: Path) -> None:
    async def never() -> None:
        raise AssertionError("it must not come to serving")

    for host in ("0.0.0.0", "::", "10.0.0.5", "page.example"):  # noqa: S104 - what is refused
        with pytest.raises(PageError, match="without a token: give --token-file FILE"):
            asyncio.run(serve(StockPage(), tmp_path, lambda _: None, never, host=host, port=0))


def test_a_file_that_others_may_read_or_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    assert read_token(token_file(tmp_path)) == TOKEN
    for content, mode, sentence in (
        (TOKEN, 0o644, "can be read by others"),
        ("short", 0o600, "one word of 22 to 512"),
        ("two words of many letters", 0o600, "one word of 22 to 512"),
        ("", 0o600, "one word of 22 to 512"),
        ("caf\u00e9" * 8, 0o600, "one word of 22 to 512"),
    ):
        with pytest.raises(PageError, match=sentence):
            read_token(token_file(tmp_path, content, mode))
    with pytest.raises(PageError, match="cannot be read: No such file"):
        read_token(tmp_path / "none")


def test_the_command_says_in_a_sentence_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["page", "--state", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert (
        said == f"gear: {tmp_path} is not the state folder of a demo: give --state the one that it printed\n"
    )
