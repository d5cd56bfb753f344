"""What a demo says of its link before and after a step has moved: the devices' own counters, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import ConfigError
from geartrain_cloud.cli.demo import DemoOptions, bytes_per_s
from geartrain_cloud.cli.demo_move import throttled
from geartrain_cloud.cli.link_meter import LinkMeter, Look, Rate
from geartrain_cloud.cli.move_report import POINTS_MAX, MoveReport
from geartrain_cloud.platform.places import read_report
from geartrain_examples.stocks.demo import DEMO as STOCKS
from geartrain_examples.traffic.demo import DEMO, TrafficOptions


def meter_of(looks: list[tuple[Look, bool]]) -> LinkMeter:
    meter = LinkMeter()
    for look, asked in looks:
        meter.add(look, asked=asked)
    return meter


def test_rates_are_before_the_move_and_once_all_devices_run_the_step() -> None:
    looks = [
        (Look(0, 0, 0, 0, 0, 2), False),
        (Look(-9, 80, 20, 80, 0, 2), False),  # ingest has not answered yet
        (Look(1, 400, 100, 300, 0, 2), False),
        (Look(6, 2_400, 600, 300, 0, 2), False),
        (Look(6.5, 0, 0, 0, 0, 2), False),  # an agent begins again and says nothing yet
        (Look(7, 2_800, 700, 300, 0, 2), True),
        (Look(9, 3_000, 800, 200, 1, 1), True),
        (Look(10, 3_100, 900, 100, 2, 0), True),
        (Look(12, 3_300, 1_300, 0, 2, 0), True),
        (Look(20, 3_300, 1_300, 0, 2, 0), True),  # the input has come to its end
    ]
    meter = meter_of(looks)
    assert meter.before == Rate(400.0, 100.0)
    assert meter.after == Rate(100.0, 200.0)
    assert (meter.before.record_bytes, meter.after.record_bytes) == (4.0, 0.5)
    assert (meter.before.seconds, meter.after.seconds, meter.is_settled) == (5.0, 2.0, False)
    assert str(meter.before) == "0.4 kB/s for 100 records/s, 4.00 bytes each"
    assert meter_of(looks[:5]).after is None
    assert meter_of(looks[:1]).before is None


def test_an_input_that_waits_for_the_move_leaves_the_rate_of_before_as_it_was() -> None:
    came = [(Look(second, 400 * second, 100 * second, 0, 0, 2), False) for second in range(10)]
    waits = [(Look(10 + second, 3_600, 900, 0, 0, 2), False) for second in range(200)]
    assert meter_of([*came, *waits]).before == meter_of(came).before == Rate(400.0, 100.0)
    moved = [(Look(210, 3_600, 900, 0, 2, 0), True), (Look(212, 3_800, 1_900, 0, 2, 0), True)]
    assert meter_of([*came, *waits, *moved]).after == Rate(100.0, 500.0), "all that waited comes at once"


@pytest.mark.parametrize(
    ("throttle", "cut", "said"),
    [
        ("20kB", None, "--throttle 20kB: write bytes a second with their unit, such as 20kB/s"),
        ("fast", None, "--throttle fast: write"),
        ("399B/s", None, "400 are the least"),
        ("20kB/s", "edge", "leave out --cut edge"),
    ],
)
def test_a_throttle_that_cannot_be_is_refused(throttle: str, cut: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        bytes_per_s(DemoOptions(throttle=throttle, cut=cut))


def test_a_throttle_bounds_what_waits_on_a_device() -> None:
    assert bytes_per_s(DemoOptions(throttle="20kB/s")) == 20_000
    assert bytes_per_s(DemoOptions()) == 0
    assert throttled(20_000) == {
        "uplink": {"bytes_per_s_max": 20_000},
        "spool": {"bytes_max": 40_000},
        "commit": {"records_max": 5_000, "durability": "1s", "claim_ms": 600_000},
    }


def test_the_city_of_a_throttled_link_gives_way_to_what_the_user_names() -> None:
    given: Any = DEMO.throttled(TrafficOptions())
    assert (given.city, given.vehicles, given.loop_seconds) == (6, 20_000, 3)
    assert DEMO.throttled(TrafficOptions(city=3, loop_seconds=5)).city == 3
    of_files = TrafficOptions(passes=Path("passes.csv"))
    assert DEMO.throttled(of_files) is of_files
    assert (DEMO.moves, STOCKS.moves) == ("streets", "")


def test_the_report_of_a_move_tells_where_the_step_stands_and_is_bounded(tmp_path: Path) -> None:
    meter, report = LinkMeter(), MoveReport(tmp_path / "move.json", "streets", 800)
    for second in range(-1, 1_000):
        asked, moved = second >= 300, second >= 310
        look = Look(50.0 + second, 1_200 + 400 * second, 300 + 100 * second, 7, 2 * moved, 2 * (not moved))
        meter.add(look, asked=asked)
        if second == 300:
            report.asked(look.at_s)
            report.steps = ["as_reading", "streets"]
        report.write(look, meter, [{"device": "d1"}], {"cells": 3, "bytes": 40}, 5)
    told = read_report(tmp_path / "move.json")
    assert (told["asked_at_s"], told["moved_at_s"], told["at_s"]) == (300.0, 310.0, 999.0)
    assert (told["step"], told["steps"], told["cloud"]) == (
        "streets",
        ["as_reading", "streets"],
        {"cells": 3, "bytes": 40},
    )
    rate = {"bytes_per_s": 400.0, "records_per_s": 100.0, "record_bytes": 4.0}
    assert told["link"] == {
        "most_bytes_per_s": 800,
        "now": rate | {"seconds": 6.0},
        "before": rate | {"seconds": 60.0},
        "after": rate | {"seconds": 60.0},
        "is_settled": True,
        "waiting_bytes": 7,
    }
    times = [one["at_s"] for one in told["points"]]
    assert 100 < len(times) <= POINTS_MAX
    assert times == sorted(times)
    assert times[0] < 10 < 990 < times[-1]
