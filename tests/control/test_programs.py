"""Which program devices are to run: serials, what stays in use, what is told, and an older store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.control.codec import decode_state
from geartrain.control.states import INSTALLED_PROGRAM, Reported, state_digest
from geartrain_cloud.control.agents import standing_of
from geartrain_cloud.control.lane_store import StoreOfLane
from geartrain_cloud.control_store.errors import NotFoundError
from geartrain_cloud.control_store.store import ControlStore

ONE, TWO, THREE = ("1" * 64, "2" * 64, "3" * 64)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ControlStore]:
    ticks = iter(range(1, 10**9))
    one = ControlStore(tmp_path / "control.sqlite", lambda: next(ticks))
    for name in ("t1", "t2", "t3"):
        one.devices.add(name, {})
    yield one
    one.close()


def serials(store: ControlStore) -> dict[str, int]:
    return {device.device: device.serial for device in store.devices.every()}


def report(
    store: ControlStore, device: str, runs: str, number: int, why: str = "", *, went_back: bool = False
) -> None:
    """Have a device say that it has applied what it is told, and which program it runs."""
    lane = StoreOfLane(store)
    state = asyncio.run(lane.changed())[device].state
    said = Reported(
        device,
        b"12345678",
        1,
        number,
        decode_state(state).serial,
        state_digest(state),
        program="0.2.0" if runs == "" else "0.3.0",
        program_code=runs,
        program_why=why,
        machine="3.11 aarch64",
        program_went_back=went_back,
    )
    asyncio.run(lane.store(said))


def standing(store: ControlStore, device: str, *, online: bool = True) -> tuple[str, str]:
    found = standing_of(store, store.devices.get(device), online=online)
    return found["state"], found["why"]


def test_a_serial_moves_when_another_program_is_wanted_and_only_then(store: ControlStore) -> None:
    before = serials(store)
    assert store.programs.want(["t2", "t1", "t1"], ONE, "0.3.0") == ["t1", "t2"]
    assert serials(store) == {"t1": before["t1"] + 1, "t2": before["t2"] + 1, "t3": before["t3"]}
    assert store.programs.want(["t1", "t3"], ONE, "0.3.0") == ["t3"]
    assert serials(store) == {name: serial + 1 for name, serial in before.items()}
    told = {name: decode_state(one.state) for name, one in asyncio.run(StoreOfLane(store).changed()).items()}
    assert {name: state.program for name, state in told.items()} == dict.fromkeys(before, ONE)
    assert {name: state.serial for name, state in told.items()} == serials(store)


def test_a_wish_is_for_all_devices_that_it_names_or_for_none(store: ControlStore) -> None:
    before = serials(store)
    store.devices.retire("t3")
    for name, said in (("none", "there is no device none"), ("t3", "was retired")):
        with pytest.raises(NotFoundError, match=said):
            store.programs.want(["t1", name], ONE, "0.3.0")
    assert (store.programs.used(), serials(store)["t1"]) == (set(), before["t1"])


def test_what_is_wanted_runs_or_was_wanted_before_is_in_use(store: ControlStore) -> None:
    store.programs.want(["t1"], ONE, "0.3.0")
    report(store, "t1", ONE, 1)
    store.programs.want(["t1"], TWO, "0.4.0")
    assert store.programs.used() == {ONE, TWO}
    store.programs.want(["t1"], THREE, "0.5.0")
    assert store.programs.used() == {ONE, TWO, THREE}
    report(store, "t1", THREE, 2)
    assert store.programs.used() == {TWO, THREE}
    store.devices.retire("t1")
    assert store.programs.used() == set()
    assert store.devices.add("t1", {}).serial > 0
    assert store.programs.of("t1").wanted == ""


def test_what_is_shown_is_what_the_device_says(store: ControlStore) -> None:
    assert standing(store, "t1") == ("as wanted", "")
    report(store, "t1", "", 1)
    store.programs.want(["t1"], ONE, "0.3.0")
    assert standing(store, "t1") == ("waiting", "")
    assert standing(store, "t1", online=False) == ("offline", "")
    report(store, "t1", "", 2, "program 1111 is being fetched")
    assert standing(store, "t1") == ("waiting", "program 1111 is being fetched")
    assert standing(store, "t1", online=False) == ("offline", "program 1111 is being fetched")
    report(store, "t1", "", 3, "program 1111 went back to ...", went_back=False)
    assert standing(store, "t1")[0] == "waiting"  # what people read decides nothing
    report(store, "t1", "", 4, "it ended\x1b[2J", went_back=True)
    assert standing(store, "t1") == ("went back", "it ended\\x1b[2J")
    store.programs.want(["t1"], TWO, "0.4.0")
    assert standing(store, "t1") == ("waiting", "")  # what it said was of the one before
    report(store, "t1", TWO, 5)
    assert standing(store, "t1") == ("as wanted", "")
    found = standing_of(store, store.devices.get("t1"), online=True)
    assert (found["version"], found["program"], found["machine"]) == ("0.3.0", TWO, "3.11 aarch64")
    assert (found["wanted"], found["wanted_version"]) == (TWO, "0.4.0")
    assert store.programs.want(["t1"], INSTALLED_PROGRAM, "") == ["t1"]
    assert standing(store, "t1") == ("waiting", "")
    report(store, "t1", "", 6)
    assert standing(store, "t1") == ("as wanted", "")
    assert store.programs.used() == {TWO}
