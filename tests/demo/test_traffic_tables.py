"""The tables of the traffic flow are what pandas finds, byte for byte, under every legal cut, for any number
of devices, and over restarts at random points.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from geartrain.planning import choose_cut, legal_cuts
from geartrain_cloud.cli.inprocess import run_in_process
from geartrain_examples.traffic.city import City, write_city
from tests.demo.traffic_reference import TABLES
from tests.demo.traffic_world import (
    SAMPLE_INPUTS,
    cut_tables,
    dealt_world,
    expected_of,
    prepared,
    whole,
)

CITY = City(2, 18, 0.3)


def differing(found: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> list[str]:
    """The tables whose bytes are not the same."""
    return [name for name in TABLES if found[name] != wanted[name]]


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small city with plates used twice; of its loops only what was not empty, to be short."""
    inputs = write_city(CITY, tmp_path_factory.mktemp("city"))
    with inputs["loops"].open(newline="") as file:
        header, *lines = csv.reader(file)
    with inputs["loops"].open("w", newline="") as file:
        csv.writer(file).writerows([header, *(line for line in lines if line[2] != "0")])
    return inputs


@pytest.fixture(scope="module")
def city_wanted(city: dict[str, Path]) -> dict[str, bytes]:
    return expected_of(city)


@pytest.fixture(scope="module")
def sample_wanted() -> dict[str, bytes]:
    return expected_of(SAMPLE_INPUTS)


def test_the_sample_gives_what_pandas_finds(sample_wanted: dict[str, bytes], tmp_path: Path) -> None:
    result = run_in_process(whole(SAMPLE_INPUTS), tmp_path)
    assert (result.dead_letters, result.late) == (0, 0)
    assert result.rows["overspeed"] > 100 < result.rows["traces"]
    assert result.rows["section_overspeed"] > 10
    found = {name: (tmp_path / f"{name}.json").read_bytes() for name in TABLES}
    assert differing(found, sample_wanted) == []
    assert b'"congested"' in sample_wanted["streets"]  # the accident


@pytest.mark.parametrize(("devices", "cut"), [(8, "auto"), (8, "edge"), (3, "cloud"), (5, "edge")])
def test_the_sample_dealt_and_cut(
    devices: int, cut: str, sample_wanted: dict[str, bytes], tmp_path: Path
) -> None:
    graph, world = dealt_world(SAMPLE_INPUTS, devices)
    chosen = choose_cut(graph, cut)
    assert len(world.devices) == devices
    assert differing(cut_tables(graph, chosen, world, devices, tmp_path), sample_wanted) == []


def test_a_city_under_every_legal_cut_with_restarts(
    city: dict[str, Path], city_wanted: dict[str, bytes], tmp_path: Path
) -> None:
    worlds = {devices: dealt_world(city, devices) for devices in (1, 2, 9)}
    cuts = legal_cuts(worlds[1][0])
    assert len(cuts) > 25
    for seed, cut in enumerate(cuts):
        devices = (1, 2, 9)[seed % 3]
        graph, world = worlds[devices]
        found = cut_tables(graph, cut, world, seed, tmp_path)
        assert differing(found, city_wanted) == [], (devices, seed, sorted(cut.edge))


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 7, 9])
def test_a_city_for_any_number_of_devices(
    devices: int, city: dict[str, Path], city_wanted: dict[str, bytes], tmp_path: Path
) -> None:
    graph, world = dealt_world(city, devices)
    for seed in range(3):
        found = cut_tables(graph, choose_cut(graph, "edge"), world, 100 * devices + seed, tmp_path)
        assert differing(found, city_wanted) == [], seed


def test_every_plate_used_twice_is_found_and_no_other(city: dict[str, Path], tmp_path: Path) -> None:
    run_in_process(whole(city), tmp_path)
    fakes = {row["vehicle"] for row in json.loads((tmp_path / "fake_plates.json").read_text())}
    assert fakes == set(CITY.fakes())
    assert len(fakes) == 5


def test_edge_leaves_to_spark_what_needs_all_devices() -> None:
    graph, _ = prepared(SAMPLE_INPUTS)
    edge = choose_cut(graph, "edge").edge
    assert {"overspeed", "streets", "city_partial"} <= edge
    assert not {"legs", "sections", "fakes", "traces", "city", "placed"} & edge
