"""A group that was stopped while it put a flow out, and what its files say of it at the next start."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from geartrain.adapters.files import write_private
from geartrain.schema import derive
from geartrain_cloud.hosting import group as group_module
from geartrain_cloud.hosting.admission import Admission, Member
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.group import Group
from geartrain_cloud.hosting.host import Host
from geartrain_cloud.hosting.offsets import generation_name
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.prepared import DownSaid, Prepared, SinkSaid, put_prepared
from geartrain_cloud.hosting.program import program
from geartrain_cloud.hosting.steering import SteeringFile
from geartrain_cloud.hosting.versions import Hosted, Version, Versions, new_labels, sink_labels
from geartrain_cloud.log.queries import registered
from geartrain_cloud.platform.runs import tables_of_run
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.sinks.layout import AwayError
from geartrain_cloud.spark.errors import RefusedError
from tests.hosting.mill_log import MillLog
from tests.spark.flows import Reading

SESSION: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda key: "2"))
"""What a group asks of a session before its query starts."""


@pytest.fixture
def places(tmp_path: Path) -> HostPlaces:
    (tmp_path / "log").mkdir()
    MillLog(tmp_path / "log", "stone.1", 0).writer.close()
    return HostPlaces(tmp_path / "spark")


def group_of(places: HostPlaces) -> Group:
    return Group(SESSION, "all", places.folder, places.group("all"), places.folder.parent / "log")


def version(number: int, revision: int = 1) -> Version:
    """One with a flow."""
    hosted: dict[str, Any] = {"flow": "stone.1", "generation": 1, "plan": "p", "request": "r", "code": {}}
    hosted |= {"stages": 1, "labels": (2, 3), "buckets": 8, "keys": ("0",), "channels": (), "sources": ()}
    hosted |= {"identity": "i", "rows_max": 10, "revision": revision}
    return Version(number, 2, {"stone.1~1": Hosted(**hosted)})


def test_a_flow_that_was_being_put_out_is_out_at_the_next_start(places: HostPlaces) -> None:
    own = places.group("all")
    group_of(places)
    Versions(own.versions).publish(version(2))
    write_private(own.suspect("stone.1~1"), "its code hung")
    group = group_of(places)
    group.open({})
    assert group.out["stone.1~1"].why == "its code hung"
    assert group.out["stone.1~1"].positions == {"0": 0}
    assert SteeringFile(own.steering).read().out == group.out
    assert list(own.suspects.iterdir()) == []


def test_no_flow_is_forgotten_because_nobody_says_what_is_wanted(places: HostPlaces) -> None:
    group_of(places)
    Versions(places.group("all").versions).publish(version(2))
    host = Host(SESSION, places.folder, places.folder.parent / "log")
    with pytest.raises(HostError, match=r"wanted\.json is missing: start gear-control"):
        host.open()
    assert host.groups.shared.out == {}


def test_an_older_control_store_puts_no_older_plan_under_a_newer_number(places: HostPlaces) -> None:
    log = places.folder.parent / "log"
    Versions(places.group("all").versions).publish(version(2, revision=3))
    tables = places.folder / "apps" / "stone.1" / "tables.sqlite"
    wanted = {"flow": "mill.flows:flow0", "tables": str(tables), "revision": 2, "former": [{"flow": "m:f"}]}
    write_private(places.wanted, json.dumps({"serial": 1, "flows": {"stone.1": wanted}}))
    host = Host(SESSION, places.folder, log)
    host._follow()
    host._prepare()
    assert host._coming == {}
    host.show()
    said = json.loads(places.status.read_text())["flows"]["stone.1"]["why"]
    assert "runs revision 3, and control knows of 2 alone" in said


def test_a_checkpoint_without_its_group_is_refused(places: HostPlaces) -> None:
    own = places.group("all")
    group_of(places)
    (own.folder / "group.json").unlink()
    (own.folder / "spark").mkdir()
    with pytest.raises(RefusedError, match="bring it back from a copy"):
        group_of(places)


def test_labels_of_slots_are_never_given_out_twice() -> None:
    given = [*sink_labels(2)]
    for slots in range(0, 40, 4):
        given += new_labels(slots, 4, 2)
    assert len(set(given)) == len(given) == 42


DOWN = DownSaid("commands", derive(Reading).to_json(), is_timed=False)
POSTGRES = SinkSaid("readings", "PostgresTable", {"name": "readings"}, derive(Reading).to_json())


@pytest.mark.parametrize(
    ("sinks", "down", "why"),
    [
        ((), (DOWN,), "what step 'commands' has sent to devices would be sent twice"),
        ((POSTGRES,), (), "sink 'readings' is a PostgresTable, which already has what the former run wrote"),
    ],
)
def test_a_replay_that_would_write_twice_is_refused(
    places: HostPlaces, sinks: tuple[SinkSaid, ...], down: tuple[DownSaid, ...], why: str
) -> None:
    prepared = Prepared("p", {}, 1, ("readings",), ("readings",), sinks, down)
    member = Member(AppTables(places.folder / "tables.sqlite"))
    group = group_of(places)
    refused = group.publish([Admission("stone.1", "r", prepared, member, 2)])
    assert why in str(refused["stone.1", 2])
    assert group.version.flows == {}
    assert registered(places.folder.parent / "log") == []


def test_a_replay_of_a_flow_that_has_sent_all_opens_no_outbox(places: HostPlaces) -> None:
    prepared = Prepared("p", {}, 1, ("readings",), ("readings",), (), (DOWN,), program=program())
    group = group_of(places)
    put_prepared(places.group("all").plans, prepared)
    member = Member(AppTables(places.folder / "tables.sqlite"), sends=False)
    assert group.publish([Admission("stone.1", "r", prepared, member, 2)]) == {}
    assert tables_of_run(member.tables.first, 2).exists()
    assert not member.tables.first.with_name("outbox.sqlite").exists()
    group.close()


def test_runs_of_a_flow_have_names_of_their_own() -> None:
    assert generation_name("stone.1", 3) == "stone.1~3"
    assert generation_name("stone.1", 3, 2) == "stone.1~2.3"


def test_a_flow_whose_tables_go_away_while_it_goes_over_is_out_and_says_why(
    places: HostPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise AwayError("the server of its tables is away")

    at = {"stone.1~1/0": 7, "!n:stone.1~1": 3}
    monkeypatch.setattr(Group, "committed", lambda group: at)
    monkeypatch.setattr(Group, "_dropped", lambda *_: {})
    monkeypatch.setattr(Group, "_open_store", away)
    monkeypatch.setattr(group_module, "boundary", lambda *_: {"0": 7})
    group_of(places)
    Versions(places.group("all").versions).publish(version(2))
    group = group_of(places)
    closed: list[str] = []
    store: Any = SimpleNamespace(held="", positions=lambda: {"0": 7}, close=lambda: closed.append("it"))
    group._stores["stone.1~1"] = store
    prepared = Prepared("p", {}, 1, ("readings",), ("readings",), ())
    put_prepared(places.plans, prepared)
    admission = Admission("stone.1", "r", prepared, Member(AppTables(places.folder / "t.sqlite")), revision=2)
    with pytest.raises(AwayError):
        group.cross(admission)
    out = group.out["stone.1~1"]
    assert (out.why, out.positions, out.count) == ("the server of its tables is away", {"0": 7}, 3)
    assert group.returning == {"stone.1~1"}  # it is brought in again when they are back
    assert SteeringFile(places.group("all").steering).read().out == group.out
    assert (closed, list(group.version.flows)) == (["it"], ["stone.1~1"])


def test_a_flow_whose_parked_rows_cannot_be_read_is_out_alone(places: HostPlaces) -> None:
    own, prepared = places.group("all"), Prepared("p", {}, 1, (), ("readings",), (), program=program())
    put_prepared(own.plans, prepared)
    MillLog(places.folder.parent / "log", "sand.1", 0).writer.close()
    members = {f"{app}.1": Member(AppTables(places.folder / f"{app}.sqlite")) for app in ("stone", "sand")}
    group = group_of(places)
    added = [Admission(flow, "r", prepared, member) for flow, member in members.items()]
    assert group.publish(added) == {}
    group.close()
    write_private(own.parked("stone.1", 1) / "0", b"half a file")
    group = group_of(places)
    group.open(members)
    assert list(group.out) == ["stone.1~1"]
    assert "parked/stone.1/0, which cannot be read" in group.out["stone.1~1"].why
    assert group.returning == {"stone.1~1"}  # the file may come back
    assert list(group._stores) == ["sand.1~1"]
    group.close()
