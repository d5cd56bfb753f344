"""The examples give what an independent computation gives, and are as short as an example must be."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import geartrain_examples
from geartrain.flow.loading import load_flow
from geartrain_cloud.cli.inprocess import run_in_process
from geartrain_examples.sensors.flow import SAMPLE
from geartrain_examples.wordcount.flow import WORDS

EXAMPLES = Path(geartrain_examples.__file__).parent


def tables(flow: str, output: Path, **options: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What `gear run` writes."""
    run_in_process(load_flow(f"geartrain_examples.{flow}.flow:flow").graph().with_options(options), output)
    return {path.stem: json.loads(path.read_text()) for path in output.glob("*.json")}


@pytest.mark.parametrize("name", ["wordcount", "complexdag", "sol", "sensors"])
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name / "flow.py").read_text().splitlines()) < 80


def test_words_are_counted(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for number in range(500):
        chance = random.Random(f"9/local/lines/{number}")
        size = chance.randint(1, 8)
        seen.update(chance.choices(WORDS, range(len(WORDS), 0, -1), k=size))
    found = tables("wordcount", tmp_path, lines={"records": 500, "seed": 9})
    assert found["words"] == [{"word": word, "seen": times} for word, times in sorted(seen.items())]


def test_every_way_through_the_graph_is_taken(tmp_path: Path) -> None:
    found = tables("complexdag", tmp_path, a={"records": 7}, b={"records": 5})
    ways = {
        "early": ["ac"],
        "right": ["be"],
        "left": ["acf", "adf", "bdf"],
        "all_ways": ["adg", "bdg", "beg", "acfg", "adfg", "bdfg"],
        "both_ends": ["acf", "adf", "bdf", "adg", "bdg", "beg", "acfg", "adfg", "bdfg"],
    }
    for table, expected in ways.items():
        parcels = Counter((row["born"], row["number"], row["way"]) for row in found[table])
        wanted = [(way[0], n, way[1:]) for way in expected for n in range(7 if way[0] == "a" else 5)]
        assert parcels == Counter(wanted), table
    assert found["dead_letters"] == []


def test_everything_arrives_at_the_speed_of_light(tmp_path: Path) -> None:
    found = tables("sol", tmp_path, light={"records": 1_000, "payload_bytes": 10})
    assert found["arrived"] == [{"key": True, "records": 1_000, "newest": 999}]


def hourly() -> pd.DataFrame:
    """The statistics of pandas."""
    frame = pd.read_csv(SAMPLE, float_precision="round_trip")
    frame["hour"] = pd.to_datetime(frame["time"], utc=True).dt.floor("h")
    grouped = frame.groupby(["series", "hour"])["value"]
    return grouped.agg(["count", "mean", "min", "max"]).reset_index()


def test_hours_are_those_of_pandas_and_the_odd_ones_stand_out(tmp_path: Path) -> None:
    found = tables("sensors", tmp_path)
    expected = hourly()
    got = pd.DataFrame(found["hours"])
    assert list(got["series"]) == list(expected["series"])
    assert list(pd.to_datetime(got["window_start"], utc=True)) == list(expected["hour"])
    assert list(got["samples"]) == list(expected["count"])
    for ours, theirs in (("low", "min"), ("high", "max")):
        assert list(got[ours]) == list(expected[theirs])
    assert max(abs(got["mean"] - expected["mean"]) / expected["mean"].abs().clip(1)) < 1e-9
    odd = {(row["series"], row["hour"][:10]) for row in found["anomalies"]}
    assert odd == odd_hours(expected)
    assert 0 < len(odd) < 50


def odd_hours(hours: pd.DataFrame) -> set[tuple[str, str]]:
    """Days of hours more than 4 standard deviations from all hours before them, from the 49th on."""
    found = set()
    for series, rows in hours.groupby("series"):
        before = rows["mean"].expanding().mean().shift(1)
        spread = rows["mean"].expanding().std(ddof=0).shift(1)
        away = (rows["mean"] - before).abs() > 4 * spread
        away[:48] = False
        found |= {(str(series), str(hour)[:10]) for hour in rows["hour"][away]}
    return found
