"""`gear scale`: the pause is told before the change, and it is waited for."""

from __future__ import annotations

import json

from tests.client.fake_platform import FakePlatform
from tests.client.talking import HOSTILE, SHOWN, Capture, add, gear

ANSWER = {"slots": 8, "former": 2, "micro_batches": 2, "pause_ms": 1_300}
PAUSE = "heat.3 pauses for 2 micro-batches, about 1.3 s as they take now, and longer with much state"


def test_the_pause_is_told_and_nothing_is_changed(platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    platform.change = ANSWER | {"refusals": []}
    out, err = gear(capsys, "scale", "heat", "--slots", "8", "--dry-run")
    assert out == "nothing was changed; heat.3 would go from 2 slots to 8\n"
    assert PAUSE in err
    assert platform.asked[-1][3] == {"slots": 8, "dry_run": True}
    platform.change["state_bytes"] = 21_449_000
    with_state = "about 1.3 s as they take now, and longer for 21.4 MB of state to move; no other app"
    assert with_state in gear(capsys, "scale", "heat", "--slots", "8", "--dry-run")[1]
    platform.change["refusals"] = ["its keys are dealt over 8 slots already"]
    out, err = gear(capsys, "scale", "heat", "--slots", "8", "--dry-run", code=2)
    assert (out, err) == ("", "gear: heat.3 would keep its slots: its keys are dealt over 8 slots already\n")
    gear(capsys, "scale", "heat", "--slots", "65", code=2)


def test_it_waits_until_the_keys_are_dealt(platform: FakePlatform, capsys: Capture) -> None:
    add(platform, slots=2, slots_now=2, devices={"assigned": 1, "applied": 1, "online": 1})
    platform.change, platform.crosses = ANSWER, {"slots": 8}
    platform.states.extend([{}, {}, {"slots_now": 8}])
    out, err = gear(capsys, "scale", "heat", "--slots", "8")
    assert out == "heat.3 has 8 slots: see gear info heat\n"
    assert PAUSE in err
    assert not platform.states
    assert "will have 8 slots" in gear(capsys, "scale", "heat", "--slots", "8", "--no-wait")[0]
    assert json.loads(gear(capsys, "scale", "heat", "--slots", "8", "--json")[0])["former"] == 2
    assert "slots: 8\n" in gear(capsys, "info", "heat")[0]
    keys = [{"key": HOSTILE, "share": 0.41}, {"key": "s2", "share": 0.2}]
    platform.apps["heat"] |= {
        "slots_now": 2,
        "skew": [{"step": "by_sensor", "slots": 2, "slot": 1, "share": 0.734, "keys": keys}],
    }
    shown = " ".join(gear(capsys, "info", "heat")[0].split())
    assert f"by_sensor 1 of 2 73% {SHOWN} 41%, s2 20%" in shown
    assert "slots: 2, going over to 8\n" in gear(capsys, "info", "heat")[0]
    platform.states.extend([{}, {"slots": 4}])
    assert "4 slots were asked for meanwhile" in gear(capsys, "scale", "heat", "--slots", "8", code=1)[1]
