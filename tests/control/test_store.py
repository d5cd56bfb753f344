"""The control store: numbers, assignments, serials, keys and pages, and a kill in the middle of a change."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from geartrain.control.limits import LANE_LIMITS
from geartrain.errors import SelectorError
from geartrain_cloud.control_store import desired
from geartrain_cloud.control_store.errors import ConflictError, InvalidError, NotFoundError
from geartrain_cloud.control_store.idempotency import ANSWERS_MAX
from geartrain_cloud.control_store.model import (
    Channel,
    Mode,
    Outline,
    Report,
    SourceOutline,
    State,
    Submission,
    Wanted,
)
from geartrain_cloud.control_store.store import ControlStore

OUTLINE = Outline("heat", [Channel("readings", ["readings"])], [SourceOutline("readings", True)], "aa")


def heat(name: str = "heat", selector: str = "all") -> Submission:
    return Submission(name, "heat:flow", "auto", selector, {"readings": {"path": "heat.csv"}})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ControlStore]:
    ticks = iter(range(1, 10**9))
    one = ControlStore(tmp_path / "control.sqlite", lambda: next(ticks))
    yield one
    one.close()


def serials(store: ControlStore) -> dict[str, int]:
    return {device.device: device.serial for device in store.devices.every()}


def test_an_instance_gets_the_devices_that_match_and_only_their_serials_move(store: ControlStore) -> None:
    for name, kind in (("t1", "truck"), ("t2", "truck"), ("x1", "tank")):
        store.devices.add(name, {"kind": kind})
    before = serials(store)
    instance = store.apps.submit(heat(selector="kind=truck"), OUTLINE)
    assert (instance.instance, instance.state, instance.wanted) == ("heat.1", State.SUBMITTED, Wanted.RUNNING)
    assert store.desired.assigned("heat.1") == {"t1": "wanted", "t2": "wanted"}
    assert serials(store) == {"t1": before["t1"] + 1, "t2": before["t2"] + 1, "x1": before["x1"]}
    assert [(one.instance, draining) for one, draining in store.desired.wanted_on("t1")] == [
        ("heat.1", False)
    ]
    assert store.desired.wanted_on("x1") == []
    assert instance.options == {"readings": {"path": "heat.csv"}}
    assert instance.outline == OUTLINE


def test_whose_query_an_instance_runs_in_stays_for_its_life(store: ControlStore, tmp_path: Path) -> None:
    asked = {"heat": "shared", "own": "own", "deep": "shared"}
    for name, isolation in asked.items():
        shuffles = 3 if name == "deep" else 2
        wish = replace(heat(name), isolation=isolation)
        assert store.apps.submit(wish, replace(OUTLINE, shuffles=shuffles)).isolation == (
            "shared" if name == "heat" else "own"
        )
    assert store.apps.replay("own").isolation == "own"
    store.close()
    again = ControlStore(tmp_path / "control.sqlite", lambda: 1)
    assert {one.name: one.isolation for one in again.apps.instances()} == {
        **asked,
        "deep": "own",  # the query that flows share has two shuffles
    }
    again.close()


def test_a_number_is_never_used_again_not_even_after_a_purge(store: ControlStore) -> None:
    seen = []
    for purge in (False, True, True):
        seen.append(store.apps.submit(heat(), OUTLINE).instance)
        store.apps.kill("heat", Mode.NOW, purge=purge)
        store.apps.enter(seen[-1], State.ENDED)
        if purge:
            store.apps.forget(seen[-1])
    assert seen == ["heat.1", "heat.2", "heat.3"]
    with pytest.raises(NotFoundError):
        store.apps.newest("heat")
    assert store.apps.submit(heat(), OUTLINE).instance == "heat.4"


def test_an_app_that_has_ended_can_still_be_purged(store: ControlStore) -> None:
    store.apps.submit(heat(), OUTLINE)
    store.apps.enter("heat.1", State.ENDED)
    assert store.apps.instances() == []
    with pytest.raises(ConflictError, match="has ended already"):
        store.apps.kill("heat", Mode.DRAIN, purge=False)
    for _ in range(2):
        found = store.apps.kill("heat", Mode.DRAIN, purge=True)
        assert (found.state, found.purge) == (State.ENDED, True)
    assert store.apps.submit(heat(), OUTLINE).instance == "heat.2"
    assert [one.instance for one in store.apps.instances()] == ["heat.1", "heat.2"]


def purge(store: ControlStore, name: str) -> None:
    instance = store.apps.submit(heat(name), OUTLINE).instance
    store.apps.kill(name, Mode.NOW, purge=True)
    store.apps.forget(instance)


def content(store: ControlStore, device: str) -> tuple[list[str], list[str]]:
    return [one.instance for one, _ in store.desired.wanted_on(device)], store.desired.purged_on(device)


def test_a_purge_stands_in_the_desired_state_until_it_is_reported_and_one_serial_has_one_content(
    store: ControlStore,
) -> None:
    chance, seen = random.Random(3), dict[tuple[str, int], Any]()
    names = ("t1", "t2")
    for name in names:
        store.devices.add(name, {})
    told: dict[str, set[str]] = {name: set() for name in names}
    purged = set[str]()
    for step in range(300):
        name = f"a{step}"
        match chance.randrange(4):
            case 0:
                purge(store, name)
                purged.add(f"{name}.1")
            case 1:
                store.apps.submit(heat(name), OUTLINE)
                store.apps.kill(name, Mode.NOW, purge=False)
            case _ as what:
                device = names[what - 2]
                now = store.devices.get(device)
                if chance.random() < 0.3:
                    told[device] |= set(store.desired.purged_on(device))
                    store.reports.heard(device, b"", now.serial, [])
        for device in names:
            assert len(store.desired.purged_on(device)) <= LANE_LIMITS.apps_max
            found = seen.setdefault((device, store.devices.get(device).serial), content(store, device))
            assert found == content(store, device)
    for device in names:
        for _ in range(100):
            told[device] |= set(store.desired.purged_on(device))
            store.reports.heard(device, b"", store.devices.get(device).serial, [])
        assert told[device] == purged
        store.apps.submit(heat("last" + device), OUTLINE)
        assert store.desired.purged_on(device) == []


def test_a_device_that_is_away_gets_all_purges_in_portions(store: ControlStore) -> None:
    store.devices.add("t1", {})
    names = [f"a{number}" for number in range(150)]
    for name in names:
        purge(store, name)
    told, serial = list[str](), 0
    for size in (64, 64, 22):
        assert len(store.desired.purged_on("t1")) == size
        told += store.desired.purged_on("t1")
        serial = store.devices.get("t1").serial
        store.reports.heard("t1", b"", 1, [])
        assert store.devices.get("t1").serial == serial  # an older one makes no room
        store.reports.heard("t1", b"", serial, [])
    assert told == [f"{name}.1" for name in names]
    assert store.devices.get("t1").serial == serial


def test_a_purge_is_told_again_to_a_device_that_is_accepted(store: ControlStore) -> None:
    """The store was restored from a copy: what such a device has applied is not what this store has named."""
    store.devices.add("t1", {})
    store.reports.refuse("t1", "it knows more")
    purge(store, "heat")
    store.reports.heard("t1", b"", 99, [])
    purge(store, "rain")
    assert store.desired.purged_on("t1") == ["heat.1", "rain.1"]
    assert store.reports.accept("t1", 99).serial == 100
    purge(store, "snow")
    assert store.desired.purged_on("t1") == ["heat.1", "rain.1", "snow.1"]
    store.reports.heard("t1", b"", store.devices.get("t1").serial, [])
    store.apps.submit(heat(), OUTLINE)
    assert store.desired.purged_on("t1") == []


def test_a_device_that_is_never_told_keeps_no_endless_list(
    store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desired, "PURGES_MAX", 3)
    store.devices.add("t1", {})
    for number in range(3):
        purge(store, f"a{number}")
    store.apps.submit(heat(), OUTLINE)
    with pytest.raises(ConflictError, match=r"device t1 has 3 purges .* or retire it"):
        store.apps.kill("heat", Mode.NOW, purge=True)
    assert store.apps.newest("heat").wanted is Wanted.RUNNING
    store.devices.retire("t1")
    assert store.apps.kill("heat", Mode.NOW, purge=True).purge


def test_an_app_that_runs_is_not_submitted_again(store: ControlStore) -> None:
    store.apps.submit(heat(), OUTLINE)
    with pytest.raises(ConflictError, match=r"app heat is submitted as heat\.1: kill it first"):
        store.apps.submit(heat(), OUTLINE)
    assert [one.instance for one in store.apps.every()] == ["heat.1"]


def test_a_device_that_comes_later_or_is_labelled_later_joins(store: ControlStore) -> None:
    store.apps.submit(heat(selector="kind=truck"), OUTLINE)
    store.devices.add("t1", {"kind": "truck"})
    store.devices.add("t2", {})
    assert store.desired.assigned("heat.1") == {"t1": "wanted"}
    store.devices.label("t2", {"kind": "truck"})
    assert store.desired.assigned("heat.1") == {"t1": "wanted", "t2": "wanted"}
    store.devices.label("t2", {"kind": None})
    assert store.devices.get("t2").labels == {}
    assert store.desired.assigned("heat.1")["t2"] == "wanted"


def test_a_retired_device_leaves_all_and_comes_back(store: ControlStore) -> None:
    store.devices.add("t1", {})
    store.apps.submit(heat(), OUTLINE)
    with pytest.raises(ConflictError, match="is there already"):
        store.devices.add("t1", {})
    before = store.devices.get("t1").serial
    store.devices.retire("t1")
    assert store.desired.wanted_on("t1") == []
    with pytest.raises(NotFoundError, match="was retired"):
        store.devices.label("t1", {"a": "b"})
    back = store.devices.add("t1", {})
    assert back.serial > before
    assert store.desired.assigned("heat.1") == {"t1": "wanted"}


def test_a_kill_drains_then_leaves_and_each_step_may_come_twice(store: ControlStore) -> None:
    store.devices.add("t1", {})
    store.apps.submit(heat(), OUTLINE)
    store.apps.enter("heat.1", State.RUNNING)
    for _ in range(2):
        assert store.apps.kill("heat", Mode.DRAIN, purge=False).state is State.DRAINING
    serial = store.devices.get("t1").serial
    assert [draining for _, draining in store.desired.wanted_on("t1")] == [True]
    assert not store.apps.enter("heat.1", State.RUNNING)
    for _ in range(2):
        store.desired.leave("heat.1")
    assert store.devices.get("t1").serial == serial + 1
    assert store.desired.wanted_on("t1") == []
    assert store.apps.enter("heat.1", State.ENDED)
    assert not store.apps.enter("heat.1", State.ENDED)
    with pytest.raises(ConflictError, match="has ended already"):
        store.apps.kill("heat", Mode.NOW, purge=False)


def test_a_drain_may_be_made_a_kill_but_not_the_other_way(store: ControlStore) -> None:
    store.apps.submit(heat(), OUTLINE)
    store.apps.kill("heat", Mode.DRAIN, purge=False)
    assert store.apps.kill("heat", Mode.NOW, purge=True).mode is Mode.NOW
    again = store.apps.kill("heat", Mode.DRAIN, purge=False)
    assert (again.mode, again.purge) == (Mode.NOW, True)


def test_what_a_device_says_of_what_it_was_not_given_is_dropped(store: ControlStore) -> None:
    store.devices.add("t1", {})
    store.apps.submit(heat(), OUTLINE)
    said = [Report("t1", "heat.1", "running"), Report("t1", "other.1", "running")]
    store.reports.heard("t1", b"said", 2, said)
    store.reports.heard("stranger", b"said", 9, [Report("stranger", "heat.1", "running")])
    assert {device: one.state for device, one in store.reports.of("heat.1").items()} == {"t1": "running"}
    assert store.devices.get("t1").applied == 2
    assert store.reports.of("other.1") == {}
    assert (store.reports.last("t1"), store.reports.last("stranger")) == (b"said", b"")


def test_a_key_gives_its_answer_again_and_no_second_instance(store: ControlStore) -> None:
    def work() -> tuple[int, dict[str, object]]:
        return 202, {"instance": store.apps.submit(heat(), OUTLINE).instance}

    first = store.answers.once("k", "POST /apps heat", work)
    assert store.answers.once("k", "POST /apps heat", work) == first == (202, {"instance": "heat.1"})
    with pytest.raises(ConflictError, match="another request"):
        store.answers.once("k", "POST /apps other", work)


def test_a_change_that_fails_leaves_neither_trace_nor_key(store: ControlStore) -> None:
    def work() -> tuple[int, dict[str, object]]:
        store.apps.submit(heat(), OUTLINE)
        raise ConflictError("no")

    with pytest.raises(ConflictError):
        store.answers.once("k", "r", work)
    assert store.apps.every() == []
    assert store.answers.once("k", "r", lambda: (200, {})) == (200, {})


def test_keys_are_bounded(store: ControlStore) -> None:
    with store.database.change():
        for number in range(ANSWERS_MAX + 5):
            store.answers.once(f"k{number}", "r", lambda: (200, {}))
    assert store.answers.recall("k4", "r") is None
    assert store.answers.recall("k5", "r") == (200, {})


def test_lists_are_read_in_pages(store: ControlStore) -> None:
    chance = random.Random(1)
    names = [f"d{number:03}" for number in range(57)]
    for name in chance.sample(names, len(names)):
        store.devices.add(name, {"half": "a" if int(name[1:]) % 2 else "b"})
    for limit in (1, 7, 57, 100):
        for selector, wanted in (("all", names), ("half=a", names[1::2])):
            found, after = list[str](), ""
            while True:
                page, following = store.devices.page(limit, after, selector)
                found += [device.device for device in page]
                assert len(page) <= limit
                if following is None:
                    break
                after = following
            assert found == wanted
    for name in ("b", "a", "c"):
        store.apps.submit(heat(name), OUTLINE)
    for after, names, behind in (("", ["a", "b"], "b"), ("b", ["c"], None)):
        apps, following = store.apps.page(2, after)
        assert ([one.name for one in apps], following) == (names, behind)


@pytest.mark.parametrize("name", ["", "a.b", "a-b", "1a", "a" * 49, "a/b", "ä", "a\n"])
def test_a_name_that_no_app_can_have_is_refused(store: ControlStore, name: str) -> None:
    with pytest.raises(InvalidError):
        store.apps.submit(heat(name), OUTLINE)


@pytest.mark.parametrize("labels", [{"": "a"}, {"a": ""}, {"a b": "c"}, {"a": "b,c"}, {"a=": "b"}])
def test_a_label_that_no_selector_could_name_is_refused(store: ControlStore, labels: dict[str, str]) -> None:
    with pytest.raises(SelectorError):
        store.devices.add("t1", labels)


def test_a_store_that_is_killed_amid_changes_holds_whole_ones(tmp_path: Path) -> None:
    """Each submit assigns both devices: a kill at any moment leaves both assignments or none."""
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from tests.control.test_store import OUTLINE, heat
        from geartrain_cloud.control_store.store import ControlStore
        store = ControlStore(Path(sys.argv[1]), lambda: 1)
        for name in ("t1", "t2"):
            store.devices.add(name, {})
        for number in range(100_000):
            store.apps.submit(heat(f"a{number}"), OUTLINE)
            print(number, flush=True)
        """
    )
    path = tmp_path / "control.sqlite"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        said = [int(one.stdout.readline()) for _ in range(20)]
        os.kill(one.pid, signal.SIGKILL)
        said += [int(line) for line in one.stdout.read().split()]
    store = ControlStore(path, lambda: 1)
    found = store.apps.every()
    assert len(found) in (len(said), len(said) + 1)
    assert all(store.desired.assigned(one.instance) == {"t1": "wanted", "t2": "wanted"} for one in found)
    assert store.devices.get("t1").serial == 1 + len(found)
    store.close()


def test_a_replay_counts_runs_and_is_refused_of_what_was_killed_or_would_send_twice(
    store: ControlStore,
) -> None:
    store.apps.submit(heat(), OUTLINE)
    assert [store.apps.replay("heat").run, store.apps.replay("heat").run] == [2, 3]
    store.apps.kill("heat", Mode.NOW, purge=False)
    store.apps.enter("heat.1", State.ENDED)
    with pytest.raises(ConflictError, match="app heat is ended: submit it again instead"):
        store.apps.replay("heat")
    store.apps.submit(heat("cool"), msgspec.structs.replace(OUTLINE, down=True))
    with pytest.raises(ConflictError, match="a replay while it runs would send all of it twice"):
        store.apps.replay("cool")
    assert (store.apps.newest("heat").run, store.apps.newest("cool").run) == (3, 1)
    store.apps.enter("cool.1", State.ENDED)
    assert store.apps.replay("cool").run == 2


def test_only_what_has_failed_is_resumed_and_each_time_counts(store: ControlStore) -> None:
    store.apps.submit(heat(), OUTLINE)
    with pytest.raises(ConflictError, match="app heat is submitted: only one that has failed is resumed"):
        store.apps.resume("heat")
    for attempt in (2, 3):
        store.apps.enter("heat.1", State.FAILED, "its code raised")
        found = store.apps.resume("heat")
        assert (found.attempt, found.state, found.why) == (attempt, State.STARTING, "")


def test_what_has_ended_by_itself_is_replayed_without_its_devices(store: ControlStore) -> None:
    store.devices.add("d1", {})
    store.apps.submit(heat(), OUTLINE)
    store.desired.leave("heat.1")
    store.apps.enter("heat.1", State.ENDED, "as it is")
    replayed = store.apps.replay("heat")
    assert (replayed.run, replayed.state, replayed.why) == (2, State.REPLAYING, "")
    with pytest.raises(ConflictError, match=r"app heat is replaying as heat\.1: kill it first"):
        store.apps.submit(heat(), OUTLINE)
    store.devices.add("d2", {})
    assert store.desired.assigned("heat.1") == {"d1": "left"}
    assert not store.apps.enter("heat.1", State.REPLAYING)
    given_up = store.apps.kill("heat", Mode.DRAIN, purge=False)
    assert (given_up.state, given_up.wanted, given_up.run) == (State.ENDED, Wanted.RUNNING, 2)
    with pytest.raises(ConflictError, match="app heat has ended already"):
        store.apps.kill("heat", Mode.DRAIN, purge=False)
    assert (store.apps.replay("heat").run, store.apps.replay("heat").run) == (3, 4)
    purged = store.apps.kill("heat", Mode.NOW, purge=True)
    assert (purged.state, purged.wanted, purged.purge) == (State.ENDED, Wanted.KILLED, True)
