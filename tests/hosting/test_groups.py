"""The groups of a host beside each other, without Spark: one that cannot go on, and one that leaves."""

from __future__ import annotations

import pytest

from geartrain_cloud.hosting import groups as groups_module
from geartrain_cloud.hosting.admission import Admission, Member
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.group import Group
from geartrain_cloud.hosting.group_query import GroupQuery
from geartrain_cloud.hosting.groups import Groups, own_group
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.hosting.versions import Versions
from geartrain_cloud.log.queries import register, registered
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.spark.errors import QueryError
from geartrain_cloud.spark.session import _with_retries
from tests.hosting.test_group import SESSION, places, version

__all__ = ["places"]

KEY = ("stone.1", 1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of queries that were started."""
    found: list[str] = []
    monkeypatch.setattr(GroupQuery, "start", lambda query, writer: found.append(query.name))
    return found


def groups_of(places: HostPlaces) -> Groups:
    return Groups(SESSION, places, places.folder.parent / "log")


def admission(places: HostPlaces, flow: str, stages: int = 1, *, own: bool = True) -> Admission:
    member = Member(AppTables(places.folder / "tables.sqlite", ""), own=own)
    return Admission(flow, "r", Prepared("p", {}, stages, ("readings",), ("readings",), ()), member)


def test_a_torn_checkpoint_stops_its_own_run_alone(places: HostPlaces, started: list[str]) -> None:
    groups_of(places)
    torn = places.group(own_group(KEY))
    Versions(torn.versions).publish(version(2))
    (torn.folder / "spark").mkdir()
    log = places.folder.parent / "log"
    register(log, "hosted@i", "stone.1", ["0"])
    groups = groups_of(places)
    groups.open({}, frozenset([KEY]))
    groups.check(dict)
    assert started == ["all"]
    assert "bring it back from a copy" in groups.stopped(KEY)
    assert groups.holds(*KEY)
    refused = groups.publish([admission(places, "stone.1")], set())
    assert "does not go on" in str(refused[KEY])
    assert groups.kept() == version(2).flows  # its code and its hold on the log stay
    assert groups.publish([], groups.runs()) == {}
    assert not torn.folder.exists()
    assert (groups.runs(), registered(log)) == (set(), [])


def test_a_run_that_is_not_wanted_any_more_leaves_nothing(places: HostPlaces, started: list[str]) -> None:
    groups_of(places)
    for name in (own_group(KEY), own_group(("stone.1", 2)), ".gone-1f"):
        Versions(places.group(name).versions).publish(version(2))
    groups = groups_of(places)
    groups.open({}, frozenset())
    assert [path.name for path in places.groups.iterdir()] == ["all"]
    assert started == ["all"]


def test_a_group_that_fails_stops_no_other(
    places: HostPlaces, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def check(group: Group) -> None:
        checked.append(group.name)
        if group.name == "own-stone.1":
            raise QueryError("it stopped too often")

    monkeypatch.setattr(Group, "check", check)
    monkeypatch.setattr(Group, "publish", lambda group, add, remove=(): {})
    groups = groups_of(places)
    groups.open({}, frozenset())
    groups.publish([admission(places, "stone.1"), admission(places, "deep.1", 3, own=False)], set())
    for _ in range(3):
        groups.check(dict)
    assert started == ["all", "own-stone.1", "own-deep.1"]
    assert checked.count("own-stone.1") == 1
    assert checked.count("all") == checked.count("own-deep.1") == 3
    assert groups.stopped(KEY) == "it stopped too often"
    monkeypatch.setattr(groups_module, "TRY_AGAIN_S", 0.0)
    groups.check(dict)
    assert started[3:] == ["own-stone.1"]
    made = {group.name: group.made.stages for group in groups}
    assert made == {"all": 2, "own-stone.1": 2, "own-deep.1": 3}


def test_no_more_runs_get_a_query_than_the_session_has_places_for(
    places: HostPlaces, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_module, "OWN_MAX", 1)
    monkeypatch.setattr(Group, "publish", lambda group, add, remove=(): {})
    groups = groups_of(places)
    first, second = admission(places, "stone.1"), admission(places, "wheel.1")
    refused = groups.publish([first, second], set())
    assert refused.keys() == {second.key}
    assert isinstance(refused[second.key], HostError)
    assert "submit it with --isolation shared" in str(refused[second.key])
    assert _with_retries("local[2]", 16) == "local[32,4]"


def test_runs_that_come_after_a_purge_share_another_group_and_the_former_goes_when_it_is_empty(
    places: HostPlaces, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places.share_anew()
    assert places.shared() == ["all"]  # nothing was there to be left
    Versions(groups_of(places).shared._places.versions).publish(version(2))
    for _ in range(2):  # as after a kill
        places.share_anew()
    assert places.shared() == ["all", "all~2"]
    published: list[tuple[str, list[str], set[str]]] = []

    def publish(group: Group, add: list[Admission], remove: set[str]) -> dict[object, object]:
        published.append((group.name, [one.flow for one in add], remove))
        flows = {name: one for name, one in group.version.flows.items() if name not in remove}
        group._publish(0, flows)
        return {}

    monkeypatch.setattr(Group, "publish", publish)
    monkeypatch.setattr(Group, "open", lambda group, members: None)
    groups = groups_of(places)
    groups.open({}, frozenset())
    groups.check(dict)
    assert started == ["all~2", "all"]
    assert groups.runs() == {KEY}
    again, new = admission(places, "stone.1", own=False), admission(places, "wheel.1", own=False)
    groups.publish([again, new], set())
    assert published == [("all~2", ["wheel.1"], set()), ("all", ["stone.1"], set())]
    groups.check(dict)
    assert places.shared() == ["all", "all~2"]
    groups.publish([], {KEY})
    groups.check(dict)
    assert (places.shared(), [group.name for group in groups]) == (["all~2"], ["all~2"])
    assert [path.name for path in places.groups.iterdir()] == ["all~2"]
    assert groups_of(places).shared.name == "all~2"
