"""What is preloaded into a program so that its disk fails or its clock jumps: `shim.c`, compiled when needed.

Under the scenarios. Needs a C compiler; where there is none, the scenario says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")


@cache
def compiled() -> str:
    """The path of the compiled shim."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "there is no C compiler, which this scenario needs: install gcc"
    built = Path(tempfile.mkdtemp(prefix="shim-")) / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", str(built), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return str(built)


def faulty_disk(path: str, once: Path | None = None, sync_ms: int = 0) -> dict[str, str]:
    """The environment of a program whose files of a name that holds `path` fail one sync, each time that the
    file `once` is made, or are slow to sync.
    """
    found = {"LD_PRELOAD": compiled(), "FAULTY_PATH": path}
    if once is not None:
        found["FAULTY_ONCE"] = str(once)
    if sync_ms:
        found["FAULTY_SYNC_MS"] = str(sync_ms)
    return found


def shifted_clock(file: Path) -> dict[str, str]:
    """The environment of a program whose wall clock is off by the seconds in `file`, whatever they become."""
    set_clock(file, 0)
    return {"LD_PRELOAD": compiled(), "FAULTY_CLOCK": str(file)}


def set_clock(file: Path, offset_s: int) -> None:
    """Have that clock jump."""
    fresh = file.with_suffix(".new")
    fresh.write_text(str(offset_s), encoding="ascii")
    fresh.replace(file)


def can_mount() -> bool:
    """Whether file systems can be mounted here, which needs root."""
    return os.geteuid() == 0 and shutil.which("mount") is not None
