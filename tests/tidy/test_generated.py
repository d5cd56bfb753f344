"""The generated code is what the wire's schemas generate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.tidy.source import ROOT
from tests.waiting import WAIT_S

GENERATED = ("wire/geartrain_pb2.py", "wire/geartrain_pb2.pyi", "control/lane_pb2.py", "control/lane_pb2.pyi")


def test_generated_code_is_in_step_with_the_schema(tmp_path: Path) -> None:
    subprocess.run(
        [str(ROOT / "scripts" / "generate-protobuf"), str(tmp_path)],
        env=os.environ | {"PYTHON": sys.executable},
        timeout=WAIT_S,
        check=True,
    )
    for name in GENERATED:
        fresh = (tmp_path / "geartrain" / name).read_text(encoding="utf-8")
        kept = (ROOT / "protocol" / "geartrain" / name).read_text(encoding="utf-8")
        assert fresh == kept, f"{name} is out of step: run scripts/generate-protobuf"
