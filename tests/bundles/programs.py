"""Programs of a device for tests: this checkout's own, some of them with a fault planted in one file.

What they import besides is found where it is installed.
"""

from __future__ import annotations

from pathlib import Path

from geartrain.adapters.machine import machine
from geartrain.bundle import pack_program

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("protocol/geartrain", "devices/geartrain_devices", "edge/geartrain_edge")
PROCESS, LANE = "geartrain_edge/agent/process.py", "geartrain_edge/parent/lane.py"
FAULTS = {
    "good": (PROCESS, "", ""),
    "better": (PROCESS, "", "# better\n"),
    "exits": (PROCESS, "import gc\n", "raise SystemExit(0)\n"),
    "raises": (PROCESS, "import gc\n", "raise RuntimeError('no such module')\n"),
    "hangs": (PROCESS, "import gc\n", "import time; time.sleep(3_600)\n"),
    "deaf": (LANE, "await connection.subscribe(desired_topic(self._device))", "await asyncio.sleep(3_600)"),
    "starves": ("geartrain_edge/agent/main.py", "    log_to_stderr()\n", "    os._exit(9)\n"),
}
"""A file, what stands there, and what takes its place; with nothing there it is put before all else."""


def program(kind: str, version: str = "0.2.1", **where: str) -> tuple[str, bytes]:
    """Its hash, and the archive."""
    files = {
        path.relative_to((ROOT / part).parent).as_posix(): path.read_bytes()
        for part in PARTS
        for path in (ROOT / part).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    name, old, new = FAULTS[kind]
    text = files[name].decode()
    assert old in text
    files[name] = (text.replace(old, new) if old else f"{new}{text}").encode()
    about = "geartrain/__init__.py"
    files[about] = files[about].replace(b'"0.2.0"', f'"{version}"'.encode())
    python, architecture = machine().split(" ")
    about_it = {"version": version, "python": python, "architecture": architecture} | where
    manifest, archive = pack_program(files, **about_it)
    return manifest.code, archive
