"""The process that fetches code for a device imports nothing from the folder in which it is started."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from geartrain_edge.bundles.request import Answer
from geartrain_edge.parent.short_process import started
from tests.waiting import WAIT_S


def test_it_imports_no_module_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("msgspec", "ssl", "tuf"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the working folder')\n")
    monkeypatch.chdir(tmp_path)
    said, _ = started("geartrain_edge.bundles.fetch").communicate(b"{", timeout=WAIT_S)
    answer = msgspec.json.decode(said, type=Answer)
    assert answer.why.startswith("the request cannot be read")
