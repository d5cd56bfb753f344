"""`gear cut` and `gear move`: what moves is shown, and who is waited for."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from geartrain.control.app_reasons import AppCode, app_sentence
from geartrain.errors import GeartrainError
from geartrain.errors.reason import make_reason
from geartrain_client.cli.apps_app import _cuts
from tests.client.fake_platform import FakePlatform
from tests.client.talking import HOSTILE, SHOWN, Capture, add, gear

ANSWER: dict[str, Any] = {
    "number": 2,
    "revises": True,
    "count": 2,
    "devices": [
        {"device": "truck-1", "before": "cloud", "cut": "high"},
        {"device": HOSTILE, "before": "cloud", "cut": "high"},
    ],
    "moves": [{"step": "doubled", "to": "edge"}, {"step": "high", "to": "edge"}],
}


def test_a_move_is_shown_before_it_is_made(platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    platform.change = ANSWER | {"refusals": []}
    out, err = gear(capsys, "move", "heat", "high", "--to", "edge", "--devices", "kind=truck", "--dry-run")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "truck-1 high cloud" in lines
    assert f"{SHOWN} high cloud" in lines
    said = "nothing was changed; 2 devices would get another cut, with revision 2 of the data centre's part"
    assert lines[-1] == said
    assert "step doubled moves to the devices\n" in err
    assert platform.asked[-1][3] == {"step": "high", "to": "edge", "devices": "kind=truck", "dry_run": True}
    platform.change["refusals"] = ["step sums (process) keeps what it has"]
    said = gear(capsys, "cut", "heat", "edge", "--dry-run", code=2)[1].splitlines()[-1]
    assert said == "gear: heat.3 would keep its cuts: step sums (process) keeps what it has"
    out, err = gear(capsys, "cut", "heat", "edge", "--dry-run", code=2)
    assert (out, err) == ("", f"{said}\n")
    assert json.loads(gear(capsys, "cut", "heat", "edge", "--dry-run", "--json", code=2)[0])["count"] == 2
    gear(capsys, "move", "heat", "high", "--to", "moon", code=2)


@pytest.mark.parametrize(
    ("move", "says"),
    [
        (
            {"cells": 1_204, "bytes": 48_160, "devices": 2},
            "moves to the data centre, with what it keeps: 1,204 cells, 48.2 kB\n",
        ),
        (
            {"cells": 1, "bytes": 12, "devices": 1, "at_most": True},
            "with what it keeps: at most 1 cell, 12 B, which are those of all devices\n",
        ),
        (
            {"cells": 5, "bytes": 3_000_000, "devices": 3, "unsaid": 1},
            "with what it keeps: 5 cells, 3.0 MB (1 of 3 devices have not said)\n",
        ),
        ({"cells": None, "bytes": None}, "with what it keeps: how much that is has not been told yet\n"),
    ],
)
def test_how_much_state_moves_and_how_long_that_takes_is_told(
    platform: FakePlatform, capsys: Capture, move: dict[str, Any], says: str
) -> None:
    add(platform)
    moves = [{"step": "sums", "to": "cloud", "keeps": True, **move}]
    platform.change = ANSWER | {"moves": moves, "refusals": [], "micro_batches": 2, "pause_ms": 700}
    err = gear(capsys, "move", "heat", "sums", "--to", "cloud", "--dry-run")[1]
    assert says in err
    assert "steps with state pause for 2 micro-batches, about 0.7 s as they take now" in err
    platform.change |= {"behind_entries": 1_204, "pause_ms": 43_700}
    err = gear(capsys, "move", "heat", "sums", "--to", "edge", "--dry-run")[1]
    assert "pause for 2 micro-batches behind 1,204 entries of the log, about 43.7 s as they take now" in err
    assert json.loads(gear(capsys, "cut", "heat", "cloud", "--dry-run", "--json")[0])["moves"] == moves


def test_a_cut_that_fits_each_device_is_shown_with_its_reason(
    platform: FakePlatform, capsys: Capture
) -> None:
    add(platform)
    device = {"device": "truck-1", "before": "cloud", "cut": "high", "why": f"at 100 records/s {HOSTILE}"}
    platform.change = ANSWER | {"count": 1, "devices": [device], "refusals": []}
    out, _ = gear(capsys, "cut", "heat", "auto", "--capacity", "0.2", "--dry-run")
    assert f"truck-1 high cloud at 100 records/s {SHOWN}" in " ".join(out.split())
    assert platform.asked[-1][3] == {"cut": "auto", "devices": "all", "dry_run": True, "capacity": 0.2}
    said = gear(capsys, "cut", "heat", "edge", "--capacity", "0.2", code=2)[1]
    assert "--capacity is for auto and adaptive" in said


def test_a_cut_waits_for_devices_in_contact_and_names_how_many_are_away(
    platform: FakePlatform, capsys: Capture
) -> None:
    add(platform)
    platform.change = ANSWER
    counts = {"assigned": 3, "online": 2}
    change = {"number": 2, "stage": "being prepared", "why": ""}
    pending = {"number": 2, "count": 2}
    platform.crosses = {
        "change": change,
        "cut_change": pending,
        "cuts": [{"cut": "high", "devices": 2, "applied": 1}, {"cut": "cloud", "devices": 1, "applied": 1}],
    }
    platform.states.extend(
        [
            {},
            {"change": None, "number": 2},
            {"cut_change": None, "devices": counts | {"applied": 1}},
            {"devices": counts | {"applied": 2}},
        ]
    )
    out = gear(capsys, "cut", "heat", "high", "--devices", "kind=truck")[0]
    said = (
        "heat.3: applied by 2 of 3 devices; 1 out of contact: these get it when they come: see gear info heat"
    )
    assert out.splitlines()[-1] == said
    assert not platform.states
    assert "2 devices will get another cut" in gear(capsys, "cut", "heat", "high", "--no-wait")[0]
    platform.apps["heat"] |= {
        "cut_change": pending,
        "applied": [{"device": "truck-1", "state": "running", "cut": "high", "cut_applied": False}],
    }
    shown = " ".join(gear(capsys, "info", "heat")[0].split())
    assert "cut: high on 2, cloud on 1" in shown
    assert "cut, to come: for 2 devices, with revision 2" in shown
    assert "high does not run with this cut yet" in shown
    assert "high on 2, cloud on 1" in " ".join(gear(capsys, "list")[0].split())


def test_a_cut_does_not_wait_for_a_device_that_asks_for_no_state(
    platform: FakePlatform, capsys: Capture
) -> None:
    add(platform)
    platform.change = ANSWER
    stay = make_reason(AppCode.STATE_STAYS, unmoved="take the move back")
    wait = make_reason(AppCode.AWAITS_STATE, unmoved=f"it did not come {HOSTILE}")
    why = app_sentence(stay)
    device = {"device": "truck-1", "state": "running", "online": True, "cut": "high", "cut_applied": False}
    counts = {"assigned": 2, "online": 2, "applied": 1}
    waits, stays = (
        {"applied": [device | {"why": app_sentence(one), "reasons": [msgspec.to_builtins(one)]}]}
        for one in (wait, stay)
    )
    platform.apps["heat"] |= {"number": 2, "devices": counts}
    platform.states.extend([stays, stays, waits, stays])  # it has said so before this move, and says so again
    says = gear(capsys, "cut", "heat", "high", code=1)[1]
    assert says.splitlines()[-1] == f"gear: device truck-1 {why}"
    assert not platform.states
    platform.apps["heat"] |= waits
    says = gear(capsys, "cut", "heat", "high", "--timeout", "10ms", code=1)[1]
    assert "1 of 2 devices in contact have still to start it: device truck-1 runs its former steps" in says


def test_a_cut_for_devices_has_a_selector_and_a_cut() -> None:
    cuts = (("kind=truck,site!=north", "high,low"), ("d1", "cloud"))
    assert _cuts("edge", ["kind=truck,site!=north:high,low", "d1:cloud"]) == ("edge", cuts)
    for wrong in ("edge", ":edge", "kind=truck:", "a,b:edge"):
        with pytest.raises(GeartrainError, match=r"--device-cut|no device has two names"):
            _cuts("auto", [wrong])
