"""How far the next micro-batch reads each of several logs: backlogs by their budgets, others to the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from geartrain_cloud.hosting import source
from geartrain_cloud.hosting.budgets import Budgets
from geartrain_cloud.hosting.offsets import position_name
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.source import HostReader
from geartrain_cloud.hosting.steering import Steering, SteeringFile, Stop
from geartrain_cloud.hosting.versions import FIRST, ROWS_MAX, Hosted, Version, Versions
from tests.hosting.mill_log import MillLog

GROUP = "shared"
ENTRY = 50
"""Rows of an entry that `MillLog` writes."""


class Said(Budgets):
    """Budgets as a test says, and what they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[dict[str, int]] = []

    def alone(self, name: str) -> int:
        return 400

    def beside(self, name: str) -> int:
        return 200

    def begin(self, end: Mapping[str, int], given: Mapping[str, int], *, switches: bool) -> None:
        self.begun.append(dict(given))


class Apps:
    """Apps of one group, each with a log of so many rows; rows_max: of each in a micro-batch."""

    def __init__(self, folder: Path, rows_max: int = ROWS_MAX, **logs: int) -> None:
        self.places = HostPlaces(folder / "host").group(GROUP)
        self.places.versions.mkdir(parents=True)
        self.versions = Versions(self.places.versions)
        where = {"log": folder / "log", "host": folder / "host", "group": GROUP, "readers": 1}
        flows = {}
        for label, (name, rows) in enumerate(logs.items()):
            MillLog(folder / "log", f"{name}.1", 0, sealed=True).append(rows)
            place = 1, (label,), 1, ("0",), ("readings",), ("readings",), name
            hosted = Hosted(f"{name}.1", 1, "plan", "asked", {}, *place, rows_max=rows_max)
            flows[hosted.name] = hosted
        self.versions.publish(Version(FIRST, len(flows), flows))
        self.reader = HostReader(where)
        self.budgets = self.reader.budgets = Said()
        self.at = self.reader.initialOffset()

    def micro_batch(self) -> dict[str, int]:
        """How many rows it reads, by app."""
        start, self.at = self.at, self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        self.reader.partitions(start, self.at)
        found = {}
        for name, hosted in self.versions.read(FIRST).flows.items():
            place = position_name(name, "0")
            found[hosted.flow.removesuffix(".1")] = ENTRY * (self.at[place] - start.get(place, 0))
        return found


def test_a_backlog_alone_has_its_whole_budget(tmp_path: Path) -> None:
    apps = Apps(tmp_path, log=1_000)
    assert [apps.micro_batch() for _ in range(4)] == [{"log": n} for n in (400, 400, 200, 0)]
    assert apps.budgets.begun == [{"log.1~1": 400}, {"log.1~1": 400}, {}, {}]


def test_backlogs_yield_to_an_app_with_little_to_read_and_share_what_is_left(tmp_path: Path) -> None:
    apps = Apps(tmp_path, log=1_000, wheel=1_000, small=100)
    assert apps.micro_batch() == {"log": 100, "wheel": 100, "small": 100}
    assert apps.micro_batch() == {"log": 200, "wheel": 200, "small": 0}, "nobody waits any more"
    assert apps.budgets.begun == [{"log.1~1": 100, "wheel.1~1": 100}, {"log.1~1": 200, "wheel.1~1": 200}]


def test_one_backlog_beside_a_small_app_has_all_that_backlogs_may_have(tmp_path: Path) -> None:
    apps = Apps(tmp_path, log=1_000, small=50)
    assert apps.micro_batch() == {"log": 200, "small": 50}


def test_what_tables_hold_is_made_again_within_budgets_up_to_where_they_stand(tmp_path: Path) -> None:
    apps = Apps(tmp_path, log=1_000)
    steering = Steering()
    steering.stops["log.1~1"] = (Stop(7, {"0": 9}),)
    SteeringFile(apps.places.steering).save(steering)
    assert [apps.micro_batch()["log"] for _ in range(4)] == [400, 50, 400, 150]


@pytest.mark.parametrize(("size_max", "entries"), [(1, 1), (2_000, 1), (1 << 30, 8)])
def test_bytes_of_the_log_bound_a_micro_batch_and_one_entry_is_the_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_max: int, entries: int
) -> None:
    monkeypatch.setattr(source, "SIZE_MAX", size_max)
    assert Apps(tmp_path, log=1_000).micro_batch() == {"log": entries * ENTRY}


def test_rows_of_an_app_are_bounded_by_what_is_configured(tmp_path: Path) -> None:
    assert Apps(tmp_path, ENTRY, log=1_000).micro_batch() == {"log": ENTRY}
