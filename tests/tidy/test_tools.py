"""Format, lint and types are clean, and the generated code is what the wire's schema generates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.source import ROOT

GENERATED = ("geartrain_pb2.py", "geartrain_pb2.pyi")
TOOLS = {
    "format": ("ruff", "format", "--check", "--no-cache", "."),
    "lint": ("ruff", "check", "--no-cache", "."),
    "types": ("mypy",),
}


@pytest.mark.slow
@pytest.mark.parametrize("tool", TOOLS)
def test_tool_finds_nothing(tool: str) -> None:
    command = [sys.executable, "-m", *TOOLS[tool]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_generated_code_is_in_step_with_the_schema(tmp_path: Path) -> None:
    subprocess.run(
        [str(ROOT / "scripts" / "generate-protobuf"), str(tmp_path)],
        env=os.environ | {"PYTHON": sys.executable},
        timeout=120,
        check=True,
    )
    for name in GENERATED:
        fresh = (tmp_path / "geartrain" / "wire" / name).read_text(encoding="utf-8")
        kept = (ROOT / "protocol" / "geartrain" / "wire" / name).read_text(encoding="utf-8")
        assert fresh == kept, f"{name} is out of step: run scripts/generate-protobuf"
