"""`gear page` as a process of its own over a state folder: who gets in, and where the token is not."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from geartrain_cloud.cli.demo_folder import InputFile, Manifest, Setup, StateFolder
from geartrain_cloud.platform.places import PlatformPlaces
from tests.pages.conftest import HOSTILE, tables_of, write_prices
from tests.ports import free_port
from tests.waiting import WAIT_S

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-128-random-bits"
ALL = "0.0.0.0"  # noqa: S104 - to others, which is what is tested


def gear(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "geartrain_client.cli", "page", *arguments]


@dataclass(frozen=True)
class Served:
    """A page's process, and where it is reached."""

    process: subprocess.Popen[bytes]
    port: int
    said: Path

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request("GET", path, headers={"Host": "page.example", **headers})
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of a demo that has ended, with a stock of a hostile name."""
    folder = tmp_path_factory.mktemp("demo") / "state"
    taken = StateFolder(folder, "demo")
    prices = write_prices(folder / "input.csv", [(HOSTILE, "2020-01-01", 2.0), (HOSTILE, "2020-01-02", 1.0)])
    inputs = {"input": InputFile.of(prices)}
    parts = {"device-1": [HOSTILE]}
    setup = Setup(inputs={}, parts=parts, steps={}, devices={"device-1": {}}, whole={})
    taken.write(
        Manifest(
            demo="stocks",
            cut="auto",
            options={"period": "year"},
            inputs=inputs,
            setup=setup,
            finished=True,
        )
    )
    taken.close()
    tables_of(prices, PlatformPlaces(folder).app("stocks.1"))
    return folder


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "page.token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def served(state: Path, token_file: Path, tmp_path: Path) -> Iterator[Served]:
    port, said = free_port(), tmp_path / "said"
    command = gear("--state", str(state), "--host", ALL, "--port", str(port), "--token-file", str(token_file))
    with said.open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first == f"page: http://{ALL}:{port}/\n".encode(), said.read_text()
    yield Served(process, port, said)
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, rest, said.read_text()) == (0, b"", "")


def test_who_has_the_token_gets_in_and_it_stands_nowhere_else(served: Served) -> None:
    for path in ("/", "/api/symbols", "/page.js", "/nothing"):
        assert served.get(path)[0] == 401
        assert served.get(path, Authorization=f"Bearer {TOKEN}x")[0] == 401
    assert served.get("/?token=wrong")[0] == 401
    status, body = served.get("/api/symbols", Authorization=f"Bearer {TOKEN}")
    assert (status, b"owned" in body) == (200, True)
    assert served.get(f"/?token={TOKEN}")[0] == 303
    for kept in ("cmdline", "environ"):
        assert TOKEN.encode() not in Path(f"/proc/{served.process.pid}/{kept}").read_bytes()


def test_a_person_opens_it_with_the_token_once(served: Served, browser: Browser) -> None:
    page = browser.new_page()
    try:
        page.goto(f"http://127.0.0.1:{served.port}/?token={TOKEN}")
        expect(page.get_by_role("status")).to_contain_text(f"The worst fall of {HOSTILE} in all its prices")
        assert "token" not in page.url
        assert page.title() == f"Drawdown of {HOSTILE}, all"  # its script has not run
        assert page.evaluate("document.cookie") == ""
    finally:
        page.close()


@pytest.mark.parametrize("mode", [None, 0o644])
def test_it_listens_to_nobody_else_without_a_token_that_is_one(
    state: Path, token_file: Path, mode: int | None
) -> None:
    more = []
    if mode is not None:
        token_file.chmod(mode)
        more = ["--token-file", str(token_file)]
    command = gear("--state", str(state), "--host", ALL, "--port", str(free_port()), *more)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert ("run chmod 600" if more else "without a token: give --token-file FILE") in done.stderr
    assert TOKEN not in done.stderr
