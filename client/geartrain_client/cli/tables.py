"""`gear table`: the tables of an app, as a table, as CSV, or as they grow.

Guarantees: no more than `FOLLOW_PAGES` pages are held. A row that holds control characters cannot steer a
terminal; into a file or a pipe, CSV goes as it is.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from geartrain.errors import ConfigError
from geartrain.printable import printable
from geartrain_client.errors import RefusedError
from geartrain_client.rest.answers import ENDED, App, Page, Table, answer_as, column_name
from geartrain_client.rest.platform import NOT_FOUND, Platform, items_of, segment
from geartrain_client.terminal.screen import notices, print_json, results, table_of

ROWS_SHOWN = 50
CELL_CHARS_MAX = 200
PAGE_ROWS = 1_000
FOLLOW_PAGES = 10
FOLLOW_S = 0.5

Cursor = str | int | None


@dataclass(frozen=True, slots=True)
class TableWishes:
    """What the user asked for. limit: rows at the most, None for the usual: `ROWS_SHOWN` for people, all for
    programs.
    """

    limit: int | None = None
    as_csv: bool = False
    follow: bool = False
    as_json: bool = False


def show_table(platform: Platform, app: str, table: str | None, wishes: TableWishes) -> None:
    """Print a table, or the names of all; raises `GeartrainError`."""
    if table is None:
        found = items_of(platform.get(f"/apps/{segment(app)}/tables"))
        tables = [answer_as(Table, one) for one in found]
        own = [one.name for one in tables if not one.name.startswith("_") and one.name not in _SYSTEM]
        if len(own) != 1 or not (wishes.as_csv or wishes.follow):
            _list(found, tables, wishes)
            return
        [table] = own
    path = f"/apps/{segment(app)}/tables/{segment(table)}"
    if wishes.follow:
        _wait_for_table(platform, app, path)
        _follow(platform, path, wishes)
    elif wishes.as_csv:
        _write_csv(_pages(platform, path, wishes.limit))
    else:
        _print(platform, path, wishes)


_SYSTEM = ("dead_letters", "late", "overtaken")


def _list(found: list[Any], tables: list[Table], wishes: TableWishes) -> None:
    if wishes.as_csv or wishes.follow:
        names = ", ".join(one.name for one in tables) or "none yet"
        raise ConfigError(f"name the table that is meant; there are: {names}")
    if wishes.as_json:
        print_json(found)
        return
    lines = [
        [one.name, "" if one.rows is None else f"{one.rows:,}", ", ".join(map(column_name, one.columns))]
        for one in tables
    ]
    results().print(table_of("", ["table", "rows", "columns"], lines, numbers=(1,)))


def _pages(platform: Platform, path: str, limit: int | None, after: Cursor = None) -> Iterator[Page]:
    """The pages of a table, up to `limit` rows; one at least."""
    left = limit
    while True:
        rows = PAGE_ROWS if left is None else min(PAGE_ROWS, left)
        page = answer_as(Page, platform.get(path, limit=rows, after=after))
        yield page
        left = None if left is None else left - len(page.rows)
        after = page.next
        if after is None or not page.rows or left == 0:
            return


def _print(platform: Platform, path: str, wishes: TableWishes) -> None:
    limit = wishes.limit if wishes.limit is not None or wishes.as_json else ROWS_SHOWN
    pages = list(
        _pages(platform, path, None if limit is None else limit + 1)
    )  # one more tells that there are
    names = [column_name(column) for column in pages[0].columns]
    rows = [row for page in pages for row in page.rows]
    shown = rows[:limit]
    if wishes.as_json:
        print_json([dict(zip(names, row, strict=True)) for row in shown])
        return
    cells = [[printable(cell(value), CELL_CHARS_MAX) for value in row] for row in shown]
    results().print(table_of("", names, cells))
    if len(shown) < len(rows):
        notices().print(
            f"the first {len(shown):,} rows: --limit N shows more, --csv all of them", soft_wrap=True
        )


def _write_csv(pages: Iterator[Page]) -> None:
    for number, page in enumerate(pages):
        if not number:
            _write_lines([[column_name(column) for column in page.columns]])
        _write_lines([[cell(value) for value in row] for row in page.rows])
    sys.stdout.flush()


def _write_lines(rows: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    found = text.getvalue()
    if sys.stdout.isatty():
        found = printable(found, keep="\n")
    sys.stdout.write(found.encode("utf-8", "backslashreplace").decode("utf-8"))


def _wait_for_table(platform: Platform, app: str, path: str) -> None:
    """A table is made with the first rows: wait for it, as long as the app has not ended."""
    said = False
    while True:
        try:
            platform.get(path, limit=1)
        except RefusedError as error:
            if error.status != NOT_FOUND or answer_as(App, _app(platform, app, error)).state == ENDED:
                raise
        else:
            return
        if not said:
            notices().print(printable(f"{app} has no such table yet: gear waits for it"), soft_wrap=True)
            said = True
        time.sleep(FOLLOW_S)


def _app(platform: Platform, app: str, refused: RefusedError) -> Any:
    try:
        return platform.get(f"/apps/{segment(app)}")
    except RefusedError:
        raise refused from None


def _follow(platform: Platform, path: str, wishes: TableWishes) -> None:
    """Print the last rows, and then each row that appears or changes in the last pages, until Ctrl-C."""
    begin: Cursor = None
    shown: set[str] | None = None
    while True:
        begin, pages = _last_pages(platform, path, begin)
        names = [column_name(column) for column in pages[-1].columns]
        found = {json.dumps(row): row for page in pages for row in page.rows}
        if shown is None and not wishes.as_json:
            _write_lines([names])
        fresh = [row for key, row in found.items() if shown is None or key not in shown]
        _write_followed(names, fresh if shown is not None else fresh[-ROWS_SHOWN:], as_json=wishes.as_json)
        shown = set(found)
        time.sleep(FOLLOW_S)


def _last_pages(platform: Platform, path: str, after: Cursor) -> tuple[Cursor, list[Page]]:
    """The last pages of a table from `after` on, and where the first of these begins."""
    held: deque[tuple[Cursor, Page]] = deque(maxlen=FOLLOW_PAGES)
    for page in _pages(platform, path, None, after):
        held.append((after, page))
        after = page.next
    return held[0][0], [page for _, page in held]


def _write_followed(names: list[str], rows: list[list[Any]], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(dict(zip(names, row, strict=True))) + "\n")
    else:
        _write_lines([list(map(cell, row)) for row in rows])
    sys.stdout.flush()


def cell(value: Any) -> str:
    """A value of a row as text: nothing for none, JSON for what has parts."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
