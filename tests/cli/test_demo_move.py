"""What a demo says of its link before and after a step has moved: the devices' own counters, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import ConfigError
from geartrain_cloud.cli.demo import DemoOptions, bytes_per_s
from geartrain_cloud.cli.demo_move import LinkMeter, Look, Rate, throttled
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
    assert str(meter.before) == "0.4 kB/s for 100 records/s, 4.00 bytes each"
    assert meter_of(looks[:4]).after is None
    assert meter_of(looks[:1]).before is None


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
        "commit": {"records_max": 5_000, "claim_ms": 120_000},
    }


def test_the_city_of_a_throttled_link_gives_way_to_what_the_user_names() -> None:
    given: Any = DEMO.throttled(TrafficOptions())
    assert (given.city, given.vehicles, given.loop_seconds) == (6, 6_000, 5)
    assert DEMO.throttled(TrafficOptions(city=3, loop_seconds=5)).city == 3
    of_files = TrafficOptions(passes=Path("passes.csv"))
    assert DEMO.throttled(of_files) is of_files
    assert (DEMO.moves, STOCKS.moves) == ("streets", "")
