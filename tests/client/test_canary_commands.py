"""`gear update --canary` and `--promote`: what is asked for, and how a canary is shown."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.fake_platform import FakePlatform
from tests.client.talking import HOSTILE, SHOWN, Capture, add, gear

CANARY: dict[str, Any] = {
    "number": 2,
    "stage": "runs",
    "count": 2,
    "crossed": 1,
    "devices": ["truck-1", HOSTILE],
    "until_us": 1_767_225_600_000_000,
    "is_open": True,
}


def test_a_canary_is_begun_and_ended(flow: str, platform: FakePlatform, capsys: Capture) -> None:
    add(platform)
    platform.change = {"number": 2, "canary": ["truck-1"], "devices": ["truck-1", "truck-2"]}
    words = ("--canary", "kind=first", "--for", "30m", "--no-wait")
    out = gear(capsys, "update", "heat", flow, *words)[0]
    assert out == (
        f"heat.3 will run code {'cd' * 6} on 1 of 2 devices as revision 2, and the others follow if these do "
        "well: see gear info heat\n"
    )
    body = platform.asked[-1][3]
    assert (body["canary"], body["for_s"], body["flow"]) == ("kind=first", 1_800.0, flow)
    platform.change = {"number": 3, "canary": ["truck-1"]}
    out = gear(capsys, "update", "heat", "--promote", "--no-wait")[0]
    assert "heat.3 will run code cdcdcdcdcdcd in place of efefefefefef as revision 3, for 1 device" in out
    assert platform.asked[-1][1].endswith("/apps/heat/promote")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("heat",), "gear update heat: name the flow or its project, or write --promote"),
        (("heat", "FLOW", "--for", "5m"), "write --canary SELECTOR, too"),
        (("heat", "FLOW", "--canary", "a", "--for", "5"), "--for 5: write a number above 0 with its unit"),
        (("heat", "FLOW", "--promote"), "leave the flow and all other options out"),
        (("heat", "--promote", "--cut", "edge"), "leave the flow and all other options out"),
    ],
)
def test_what_does_not_go_together_is_refused(
    flow: str, platform: FakePlatform, capsys: Capture, words: tuple[str, ...], says: str
) -> None:
    add(platform)
    before = len(platform.asked)
    said = gear(capsys, "update", *(flow if one == "FLOW" else one for one in words), code=2)[1]
    assert says in " ".join(said.split())
    assert len(platform.asked) == before


def test_info_says_how_a_canary_stands(platform: FakePlatform, capsys: Capture) -> None:
    add(platform)

    def shown(**other: Any) -> str:
        platform.of("heat")["canary"] = CANARY | other
        lines = gear(capsys, "info", "heat")[0].splitlines()
        return next(line for line in lines if line.startswith("canary: "))

    there = f"truck-1, {SHOWN}"
    assert shown() == f"canary: revision 2 runs on 1 of 2 devices ({there}), until 2026-01-01T00:00:00Z"
    assert shown(until_us=None) == f"canary: revision 2 waits for its number, for {there}"
    why = "device truck-1 has failed: it raised"
    assert shown(stage="went back", why=why) == f"canary: revision 2 went back: {why}"
