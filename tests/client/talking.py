"""How a test talks to `gear` about a platform: it runs a command, and adds an app for it to find."""

from __future__ import annotations

from typing import Any

import pytest

from geartrain_client.cli import main
from tests.client.fake_platform import FakePlatform

Capture = pytest.CaptureFixture[str]

HOSTILE = "a\x1b[2J\nb\u202e[bold]"
SHOWN = "a\\x1b[2J\\nb\\u202e[bold]"
"""Text of a device that would steer a terminal, and how it must be shown."""


def gear(capsys: Capture, *arguments: str, code: int = 0) -> tuple[str, str]:
    """What a command prints, on stdout and stderr; it ends with `code`, and steers no terminal."""
    got = main(arguments)
    said = capsys.readouterr()
    assert got == code, said.err
    assert "Traceback" not in said.err
    assert "\x1b" not in said.out + said.err
    return said.out, said.err


def add(platform: FakePlatform, **more: Any) -> dict[str, Any]:
    """An app that runs."""
    platform.apps["heat"] = {
        "name": "heat",
        "instance": "heat.3",
        "state": "running",
        "wanted": "running",
        "revision": "cd" * 32,
        "flow": "m:flow",
        "devices": {"assigned": 2, "applied": 1, "online": 1},
        "why": "",
        **more,
    }
    return platform.apps["heat"]
