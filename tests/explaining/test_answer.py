"""Explanations of rows of each kind, from a real log and a real file of tables, beside plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from geartrain.adapters.system import SystemClock
from geartrain.planning import make_plan
from geartrain_cloud.explaining.answer import explain
from geartrain_cloud.explaining.errors import ExplainError
from geartrain_cloud.explaining.question import Question, RecordsQuestion
from geartrain_cloud.explaining.records import page_of
from geartrain_cloud.log.queries import commit
from geartrain_cloud.log.retention import Retention, retain
from geartrain_cloud.sinks.tables import rows
from tests.explaining.heat_flow import flow
from tests.explaining.heat_world import FLOW, MINUTE_US, TENTHS, Heat, heat

INSTANCE = "heat.1"


class Explained:
    """A world with its log and its tables."""

    def __init__(self, folder: Path, world: Heat, revised_at: int = 0, former: bool = False) -> None:
        self.world, self.log = world, folder / "log"
        self.tables = world.run(folder / "tables")
        self.world.write_log(self.log, INSTANCE, revised_at, former).close()
        self._given_up = {"readings": (TENTHS.schema.layout,)} if former else {}

    def ask(self, table: str, key: str, limit: int = 1_000) -> dict[str, Any]:
        asked = Question(INSTANCE, str(self.log), str(self.tables), table, key, limit, FLOW, "cloud")
        return explain(replace(asked, given_up=self._given_up), make_plan(flow.graph(), "cloud"))

    def of(self, sensor: str) -> list[tuple[int, int, float]]:
        """Number, time and temperature of the good readings of a sensor."""
        return [
            (number, time, reading.celsius)
            for number, (time, reading) in enumerate(self.world.readings)
            if reading.sensor == sensor and reading.celsius > -273.15
        ]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Explained:
    return Explained(tmp_path_factory.mktemp("heat"), heat(3))


def numbers(found: dict[str, Any], channel: str = "readings") -> list[int]:
    return [one["origin"]["number"] for one in found["records"]["shown"] if one["channel"] == channel]


def test_a_plain_row_is_one_record_of_the_log(seen: Explained) -> None:
    number, time, celsius = seen.of("a")[7]
    found = seen.ask("every", f"sensor=a,celsius={celsius}")
    [record] = [one for one in found["records"]["shown"] if one["origin"]["number"] == number]
    assert record["event_time_us"] == time
    assert record["values"] == {"sensor": "a", "celsius": celsius}
    assert (record["device"], record["origin"]["name"]) == ("device-1", "readings/local")
    assert found["reproduced"] is True
    assert found["channels"] == [{"id": "readings", "records": 1, "steps_on_devices": ["readings"]}]
    assert [one["step"] for one in found["made_by"]] == ["plausible"]


def test_a_windows_row_is_the_records_of_its_key_in_it(seen: Explained) -> None:
    for row in rows(seen.tables, "means")[::5]:
        start = row["window_start"]
        expected = [n for n, time, _ in seen.of(row["sensor"]) if start <= time < start + MINUTE_US]
        found = seen.ask("means", f"{row['sensor']},{start}")
        assert found["row"] == row
        assert numbers(found) == expected
        assert found["records"]["count"] == len(expected) == row["n"]
        assert found["reproduced"] is True


def test_a_running_states_row_is_all_records_of_its_key_up_to_it(seen: Explained) -> None:
    for row in rows(seen.tables, "highest"):
        mine = seen.of(row["sensor"])
        last = next(n for n, _, celsius in mine if celsius == max(c for _, _, c in mine))
        found = seen.ask("highest", row["sensor"])
        assert numbers(found) == [n for n, _, _ in mine if n <= last]
        assert found["reproduced"] is True
        few = seen.ask("highest", row["sensor"], 3)
        assert numbers(few) == numbers(found)[-3:]
        assert few["records"]["count"] == found["records"]["count"]


def test_a_pair_is_its_two_records_and_a_broadcast_row_has_the_whole_small_stream(seen: Explained) -> None:
    pair = rows(seen.tables, "pairs")[0]
    found = seen.ask("pairs", ",".join(f"{name}={value}" for name, value in pair.items()))
    assert {one["channel"] for one in found["records"]["shown"]} == {"readings", "limits"}
    assert (found["records"]["count"], found["reproduced"]) == (2, True)
    [left] = numbers(found)
    assert seen.world.readings[left][1].celsius == pair["celsius"]
    found = seen.ask("counted", "sensor=b")
    time = found["event_time_us"]
    assert numbers(found, "limits") == [n for n, (at, _) in enumerate(seen.world.limits) if at <= time]
    assert (len(numbers(found)), found["reproduced"]) == (1, True)


def test_a_mistake_is_one_sentence(seen: Explained) -> None:
    for table, key, said in (
        ("nothing", "a", "there is no table 'nothing'; the tables: "),
        ("highest", "z", "table highest has no row z"),
        ("means", "a", "give 2 values with commas between, not 1"),
        ("means", "a,soon", "window_start is a int64, not 'soon'"),
        ("means", f"a,{'9' * 30}", "window_start is a int64, not '999"),
        ("every", "a", "has no key: name a row by fields"),
        ("every", "sensor=a,colour=red", "has no field 'colour'; its fields: sensor, celsius"),
        ("late", "a", "gear deadletters shows it"),
    ):
        with pytest.raises(ExplainError) as caught:
            seen.ask(table, key)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_page_up_to_a_partition_that_the_log_has_not_is_refused(seen: Explained) -> None:
    asked = RecordsQuestion(INSTANCE, str(seen.log), 0, 1, upto={"77": 5})
    with pytest.raises(ExplainError, match="upto: the log has no partition 77"):
        page_of(asked)


def test_what_retention_has_removed_is_said(tmp_path: Path) -> None:
    seen = Explained(tmp_path, heat(5))
    first, *_, last = rows(seen.tables, "means", {"sensor": "a"})
    commit(seen.log, "host", INSTANCE, {"0": 5})  # the first hundred readings, and the limits among them
    assert retain(seen.log, Retention(bytes_max=0), SystemClock().now_us()).segments == 2
    found = seen.ask("means", f"a,{last['window_start']}")
    assert (found["records"]["count"], found["reproduced"]) == (last["n"], True)
    assert any(
        note.startswith("retention has removed records of readings up to entry") for note in found["notes"]
    )
    found = seen.ask("means", f"a,{first['window_start']}")
    assert found["records"]["count"] < first["n"]
    assert found["reproduced"] is False


def test_each_record_names_the_revision_that_ran_it(tmp_path: Path) -> None:
    seen = Explained(tmp_path, heat(6), revised_at=200)
    first, *_, last = rows(seen.tables, "means", {"sensor": "a"})
    for row, revision in ((first, 1), (last, 2)):
        found = seen.ask("means", f"a,{row['window_start']}")
        assert {one["revision"] for one in found["records"]["shown"]} == {revision}
        assert found["reproduced"] is True
        assert any(note.startswith("the flow has come to revision 2") for note in found["notes"])


def test_records_of_a_former_type_that_was_given_up_are_noted(tmp_path: Path) -> None:
    seen = Explained(tmp_path, heat(6), revised_at=200, former=True)
    note = (
        "200 records of readings in the log are of a former type, and none of the present one can be made of "
        "them: which of them a former revision made this row of is not known"
    )
    first, *_, last = rows(seen.tables, "means", {"sensor": "a"})
    found = seen.ask("means", f"a,{first['window_start']}")
    assert (found["records"]["count"], found["reproduced"]) == (0, False)
    assert note in found["notes"]
    found = seen.ask("means", f"a,{last['window_start']}")
    assert (found["records"]["count"], found["reproduced"]) == (last["n"], True)
    assert note in found["notes"]
