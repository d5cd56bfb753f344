"""The stock page in a real browser: what a person sees, by pointer and by keyboard, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.pages.conftest import HOSTILE, served, tables_of, write_prices

CONTRASTS = """() => {
  const light = (css) => {
    const part = css.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const style = (selector) => getComputedStyle(document.querySelector(selector));
  const paper = style("figure").backgroundColor;
  return [
    ratio(style("#sentence").color, style("body").backgroundColor),
    ...[".axis", ".mark-text"].map((one) => ratio(style(one).fill, paper)),
    ...[".note", "dt", ".fall .value", ".good .value"].map((one) => ratio(style(one).color, paper)),
  ];
}"""
"""The contrast of each kind of text with what is behind it, by the formula of WCAG 2."""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails the test on any error in its scripts, and on any request to elsewhere."""
    wrong: list[str] = []
    opened = browser.new_page(viewport={"width": 1100, "height": 980})
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    opened.on("request", lambda r: None if r.url.startswith("http://127.0.0.1:") else wrong.append(r.url))
    yield opened
    opened.close()
    assert wrong == []


def figure(page: Page, name: str) -> str:
    return page.locator("#figures div", has=page.get_by_text(name, exact=True)).inner_text()


def test_stock_and_period_are_picked(page: Page, sample_page: str) -> None:
    page.goto(sample_page)
    expect(page.get_by_role("status")).to_contain_text("The worst fall of AAPL in all its prices")
    page.get_by_label("Stock").select_option("AAPL")
    page.get_by_label("Period").select_option("2008")
    expect(page.get_by_role("status")).to_have_text(
        "The worst fall of AAPL in 2008: from 25.05 on 2008-01-03 down to 10.34 on 2008-11-20, "
        "a loss of 14.71 or 58.7 %, and was not back at its peak by 2008-12-31."
    )
    assert figure(page, "Depth").split("\n") == ["Depth", "14.71", "58.7 % of the peak"]
    assert figure(page, "Time under water").split("\n") == [
        "Time under water",
        "363 days",
        "peak to last price",
    ]
    assert figure(page, "Time to recover").split("\n") == ["Time to recover", "not yet", "until 2008-12-31"]
    assert page.locator("#price .mark-text").all_text_contents() == ["peak", "trough"]
    assert page.url.endswith("#AAPL/2008")
    page.get_by_label("Stock").select_option("GOOG")
    page.get_by_label("Period").select_option("all")
    expect(page.get_by_role("status")).to_contain_text("back at its peak on 2012-09-24")
    assert page.locator("#price .mark-text").all_text_contents() == ["peak", "trough", "recovery"]
    assert figure(page, "Time to recover").split("\n") == ["Time to recover", "3.8 years", "2012-09-24"]


def test_late_answer_does_not_replace_what_was_chosen_since(page: Page, sample_page: str) -> None:
    held: list[Route] = []
    page.route("**/api/report/AAPL?period=all", lambda route: held.append(route))  # noqa: PLW0108 - playwright marks it
    page.goto(sample_page)
    expect(page.get_by_label("Period")).to_have_value("all")
    page.get_by_label("Period").select_option("2008")
    expect(page.get_by_role("status")).to_contain_text("of AAPL in 2008")
    assert len(held) == 1
    with page.expect_response("**/api/report/AAPL?period=all"):
        held[0].continue_()
    page.evaluate("new Promise((done) => setTimeout(done, 50))")
    expect(page.get_by_role("status")).to_contain_text("of AAPL in 2008")


def test_address_leads_to_a_report_and_json_is_linked(page: Page, sample_page: str) -> None:
    page.goto(f"{sample_page}#FB/2012")
    expect(page.get_by_label("Stock")).to_have_value("FB")
    expect(page.get_by_label("Period")).to_have_value("2012")
    link = page.get_by_role("link", name="api/report/FB?period=2012")
    assert link.get_attribute("href") == "api/report/FB?period=2012"


def test_keyboard_alone_reaches_everything(page: Page, sample_page: str) -> None:
    page.goto(f"{sample_page}#AAPL/2008")
    expect(page.locator("#price svg")).to_be_visible()
    seen = []
    for _ in range(5):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.parentElement.id"))
    assert seen == ["symbol", "period", "price", "drawdown", "json"]
    page.locator("#price svg").focus()
    page.keyboard.press("Home")
    expect(page.locator("#price .tip")).to_have_text("2008-01-02 25.04", use_inner_text=True)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#price .tip")).to_have_text("2008-01-03 25.05", use_inner_text=True)
    page.keyboard.press("Tab")
    expect(page.locator("#price .tip")).to_be_hidden()


def test_charts_have_words(page: Page, sample_page: str) -> None:
    page.goto(f"{sample_page}#AAPL/2008")
    charts = page.get_by_role("img")
    expect(charts).to_have_count(2)
    assert (charts.nth(0).get_attribute("aria-label") or "").startswith(
        "Price of AAPL. The worst fall of AAPL in 2008"
    )
    assert charts.nth(1).get_attribute("aria-label") == "Drawdown of AAPL: at worst 14.71 on 2008-11-20"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(browser: Browser, sample_page: str, scheme: str) -> None:
    page = browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(f"{sample_page}#GOOG/all")
    expect(page.locator("#price svg")).to_be_visible()
    ratio = page.evaluate(CONTRASTS)
    page.close()
    assert min(ratio) >= 4.5, ratio


def test_narrow_screen_needs_no_sideways_scrolling(page: Page, sample_page: str) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto(f"{sample_page}#IBM/all")
    expect(page.locator("#drawdown svg")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_hostile_symbol_stays_text(page: Page, tmp_path: Path) -> None:
    prices = write_prices(tmp_path / "p.csv", [(HOSTILE, "2020-01-01", 2.0), (HOSTILE, "2020-01-02", 1.0)])
    with served(tables_of(prices, tmp_path)) as address:
        page.goto(address)
        expect(page.get_by_role("status")).to_contain_text(f"The worst fall of {HOSTILE} in all its prices")
        assert page.title() == f"Drawdown of {HOSTILE}, all"
        assert page.locator("script").count() == 1


def test_flat_and_single_prices_are_drawn(page: Page, tmp_path: Path) -> None:
    prices = write_prices(
        tmp_path / "p.csv", [("A", "2020-01-01", 2.0), ("B", "2020-01-01", 2.0), ("B", "2020-01-02", 2.0)]
    )
    with served(tables_of(prices, tmp_path)) as address:
        for symbol in ("A", "B"):
            page.goto(f"{address}#{symbol}/2020")
            expect(page.get_by_role("status")).to_have_text(
                f"{symbol} never fell below an earlier price in 2020."
            )
            expect(page.locator("#price svg")).to_be_visible()
            assert "NaN" not in page.locator("main").inner_html()


def test_no_results_yet_is_said(page: Page, tmp_path: Path) -> None:
    prices = write_prices(tmp_path / "p.csv", [("A", "2020-01-01", -1.0)])
    with served(tables_of(prices, tmp_path)) as address:
        page.goto(address)
        expect(page.get_by_role("status")).to_contain_text("There are no results yet")
