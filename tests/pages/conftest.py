"""Tables to look at: the real sample prices, and a file whose symbols are as hostile as text can be."""

from __future__ import annotations

import asyncio
import csv
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from geartrain.flow.loading import load_flow
from geartrain_cloud.cli.inprocess import run_in_process
from geartrain_cloud.pages.page import Page
from geartrain_cloud.pages.server import Report, serve
from geartrain_examples.stocks.data import write_sample
from geartrain_examples.stocks.page import StockPage
from tests.waiting import WAIT_S, wait_for

STOCKS = StockPage()
HOSTILE = "<script>document.title='owned'</script>&\"'/ ?#%"


def tables_of(prices: Path, folder: Path, period: str = "year") -> Path:
    """Run the stock flow over a price file; the tables it made."""
    options = {"quotes": {"path": str(prices)}, "drawdown": {"period": period}}
    graph = load_flow("geartrain_examples.stocks.flow:flow").graph().with_options(options)
    with ThreadPoolExecutor(1) as pool:  # a browser's test has an event loop in its own thread already
        pool.submit(run_in_process, graph, folder).result()
    return folder / "tables.sqlite"


def write_prices(path: Path, rows: list[tuple[str, str, float]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("symbol", "date", "price"), *rows])
    return path


@contextmanager
def served(tables: Path, page: Page = STOCKS, reports: Mapping[str, Report] | None = None) -> Iterator[str]:
    """The address of a page, the stock page by default, over these tables and reports, served by a thread."""
    ready, addresses = threading.Event(), list[str]()
    stop: list[Callable[[], object]] = []

    def announce(address: str) -> None:
        addresses.append(address)
        ready.set()

    async def work() -> None:
        done, loop = asyncio.Event(), asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(done.set))
        await serve(page, tables, announce, done.wait, port=0, reports=reports)

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    try:
        wait_for("the page to serve", ready.is_set)
        yield addresses[0]
    finally:
        stop[0]()
        thread.join(WAIT_S)


@pytest.fixture(scope="module")
def browser(chromium_path: str) -> Iterator[Browser]:
    """A browser of this machine; not for a whole session, because its thread then runs an event loop."""
    expect.set_options(timeout=WAIT_S * 1_000)  # a busy machine is slow, not wrong
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium_path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def sample_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    write_sample(folder / "input.csv")
    return tables_of(folder / "input.csv", folder)


@pytest.fixture(scope="session")
def sample_page(sample_tables: Path) -> Iterator[str]:
    with served(sample_tables) as address:
        yield address
