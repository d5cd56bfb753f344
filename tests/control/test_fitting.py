"""Which cut fits a device: plain tables of figures and what comes of them."""

from __future__ import annotations

import pytest

from geartrain.control.states import Measured
from geartrain_cloud.changes.fitting import Ladder, Rung, fit

LADDER = Ladder(
    (Rung("cloud", 10, 900), Rung("", 15, 500), Rung("edge", 40, 20)), {"": 15, "cloud": 10, "x": 30}
)
FREE = 1 << 30


@pytest.mark.parametrize(
    ("before", "measured", "cut", "why"),
    [
        (
            "",
            Measured(100, 0.10, 0.9, FREE),
            "edge",
            "at 100 records/s it takes 0.1 of a core, with this cut 0.27 of 0.5: the fewest bytes",
        ),
        (
            "",
            Measured(200, 0.20, 0.8, FREE),
            "",
            "at 200 records/s it takes 0.2 of a core, with this cut 0.2 of 0.5; with edge 0.53",
        ),
        (
            "",
            Measured(600, 0.60, 0.4, FREE),
            "cloud",
            "at 600 records/s it takes 0.6 of a core, with this cut 0.4 of 0.5; with the app's cut 0.6",
        ),
        (
            "",
            Measured(900, 0.90, 0.1, FREE),
            "cloud",
            "at 900 records/s it takes 0.9 of a core and may take 0.5: as little as it may do",
        ),
        (
            "cloud",
            Measured(100, 0.10, 0.9, FREE),
            "edge",
            "at 100 records/s it takes 0.1 of a core, with this cut 0.4 of 0.5: the fewest bytes",
        ),
        (
            "x",
            Measured(100, 0.30, 3.0, FREE),
            "edge",
            "at 100 records/s it takes 0.3 of a core, with this cut 0.4 of 0.5: the fewest bytes",
        ),
        (
            "cloud",
            Measured(100, 0.10, 0.1, FREE),
            "",
            "at 100 records/s it takes 0.1 of a core, with this cut 0.15 of 0.18; with edge 0.4",
        ),
        (
            "",
            Measured(100, 0.10, 0.9, 20_000_000),
            "cloud",
            "20 MB of memory are free, and 34 MB are the least",
        ),
        (
            "",
            Measured(0, 0.01, 0.9, FREE),
            "edge",
            "its sources gave no record in the last half minute: by estimate",
        ),
        ("", None, "edge", "nothing was measured yet: by estimate"),
    ],
)
def test_the_cut_is_a_function_of_the_figures(
    before: str, measured: Measured | None, cut: str, why: str
) -> None:
    found = fit(LADDER, before, measured)
    assert (found.cut, found.why) == (cut, why)


def test_a_smaller_capacity_leaves_less_to_the_device() -> None:
    cuts = [
        fit(LADDER, "", Measured(100, 0.1, 0.9, FREE), capacity).cut for capacity in (0.5, 0.2, 0.08, 0.01)
    ]
    assert cuts == ["edge", "", "cloud", "cloud"]
