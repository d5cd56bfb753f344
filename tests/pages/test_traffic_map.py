"""Where the streets of a city are drawn: by the places of cameras, by names, or on a circle."""

from __future__ import annotations

from math import hypot

import pytest

from geartrain_examples.traffic.street_map import lay_out, street_of
from tests.pages.traffic_tables import edges


@pytest.mark.parametrize(
    ("edge", "ends"),
    [
        ("A0A1", ("A0", "A1")),
        ("left0A0", ("left0", "A0")),
        ("AA12AB12", ("AA12", "AB12")),
        ("north gate->B", ("north gate", "B")),
        ("x-y", ("x", "y")),
        ("E1", (None, None)),
        ("Hauptstraße", (None, None)),
    ],
)
def test_name_of_a_street_says_its_ends(edge: str, ends: tuple[str | None, str | None]) -> None:
    street = street_of(edge)
    assert (street.start, street.end) == ends


def test_grid_of_names_has_its_crossings_in_columns_and_rows() -> None:
    found = lay_out(edges(), {})
    assert (found.layout, len(found.streets)) == ("grid", 80)
    assert (found.crossings["A0"], found.crossings["D2"]) == ((0, 0), (3, 2))
    assert found.crossings["left1"][0] < 0 < 3 < found.crossings["right1"][0]
    assert found.streets["C2C3"][1:] == ((2, 2), (2, 3))


def test_cameras_in_the_middle_of_blocks_place_the_crossings() -> None:
    named = lay_out(edges(), {}).streets
    cameras = {f"cam_{e}_0": (125 * (a[0] + b[0]), 125 * (a[1] + b[1])) for e, (_, a, b) in named.items()}
    found = lay_out(edges(), cameras)
    assert found.layout == "checkpoints"
    for name, (column, row) in {"A0": (0, 0), "B2": (1, 2), "D3": (3, 3)}.items():
        x, y = found.crossings[name]
        assert hypot(x - 250 * column, y - 250 * row) < 2


@pytest.mark.parametrize("end", [0, 1])
def test_cameras_at_one_end_of_their_streets_are_the_crossings(end: int) -> None:
    inside = [edge for edge in edges() if street_of(edge).start in lay_out(edges(), {}).crossings]
    named = lay_out(inside, {}).streets.values()
    cameras = {
        f"cam_{street.edge}_0": (5_000 * (first, last)[end][0], 5_000 * (first, last)[end][1])
        for street, first, last in named
    }
    found = lay_out(inside, cameras)
    assert found.crossings["C1"] == (10_000.0, 5_000.0)
    assert found.streets["C1C2"][1:] == ((10_000.0, 5_000.0), (10_000.0, 10_000.0))


def test_streets_without_ends_or_places_stand_on_a_circle() -> None:
    found = lay_out(["E1", "E2", "x->y"], {})
    assert found.layout == "circle"
    places = [found.streets["E1"][1], found.streets["E2"][1], *found.crossings.values()]
    assert found.streets["E1"][1] == found.streets["E1"][2]
    assert len({(round(x, 6), round(y, 6)) for x, y in places}) == 4
    assert {round(hypot(x, y), 6) for x, y in places} == {1.0}


def test_camera_places_a_street_whose_name_says_nothing() -> None:
    found = lay_out(["E1", "E2"], {"cam_E1_0": (10.0, 20.0), "cam_E1_1": (12.0, 20.0)})
    assert found.streets["E1"][1:] == ((11.0, 20.0), (11.0, 20.0))
    assert found.streets["E2"][1] != (11.0, 20.0)


def test_no_streets_are_an_empty_map() -> None:
    assert lay_out([], {}).streets == {}
