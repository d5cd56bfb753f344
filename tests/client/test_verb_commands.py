"""`gear attach`, `gear replace` and `gear remove`: updates that may change named steps alone."""

from __future__ import annotations

import json

from geartrain.revision import code_of
from tests.client.fake_platform import FakePlatform
from tests.client.talking import Capture, add, gear

CHANGE = {"number": 2, "change": {"steps": [{"step": "means", "what": "attached"}]}, "refusals": []}

DROPPED = {"step": "means", "what": "removed", "state": "dropped"}


def test_attach_and_replace_send_the_flow_and_which_steps_may_differ(
    flow: str, platform: FakePlatform, capsys: Capture
) -> None:
    add(platform)
    platform.change = CHANGE
    out = gear(capsys, "attach", "heat", flow, "means", "means_table", "--dry-run")[0]
    assert "means attached" in " ".join(out.split())
    body = {"flow": flow, "code": code_of(flow).hash, "dry_run": True}
    assert platform.asked[-1][2:] == (
        platform.asked[-1][2],
        body | {"only": ["attached"], "steps": ["means", "means_table"]},
    )
    more = ("--dry-run", "--drop-state", "high")
    gear(capsys, "replace", "heat", flow, "high", *more)
    assert platform.asked[-1][3] == body | {
        "only": ["replaced"],
        "steps": ["high"],
        "drop_state": ["high"],
    }
    platform.change = CHANGE | {"refusals": ["steps would change that were not named: high replaced"]}
    said = gear(capsys, "attach", "heat", flow, "means", "--dry-run", code=2)[1].splitlines()[-1]
    assert said == "gear: heat.3 would not go over: steps would change that were not named: high replaced"
    found = gear(capsys, "attach", "heat", flow, "means", "--dry-run", "--json", code=2)[0]
    assert json.loads(found)["number"] == 2


def test_where_an_attached_step_begins_is_sent(flow: str, platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    platform.change = CHANGE
    for begin in ("earliest", "2026-01-05T09:00:00Z"):
        gear(capsys, "attach", "heat", flow, "means", "--from", begin, "--dry-run")
        assert platform.asked[-1][3]["from"] == begin
    gear(capsys, "attach", "heat", flow, "means", "--from", "now", "--dry-run")
    assert "from" not in platform.asked[-1][3]
    said = gear(capsys, "attach", "heat", flow, "means", "--from", "soon", "--dry-run", code=2)[1]
    assert said.startswith("gear: --from soon: write now, earliest or a time: ")


def test_remove_names_the_code_that_runs(platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    platform.apps["heat"] |= {"code": "ab" * 32, "flow": "heat:flow"}
    platform.change = CHANGE
    gear(capsys, "remove", "heat", "means", "high", "--dry-run")
    assert platform.asked[-1][3] == {
        "flow": "heat:flow",
        "code": "ab" * 32,
        "only": ["removed"],
        "without": ["means", "high"],
        "dry_run": True,
    }
    platform.change = {"number": 2, "change": {"steps": [DROPPED]}, "refusals": []}
    out = gear(capsys, "remove", "heat", "means", "--drain", "--dry-run")[0]
    assert platform.asked[-1][3]["drain"] is True
    assert "means removed put out, then dropped" in " ".join(out.split())
    kept = {"step": "means", "tier": "cloud", "becomes": "dropped", "cells": 40, "bytes": 1_600, "unsaid": 0}
    platform.change["state"] = [kept, kept | {"tier": "edge", "cells": None, "bytes": None, "unsaid": 2}]
    out = gear(capsys, "remove", "heat", "means", "--dry-run")[0]
    said = "in the data centre: 40 cells, 1.6 kB; on devices: how much that is has not been told yet"
    assert said in " ".join(out.replace("│", " ").split())
    assert "gear remove heat means --dry-run" in gear(capsys, "remove", "--help")[0]
