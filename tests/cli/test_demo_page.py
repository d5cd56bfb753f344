"""What the page of a demo is told beside its tables."""

from __future__ import annotations

from pathlib import Path

from geartrain_cloud.cli.demo_page import skew_of
from geartrain_cloud.platform.places import PlatformPlaces, write_report


def test_the_page_is_told_the_slots_and_keys_with_most_rows_of_its_app_alone(tmp_path: Path) -> None:
    places = PlatformPlaces(tmp_path)
    assert skew_of(places, "traffic.1") == {"streams": []}
    hot = {"step": "by_street", "slots": 4, "slot": 2, "share": 0.5}
    flows = {
        "traffic.1": {"state": "running", "skew": [hot | {"keys": [{"key": "A\x1b[0m", "share": 0.25}]}]},
        "other.1": {"state": "running", "skew": [hot | {"step": "by_other"}]},
    }
    places.spark_status.parent.mkdir(parents=True)
    write_report(places.spark_status, {"flows": flows})
    (told,) = skew_of(places, "traffic.1")["streams"]
    assert {name: told[name] for name in hot} == hot
    ((key, share),) = [(one["key"], one["share"]) for one in told["keys"]]
    assert (key.isprintable(), share) == (True, 0.25)
