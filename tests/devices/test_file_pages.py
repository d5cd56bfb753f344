"""The tables of the pages on files: the options beside each file read it, and give the records there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from geartrain import Flow, Record, Source, Table
from geartrain.errors import SourceError
from geartrain.testing import run_flow
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.directory import CsvDirectory, JsonLinesDirectory
from geartrain_devices.json_lines import JsonLines

PAGES = Path(__file__).parents[2] / "docs" / "sources"
_CODE = re.compile(r"`([^`]*)`")
_TIME = "2026-01-01T00:00:00Z"


class Reading(Record):
    sensor: str
    celsius: float | None = None


def table(page: str) -> list[tuple[bytes, dict[str, Any], list[str]]]:
    """(bytes, options, records) of each row of the page's table of files."""
    _, _, rest = (PAGES / page).read_text().partition("| Your file | Options | Records |\n")
    found = []
    for line in rest.partition("\n\n")[0].splitlines()[1:]:
        (text,), options, records = (_CODE.findall(cell) for cell in line.split("|")[1:-1])
        raw = text.encode("latin-1").decode("unicode_escape").replace("@", _TIME).encode("latin-1")
        found.append((raw, tomllib.loads("\n".join(options)), records))
    return found


def sources(suffix: str, folder: Path, options: dict[str, Any]) -> list[Source[Reading]]:
    """The file, and the directory in which it lies."""
    path = str(folder / f"in{suffix}")
    if suffix == ".csv":
        return [
            CsvReplay(path=path, time_column="time", **options),
            CsvDirectory(path=str(folder), last="end", **options),
        ]
    return [JsonLines(path=path, **options), JsonLinesDirectory(path=str(folder), last="end", **options)]


def results(source: Source[Reading]) -> tuple[list[str], list[str]]:
    """The records and the reasons of dead letters."""
    flow = Flow("f")
    flow.source("readings", source, out=Reading).sink("all", Table("t"))
    found = run_flow(flow)
    records = [f"{reading.sensor} {reading.celsius}" for _, reading in found.tables["all"]]
    return records, [letter.reason for letter in found.dead_letters]


@pytest.mark.parametrize(("page", "suffix", "size"), [("csv.md", ".csv", 20), ("json_lines.md", ".jsonl", 6)])
def test_each_file_of_the_page_is_read_by_its_options(
    page: str, suffix: str, size: int, tmp_path: Path
) -> None:
    rows = table(page)
    assert len(rows) == size
    (tmp_path / "end").touch()
    for raw, options, records in rows:
        (tmp_path / f"in{suffix}").write_bytes(raw)
        for source in sources(suffix, tmp_path, options):
            assert results(source) == (records, []), raw


@pytest.mark.parametrize(("page", "suffix"), [("csv.md", ".csv"), ("json_lines.md", ".jsonl")])
def test_without_an_option_that_is_needed_nothing_is_guessed_and_an_option_is_named(
    page: str, suffix: str, tmp_path: Path
) -> None:
    """Quotes that are not meant and names of fields are the exceptions: these are what the file says."""
    for raw, options, records in table(page):
        for left_out in options:
            (tmp_path / f"in{suffix}").write_bytes(raw)
            source = sources(suffix, tmp_path, {k: v for k, v in options.items() if k != left_out})[0]
            try:
                found, letters = results(source)
            except SourceError as error:
                found, letters = [], [str(error)]
            assert found != records, raw
            assert len(found) < len(records) or left_out == "fields"
            if left_out not in ("fields", "time", "quote"):
                assert left_out in letters[0], letters[0]
