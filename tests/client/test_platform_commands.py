"""The commands that ask a platform, as a person meets them, against one that speaks what was agreed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from geartrain.records.event_time import END_OF_TIME
from geartrain.revision import Revision
from geartrain_client.terminal.screen import REPORT_WIDTH
from tests.client import fake_platform as fake
from tests.client.fake_platform import FakePlatform
from tests.client.talking import HOSTILE, SHOWN, Capture, add, gear
from tests.waiting import WAIT_S


def test_submit_sends_what_was_planned_here(flow: str, platform: FakePlatform, capsys: Capture) -> None:
    platform.devices["truck-1"] = {"name": "truck-1", "labels": {"kind": "truck"}}
    selected = ["--devices", "kind=truck", "--cut", "edge", "--no-wait"]
    out, err = gear(capsys, "submit", flow, *selected)
    assert out == ""
    assert err == f"submitted heat.1, revision {'ab' * 6}, for 1 device: truck-1\n"
    [(method, path, headers, body)] = platform.asked
    assert (method, path, headers["content-type"]) == ("POST", "/api/v1/apps", "application/json")
    revision = Revision.from_json(json.dumps(body.pop("revision")))
    assert body == {"name": "heat", "flow": flow, "cut": "edge", "devices": "kind=truck", "set": {}}
    assert revision.flow == flow
    assert revision.cut == ("readings", "hot")
    assert list(revision.code.files) == ["heat_of_the_client.py"]


def test_submit_carries_settings_names_and_what_is_not_checked(
    platform: FakePlatform, capsys: Capture
) -> None:
    given = ["--set", "a.path=/x=y", "--device-set", "d1:a.path=/d1", "--device-set", "d1:b.n=2"]
    out, _ = gear(
        capsys, "submit", "not_here:flow", "--unchecked", "--name", "n", *given, "--no-wait", "--json"
    )
    body = platform.asked[-1][3]
    assert body["set"] == {"a.path": "/x=y"}
    assert body["device_set"] == {"d1": {"a.path": "/d1", "b.n": "2"}}
    assert (body["name"], body["revision"]) == ("n", {})
    assert json.loads(out)["instance"] == "n.1"


def test_submit_has_cuts_follow_the_devices(flow: str, platform: FakePlatform, capsys: Capture) -> None:
    gear(capsys, "submit", flow, "--no-wait", "--cut", "adaptive", "--device-cut", "kind=old:cloud")
    body = platform.asked[-1][3]
    cuts = [{"devices": "all", "cut": "adaptive"}, {"devices": "kind=old", "cut": "cloud"}]
    assert (body["cut"], body["device_cuts"]) == ("auto", cuts)


def test_submit_says_how_long_rows_stay(platform: FakePlatform, capsys: Capture) -> None:
    given = ["submit", "not_here:flow", "--unchecked", "--no-wait", "--name", "one"]
    gear(capsys, *given, "--retain", "30d", "--retain-bytes", "1.5kB", "--retain-tables", "12h")
    body = platform.asked[-1][3]
    kept = (body["retain_s"], body["retain_bytes"], body["retain_tables_s"])
    assert kept == (30 * 86_400, 1_500, 43_200)
    platform.apps.clear()
    gear(capsys, *given, "--retain", "all")
    assert not {"retain_s", "retain_bytes", "retain_tables_s"} & set(platform.asked[-1][3])


def test_submit_asks_for_a_query_and_says_what_the_platform_notes(
    platform: FakePlatform, capsys: Capture
) -> None:
    given = ["submit", "not_here:flow", "--unchecked", "--no-wait", "--name"]
    _, err = gear(capsys, *given, "one", "--isolation", "own")
    assert platform.asked[-1][3]["isolation"] == "own"
    assert err.count("\n") == 1
    _, err = gear(capsys, *given, "deep")
    assert "isolation" not in platform.asked[-1][3]
    assert err.splitlines()[1] == "deep.2: it has 3 shuffles"
    assert "query: its own" in gear(capsys, "info", "one")[0]
    assert json.loads(gear(capsys, "list", "--json")[0])[0]["isolation"] in ("own", "shared")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["not_here:flow"], "there is no module 'not_here'"),
        (["not_here:flow", "--unchecked"], "give the app a name with --name"),
        (["heat_of_the_client:flow", "--cut", "dance"], "flow heat has no step 'dance'"),
        (["heat_of_the_client:flow", "--set", "hot=1"], "write STEP.OPTION=VALUE"),
        (
            ["heat_of_the_client:flow", "--set", "hot.dance=1"],
            "this step has no options, so dance cannot be set",
        ),
        (["heat_of_the_client:flow", "--device-set", "a.b=1"], "write DEVICE:STEP.OPTION=VALUE"),
        (
            ["heat_of_the_client:flow", "--device-set", "d:dance.b=1"],
            "--device-set of d: flow heat has no step 'dance'",
        ),
        (["heat_of_the_client:flow", "--timeout", "soon"], "--timeout soon: write a number above 0"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_sent(
    arguments: list[str], sentence: str, flow: str, platform: FakePlatform, capsys: Capture
) -> None:
    _, err = gear(capsys, "submit", *arguments, code=2)
    assert sentence in err
    assert err.count("\n") == 1
    assert platform.asked == []


def test_submit_waits_until_it_runs_where_it_can(flow: str, platform: FakePlatform, capsys: Capture) -> None:
    platform.states.extend(
        [
            {"state": "starting", "waits_for": ["Spark is starting"]},
            {"state": "running", "devices": {"assigned": 3, "applied": 0, "online": 2}, "waits_for": []},
            {"devices": {"assigned": 3, "applied": 1, "online": 2}},
            {"devices": {"assigned": 3, "applied": 2, "online": 2}},
        ]
    )
    platform.troubles.extend([lambda *_: False, *[fake.hang_up] * 6])  # control is gone for a while
    out, _ = gear(capsys, "submit", flow)
    assert out == (
        "heat.1 is running, applied by 2 of 3 devices; 1 out of contact: these start it when they come\n"
    )
    assert not platform.states


@pytest.mark.parametrize(
    ("letters", "told"), [(0, ""), (None, ""), (1_200, "; dead letters: 1,200, see gear deadletters ls")]
)
def test_submit_of_what_ends_tells_the_dead_letters(
    letters: int | None, told: str, flow: str, platform: FakePlatform, capsys: Capture
) -> None:
    platform.states.append({"state": "ended", "dead_letters": letters})
    out, _ = gear(capsys, "submit", flow)
    assert out == f"heat.1 has ended: all its sources came to their end{told}\n"


def test_submit_to_no_device_says_so(flow: str, platform: FakePlatform, capsys: Capture) -> None:
    platform.states.append({"state": "running"})
    out, err = gear(capsys, "submit", flow, "--devices", "kind=ship")
    assert "for no device yet: none fits its selector. Add one by gear device add" in err
    assert "it starts on each one that is added and fits its selector" in out


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"state": "failed", "why": "step hot: no"}, "gear: heat.1 failed: step hot: no\n"),
        (
            {"state": "starting", "waits_for": ["Spark is busy"]},
            "heat: not done within 0.05 s (it is starting; Spark is busy); it goes on by itself",
        ),
        ({"state": "running", "instance": "heat.2"}, "heat.1: it was killed before it ran"),
    ],
)
def test_a_wait_that_comes_to_nothing_ends_with_1(
    state: dict[str, Any], sentence: str, flow: str, platform: FakePlatform, capsys: Capture
) -> None:
    platform.states.append(state)
    _, err = gear(capsys, "submit", flow, "--timeout", "0.05s", code=1)
    assert sentence in err


def test_a_name_that_runs_is_refused(flow: str, platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    _, err = gear(capsys, "submit", flow, code=2)
    assert err == "gear: the app heat runs already: kill it first\n"


def test_ctrl_c_ends_the_waiting_and_says_so(flow: str, platform: FakePlatform) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "geartrain_client.cli", "submit", flow],
        env={name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    while len(platform.asked) < 2:  # it waits
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (130, "")
    assert first.startswith("submitted heat.1")
    assert err.splitlines()[-1] == "gear waits no longer; the platform goes on: see gear info heat"


def test_list_shows_every_app_of_every_page(platform: FakePlatform, capsys: Capture) -> None:
    assert gear(capsys, "list")[0] == "no app was submitted yet: gear submit MODULE:FLOW\n"
    add(platform, why=HOSTILE)
    for name in ("a", "b", "c"):
        platform.apps[name] = {"name": name, "instance": f"{name}.1", "state": "ended"}
    out, _ = gear(capsys, "list")
    for shown in ("heat.3", "running", "1/2", "cdcdcdcdcdcd", "m:flow", SHOWN, "a.1", "b.1", "c.1"):
        assert shown in out
    found = json.loads(gear(capsys, "list", "--json")[0])
    assert [one["name"] for one in found] == ["a", "b", "c", "heat"]
    assert found[3]["why"] == HOSTILE


def test_info_says_what_stands_where(platform: FakePlatform, capsys: Capture) -> None:
    add(
        platform,
        clocks=[
            {"source": "readings", "clock_us": 1_700_000_000_000_000, "held_by": ["d1", "d2", "d3", "d4"]},
            {"source": "doors", "clock_us": None, "held_by": []},
        ],
        applied=[{"device": "d1", "state": "running", "serial": 4, "why": HOSTILE}],
        rates={"log": {"records_per_s": 12.5, "bytes_per_day": 1_000_000}},
        lag={"rows": 70},
        dead_letters=2,
        refused_state=[{"step": "sums", "reason": f"the key is held {HOSTILE}", "cells": 1_200}],
        unread_rows={f"means{HOSTILE}": 2_500},
        notes=[{"table": "minutes", "field": "mean", "unit": "degC", "description": "of a day"}],
        waits_for=["device d2 is out of contact"],
        unknown={"more": 1},
    )
    out, _ = gear(capsys, "info", "heat")
    for shown in (
        "instance: heat.3\nstate: running\n",
        "devices: applied by 1 of 2, 1 in contact\n",
        "rate, log: records_per_s 12.5, bytes_per_day 1,000,000\n",
        "lag: rows 70\n",
        "dead letters: 2\n",
        f"1,200 keys of step sums: the key is held {SHOWN}; see gear deadletters ls\n",
        f"not read: 2,500 rows of channel means{SHOWN}, which no step reads since a revision\n",
        "waits for: device d2 is out of contact\n",
        "minutes   mean    degC   of a day",
        "2023-11-14T22:13:20Z",
        "d1, d2, d3 and 1 more",
        "not yet",
        SHOWN,
    ):
        assert shown in out
    assert json.loads(gear(capsys, "info", "heat", "--json")[0])["unknown"] == {"more": 1}
    assert "there is no app 'cold'" in gear(capsys, "info", "cold", code=2)[1]


def test_an_answer_of_another_version_is_a_sentence(platform: FakePlatform, capsys: Capture) -> None:
    add(platform, devices="all of them")
    _, err = gear(capsys, "info", "heat", code=1)
    assert "the platform sent what gear does not know" in err
    assert "install the same version of both" in err


def test_logs_are_shown_as_text(platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    platform.lines = [{"process": "gear-spark", "line": f"{HOSTILE} {number}"} for number in range(5)]
    out, _ = gear(capsys, "logs", "heat", "--lines", "2")
    assert out == f"gear-spark  {SHOWN} 3\ngear-spark  {SHOWN} 4\n"
    assert json.loads(gear(capsys, "logs", "heat", "--json")[0])[0]["line"] == f"{HOSTILE} 0"


def test_query_shows_the_state_of_a_key(platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    place = {"instance": "heat.3", "positions": {"0": 17}, "clock_us": 1_000_000, "answered_us": 3_500_000}
    platform.told = place | {"found": True, "state": {"count": 3, "last": HOSTILE, "more": {"a": 1}}}
    out, _ = gear(capsys, "query", "heat", "jams", "street-7")
    for shown in ("count", SHOWN, '{"a": 1}', 'positions: {"0": 17} of heat.3\n'):
        assert shown in out
    assert "clock: 1970-01-01T00:00:01" in out
    assert ", 2.5 s ago\n" in out
    for seconds, shown in ((119, "119.0 s"), (180, "3 min"), (9_000, "2 h"), (28_086_090, "325 days")):
        platform.told["answered_us"] = 1_000_000 + seconds * 1_000_000
        assert f", {shown} ago\n" in gear(capsys, "query", "heat", "jams", "street-7")[0]
    silent = [{"device": "d1", "seen_us": 28_086_089_500_000}, {"device": HOSTILE, "seen_us": None}]
    platform.told["silent"] = silent
    says = gear(capsys, "query", "heat", "jams", "street-7")[1]
    assert "device d1 has not answered, heard last 1.5 s ago\n" in says
    assert f"device {SHOWN} has not answered, not heard of yet\n" in says
    del platform.told["silent"]
    out, _ = gear(capsys, "query", "heat", "jams", "street-7")
    assert platform.asked[-1][1].endswith("/apps/heat/steps/jams/state?key=street-7&wait_s=30")
    platform.told |= {"run": 2, "clock_us": None, "state": 7, "timers_us": [0, 1, 2, 3], "forgets_us": 5}
    out, _ = gear(capsys, "query", "heat", "jams", "7")
    assert out.startswith("7\nnext timer: 1970-01-01T00:00:00")
    for shown in ("and 1 more\n", "forgotten at: 1970-", "clock: not yet\n", "of heat.3, run 2\n"):
        assert shown in out
    window = {"start_us": 0, "end_us": 10_000_000, "result": {"n": 4, "top": None}}
    platform.told = place | {"found": True, "windows": [window], "clock_us": END_OF_TIME}
    out, _ = gear(capsys, "query", "heat", "jams", "7")
    for shown in ("Open windows", "top", "1970-01-01T00:00:10", "clock: ended\n"):
        assert shown in out
    found = json.loads(gear(capsys, "query", "heat", "jams", "7", "--json")[0])
    assert (found["windows"], found["key"]) == ([window], "7")


def test_query_without_a_state_or_a_key_says_so(platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    platform.told = {"instance": "heat.3", "found": False}
    out, err = gear(capsys, "query", "heat", "jams", "nobody")
    assert (err, out) == ("jams keeps nothing of nobody\n", "clock: not yet\npositions: {} of heat.3\n")
    assert gear(capsys, "query", "heat", "jams")[1] == "jams keeps no key yet\n"
    platform.told = {"found": True, "keys": ["a", ["b", 1]]}
    out, err = gear(capsys, "query", "heat", "jams", "--timeout", "3s")
    assert '["b", 1]' in out
    assert "name one" in err
    assert platform.asked[-1][1].endswith("/state?wait_s=3")
    assert "there is no app 'cold'" in gear(capsys, "query", "cold", "jams", "a", code=2)[1]


def test_kill_waits_for_the_end(platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    platform.states.extend([{}, {}, {}, {"state": "ended"}])
    assert gear(capsys, "kill", "heat")[0] == "heat.3 has ended; its tables stay\n"
    assert platform.asked[1][3] == {"mode": "drain", "purge": False}
    add(platform)
    out, err = gear(capsys, "kill", "heat", "--now", "--purge", "--no-wait")
    assert (out, err) == ("", "heat.3 will be killed (now): see gear info heat\n")
    assert platform.asked[-1][3] == {"mode": "now", "purge": True}


def test_kill_of_an_app_that_is_gone_at_once_has_ended(platform: FakePlatform, capsys: Capture) -> None:
    add(platform)

    def gone(handler: fake.Handler, usual: Any) -> bool:
        usual()
        platform.apps.clear()
        handler.send(202, {})
        return True

    platform.troubles.extend([lambda *_: False, gone])
    assert gear(capsys, "kill", "heat", "--purge")[0] == "heat.3 has ended; its tables are gone\n"


def test_kill_with_purge_waits_until_an_app_that_has_ended_is_gone(
    platform: FakePlatform, capsys: Capture
) -> None:
    add(platform)
    asked = list[str]()

    def killed(_: fake.Handler, usual: Any) -> bool:
        usual()
        platform.apps["heat"].update(state="ended")
        return False

    def looked(_: fake.Handler, __: Any) -> bool:
        asked.append(platform.apps["heat"]["state"])
        if len(asked) == 3:
            platform.apps.clear()
        return False

    platform.troubles.extend([lambda *_: False, killed, looked, looked, looked])
    assert gear(capsys, "kill", "heat", "--purge")[0] == "heat.3 has ended; its tables are gone\n"
    assert asked == ["ended"] * 3


def test_replay_begins_a_run(platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    assert gear(capsys, "replay", "heat")[0].startswith("heat: run 2 begins at the beginning of the log")
    assert json.loads(gear(capsys, "replay", "heat", "--json")[0]) == {"run": 2}


def test_retain_says_how_long_rows_stay(platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    said = gear(capsys, "retain", "heat", "--age", "30d", "--size", "2GB", "--tables", "90d")[0]
    assert said == (
        "rows of heat.3 stay in the log: 30 days and 2,000,000,000 bytes\n"
        "rows of heat.3 stay in tables: 90 days\n"
    )
    made = json.loads(gear(capsys, "retain", "heat", "--age", "all", "--json")[0])
    assert (made["age_s"], made["bytes"]) == (0, 2_000_000_000)
    said = gear(capsys, "retain", "heat", "--age", "20s", "--tables", "90m")[0]
    assert "stay in the log: 20 s and 2,000,000,000 bytes\n" in said
    assert "stay in tables: 1.5 h\n" in said
    said = gear(capsys, "retain", "heat", "--age", "all", "--size", "all")[0]
    assert said.startswith("rows of heat.3 stay in the log: as long as the platform's configuration says\n")
    platform.apps["heat"]["retention"] = {
        "age_s": 172_800.0,
        "bytes": 5_000,
        "log_bytes": 4_000,
        "log_bytes_per_day": 500.0,
        "days_to_limit": 2.0,
        "tables_age_s": 86_400.0,
        "tables_removed": 1_200,
        "log_span_s": 86_400.0,
    }
    platform.apps["heat"]["cost"] = {
        "span_s": 600.0,
        "link_bytes_per_day": 700,
        "disk_bytes": 9_000,
        "disk_bytes_per_day": 800,
        "disk_free_bytes": 10**6,
        "days_to_full": 12.5,
    }
    said = gear(capsys, "info", "heat")[0]
    assert "link: 700 bytes a day, by the last 10 min\n" in said
    assert "log: 4,000 bytes, 500 bytes a day, by the last 24 h\n" in said
    assert "disk: 9,000 bytes, grows 800 bytes a day, by the last 10 min; 1,000,000 are free, which" in said
    assert "are free, which all programs here use up in 12.5 days\n" in said
    platform.apps["heat"]["cost"]["disk_bytes_per_day"] = -800
    assert "disk: 9,000 bytes, shrinks by 800 bytes a day, by the last" in gear(capsys, "info", "heat")[0]
    assert "kept in the log: 2 days and 5,000 bytes, which are reached in 2.0 days\n" in said
    assert "kept in tables: 1 days, 1,200 rows have gone\n" in said
    assert "say how long rows stay: --age 30d" in gear(capsys, "retain", "heat", code=2)[1]
    assert (
        "--size 2: write a number above 0 with its unit"
        in gear(capsys, "retain", "heat", "--size", "2", code=2)[1]
    )


def test_resume_waits_until_the_app_runs(platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    platform.apps["heat"]["state"] = "failed"
    assert gear(capsys, "resume", "heat")[0] == "heat.3 runs\n"
    said = json.loads(gear(capsys, "resume", "heat", "--no-wait", "--json")[0])
    assert said == {"name": "heat", "instance": "heat.3", "state": "starting"}
    assert gear(capsys, "resume", "heat", "--no-wait")[1] == "heat.3 will be resumed: see gear info heat\n"


CHANGE = {
    "steps": [
        {"step": "again", "what": "attached"},
        {"step": "alarms", "what": "replaced", "says": ["its option above was 3, is now 4"], "state": "kept"},
        {"step": "counts", "what": "removed", "state": "dropped"},
        {"step": "order", "what": "same", "state": "kept"},
    ],
    "tables": [
        {"table": "again", "what": "new"},
        {"table": "counts", "what": "stays"},
        {"table": "alarms", "what": "changes", "says": ["column 'note' is added"]},
    ],
    "code": ["file heat.py has changed"],
    "drops": ["counts"],
}


def test_an_update_is_shown_before_it_is_made(flow: str, platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    platform.change = {"number": 2, "change": CHANGE, "refusals": []}
    out, err = gear(capsys, "update", "heat", flow, "--dry-run", "--drop-state", "counts", "--only", "attach")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "again attached" in lines
    assert "alarms replaced kept its option above was 3, is now 4" in lines
    assert "counts removed dropped" in lines
    assert "order same kept" in lines
    assert "table again: is made with the first row" in lines
    assert "table counts: stays as it is, and gets no more rows" in lines
    assert "table alarms: its columns change; column 'note' is added" in lines
    assert lines[-1] == f"nothing was changed; heat.3 would run code {'cd' * 6} as revision 2"
    assert err == "code: file heat.py has changed\n"
    body = platform.asked[-1][3]
    assert (body["flow"], body["drop_state"], body["dry_run"]) == (flow, ["counts"], True)
    assert body["only"] == ["attached"]
    platform.change["refusals"] = ["step a cannot keep its state", "step b neither"]
    said = gear(capsys, "update", "heat", flow, "--dry-run", code=2)[1].splitlines()[-1]
    assert said == "gear: heat.3 would not go over: step a cannot keep its state; step b neither"
    assert json.loads(gear(capsys, "rollback", "heat", "--dry-run", "--json", code=2)[0])["number"] == 2


def test_an_update_is_shown_in_lines_that_a_screen_holds(
    flow: str, platform: FakePlatform, capsys: Capture
) -> None:
    add(platform)
    says = [f"its option limit_{number} was {number}, is now {number + 1}" for number in range(20)]
    alarms = {"step": "alarms", "what": "replaced", "says": says, "state": "kept"}
    code = [f"file flows/part_{number}.py has changed" for number in range(20)]
    change = CHANGE | {"steps": [alarms], "code": code}
    platform.change = {"number": 2, "change": change, "refusals": []}
    out, err = gear(capsys, "update", "heat", flow, "--dry-run")
    assert max(map(len, [*out.splitlines(), *err.splitlines()])) <= REPORT_WIDTH
    said = " ".join(out.replace("│", " ").split()), " ".join(err.split())
    assert all(name in said[1] for name in code)
    assert "limit_19" in said[0]


def test_an_update_waits_until_its_revision_is_in_force(
    flow: str, platform: FakePlatform, capsys: Capture
) -> None:
    add(platform)
    platform.change = {"number": 2, "change": CHANGE}
    platform.crosses = {"state": "running", "change": {"number": 2, "stage": "being prepared", "why": ""}}
    stages = [{"number": 2, "stage": stage, "why": "no partition"} for stage in ("prepared", "being logged")]
    platform.states.extend([{}, {}, *({"change": one} for one in stages), {"change": None, "number": 2}])
    out = gear(capsys, "update", "heat", flow)[0]
    ran = (
        f"heat.3 runs code {'cd' * 6} in place of {'ef' * 6} as revision 2, for 1 device: see gear info heat"
    )
    assert out.splitlines()[-1] == ran
    assert not platform.states
    platform.crosses = {"change": {"number": 3, "stage": "being prepared", "why": "flow heat: it raises"}}
    platform.change = {"number": 3}
    said = gear(capsys, "update", "heat", flow, code=1)[1].splitlines()[-1]
    assert "revision 3 cannot be prepared, and it runs as before: flow heat: it raises; update it" in said
    assert "gear rollback heat" in said
    assert (
        "2, in force; revision 3 is being prepared: flow heat: it raises" in gear(capsys, "info", "heat")[0]
    )
    platform.crosses = {"state": "failed", "why": "it raised"} | platform.crosses
    assert "heat.3 failed: it raised" in gear(capsys, "update", "heat", flow, code=1)[1]
    platform.crosses = {"state": "running", "change": None}
    platform.change = {"number": 2, "given_up": 3}
    out = gear(capsys, "rollback", "heat")[0]
    assert out == "heat.3 stays at revision 2; revision 3 is given up\n"
    platform.change = {"number": 3}
    said = gear(capsys, "update", "heat", flow, code=1)[1].splitlines()[-1]
    assert said == "gear: heat.3: revision 3 was given up: see gear revisions heat"


def test_revisions_are_listed(platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    one = {"flow": "heat:flow", "code": "ab" * 32, "drops": []}
    platform.revisions = [
        one
        | {"number": 2, "made_us": 1_767_225_600_000_000, "state": "in force", "drops": ["counts"]}
        | {"code_before": "cd" * 32},
        one | {"number": 1, "made_us": 1_767_225_500_000_000, "state": "former"},
    ]
    lines = [" ".join(line.split()) for line in gear(capsys, "revisions", "heat")[0].splitlines()]
    assert f"2 in force 2026-01-01T00:00:00Z heat:flow {'ab' * 6} {'cd' * 6} counts" in lines
    assert json.loads(gear(capsys, "revisions", "heat", "--json")[0]) == platform.revisions


def test_a_device_is_added_with_its_file(platform: FakePlatform, capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "truck-1.toml"
    labels = ["--label", "kind=truck", "--label", "site=north"]
    out, _ = gear(capsys, "device", "add", "truck-1", *labels, "--output", str(file))
    assert out.endswith("and start gear-agent --device truck-1.toml\n")
    assert platform.asked[-1][3] == {"name": "truck-1", "labels": {"kind": "truck", "site": "north"}}
    assert file.stat().st_mode & 0o777 == 0o600
    held = {"device": "truck-1", "broker": "127.0.0.1:1883", "state": 'st"ate\x7f\n', "tls": {"ca": "ca.pem"}}
    assert tomllib.loads(file.read_text()) == held

    assert "is there already" in gear(capsys, "device", "add", "b", "--output", str(file), code=2)[1]
    assert "b" not in platform.devices
    assert tomllib.loads(gear(capsys, "device", "add", "b")[0])["device"] == "b"
    out, _ = gear(capsys, "device", "add", "c", "--local")
    assert (out, platform.asked[-1][3]["local"]) == ("added c: gear up runs it on its own machine\n", True)
    assert "was added already" in gear(capsys, "device", "add", "c", code=2)[1]
    assert "write KEY=VALUE" in gear(capsys, "device", "add", "d", "--label", "truck", code=2)[1]


def test_a_device_is_added_with_the_line_by_which_it_joins(
    platform: FakePlatform, capsys: Capture, tmp_path: Path
) -> None:
    platform.is_open = True
    out, err = gear(capsys, "device", "add", "truck-1", "--label", "kind=truck", "--expires", "2h")
    assert out == "gear-agent join https://host.example:8443 secret-2 --ca-fingerprint sha256:ab\n"
    assert err == "added truck-1: run this there once, before 2023-11-14T22:13:20Z\n"
    assert platform.asked[-1][1].endswith("/devices/truck-1/token")
    assert platform.asked[-1][3] == {"expires_s": 7_200.0}
    found = json.loads(gear(capsys, "device", "add", "truck-2", "--json")[0])
    assert found["join"]["token"] == "secret-4"
    out, _ = gear(capsys, "device", "token", "truck-1")
    assert " secret-5 " in out
    assert "there is no device 'x'" in gear(capsys, "device", "token", "x", code=2)[1]
    assert "--expires 3" in gear(capsys, "device", "token", "truck-1", "--expires", "3", code=2)[1]
    assert tomllib.loads(gear(capsys, "device", "add", "b", "--file")[0])["device"] == "b"
    file = tmp_path / "join.toml"
    for words in (("add", "c"), ("token", "truck-1")):
        out, err = gear(capsys, "device", *words, "--output", str(file))
        held = tomllib.loads(file.read_text())
        assert list(held) == ["url", "token", "ca_fingerprint"]
        assert held["token"] not in out + err
        assert "gear flash --join" in err
        assert file.stat().st_mode & 0o777 == 0o600
        assert "is there already" in gear(capsys, "device", *words, "--output", str(file), code=2)[1]
        file.unlink()

    out, _ = gear(capsys, "device", "revoke", "truck-1")
    assert out == "revoked 2 of truck-1; gear device token truck-1 lets it join anew\n"
    platform.broker_note = "start your broker anew"
    assert gear(capsys, "device", "revoke", "truck-1")[0].endswith("anew; start your broker anew\n")


def test_the_end_of_certificates_is_told(platform: FakePlatform, capsys: Capture) -> None:
    now_us, day_us = time.time_ns() // 1_000, 86_400_000_000
    platform.devices = {
        "a": {"certificate_until_us": now_us + 60 * day_us + day_us // 2, "joins_until_us": None},
        "b": {"certificate_until_us": None, "joins_until_us": now_us + day_us},
        "c": {"certificate_until_us": None, "joins_until_us": None},
        "d": {"certificate_until_us": None, "joins_until_us": None, "local": True},
        "e": {"certificate_until_us": now_us + day_us, "joins_until_us": None, "clones": f"e {HOSTILE}"},
    }
    for name, device in platform.devices.items():
        device.update(name=name, labels={})
    lines = gear(capsys, "device", "ls")[0].splitlines()
    shown = {line.split()[0]: line.rstrip() for line in lines if line.split()}
    assert shown["a"].endswith("60 days left")
    assert "joins within 23 h" in shown["b"]
    assert shown["c"].endswith("none")
    assert "none" not in shown["d"]
    assert f"alarm: e {SHOWN}" in lines


def test_devices_are_listed_shown_labelled_and_retired(platform: FakePlatform, capsys: Capture) -> None:
    assert "no device was added yet" in gear(capsys, "device", "ls")[0]
    for name in ("a", "b", "c"):
        gear(capsys, "device", "add", name, "--label", f"kind={'truck' if name == 'b' else 'ship'}")
    out = gear(capsys, "device", "ls")[0]
    for shown in ("a", "b", "c", "kind=truck", "offline", "never", "0/1"):
        assert shown in out
    found = json.loads(gear(capsys, "device", "ls", "--label", "kind=truck", "--json")[0])
    assert [one["name"] for one in found] == ["b"]
    assert "no device fits" in gear(capsys, "device", "ls", "--label", "kind=plane")[0]

    platform.kept = [{"name": "heat", "selector": f"kind={HOSTILE}"}]
    out = gear(capsys, "device", "label", "b", "site=north", "kind-")[0]
    assert f"b keeps app heat, though kind={SHOWN} matches it no longer: it runs there until" in out
    assert "kept:" not in out
    assert platform.asked[-1][3] == {"labels": {"site": "north", "kind": None}}
    assert platform.devices["b"]["labels"] == {"site": "north"}
    assert "KEY- to take it away" in gear(capsys, "device", "label", "b", "=", code=2)[1]

    platform.devices["b"]["note"] = HOSTILE
    platform.devices["b"]["seen_us"] = 0
    out = gear(capsys, "device", "show", "b")[0]
    assert "labels: site=north\n" in out
    assert "seen: never\n" in out
    assert f"note: {SHOWN}\n" in out
    assert gear(capsys, "device", "accept", "b")[0].startswith("b will take what the platform wants of it")
    assert platform.asked[-1][1].endswith("/devices/b/accept")
    assert gear(capsys, "device", "retire", "b")[0].startswith("b is retired: it holds no clock")
    assert "retired" in gear(capsys, "device", "ls")[0]
    assert "there is no device 'x'" in gear(capsys, "device", "retire", "x", code=2)[1]


def test_status_names_each_process(platform: FakePlatform, capsys: Capture) -> None:
    platform.processes = [
        {
            "name": "gear-spark",
            "state": "starting",
            "pid": 17,
            "restarts": 2,
            "rss_bytes": 300 << 20,
            "cpu_percent": 12.4,
            "version": "0.2.0",
            "waits_for": "the log",
            "since_us": 5,
        },
        {"name": "broker", "state": "down", "pid": None, "rss_bytes": None, "waits_for": None},
    ]
    out = gear(capsys, "status")[0]
    assert out.startswith(f"platform 0.2.0 at {platform.url}\n")
    spark = next(line for line in out.splitlines() if "gear-spark" in line)
    assert " ".join(spark.split()) == "gear-spark starting 17 2 300 MiB 12 % 0.2.0 the log"
    assert json.loads(gear(capsys, "status", "--json")[0])["processes"] == platform.processes


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["info", "a"],
        ["logs", "a"],
        ["table", "a"],
        ["kill", "a"],
        ["replay", "a"],
        ["resume", "a"],
        ["retain", "a", "--age", "1d"],
        ["rollback", "a"],
        ["revisions", "a"],
        ["status"],
        ["device", "ls"],
        ["device", "add", "a"],
        ["device", "show", "a"],
        ["device", "label", "a", "b=c"],
        ["device", "retire", "a"],
        ["device", "accept", "a"],
        ["device", "token", "a"],
        ["device", "revoke", "a"],
        ["submit", "m:flow", "--unchecked", "--name", "a"],
    ],
)
def test_without_a_platform_each_command_says_how_to_start_one(
    arguments: list[str], tmp_path: Path, capsys: Capture
) -> None:
    _, err = gear(capsys, *arguments, "--state", str(tmp_path), code=1)
    assert err == (
        f"gear: no platform was started in {tmp_path}: start it with gear up, or name one with --url or "
        "GEARTRAIN_URL\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gear inf", ["info"]),
        ("gear device re", ["retire", "revoke"]),
        ("gear info h", ["heat"]),
        ("gear info x", []),
        ("gear table heat h", ["highs"]),
        ("gear device show tr", ["truck-1"]),
        ("gear kill heat --pur", ["--purge"]),
    ],
)
def test_the_shell_completes_commands_options_and_names(
    line: str, offered: list[str], highs: list[list[Any]], platform: FakePlatform
) -> None:
    platform.devices["truck-1"] = {"name": "truck-1", "labels": {}}
    words = line.split()
    asked = {"_GEAR_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    code = "import sys; from geartrain_client.cli import main; sys.exit(main([]))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == offered, done.stderr
