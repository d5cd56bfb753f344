"""Wheels laid out as the virtual environment that pip would make, without running the target's Python.

So a container for another architecture is made on any machine. Guarantees: a file of a wheel never leaves the
environment, and the same wheels give the same files.
"""

from __future__ import annotations

import stat
import zipfile
from io import BytesIO
from pathlib import PurePosixPath

from geartrain.errors import MistakeError
from geartrain_client.flash.archive import Entry
from geartrain_client.flash.target import Target
from geartrain_client.flash.wheels import Wheels

VENV = "opt/geartrain/venv"
FILES_MAX = 50_000
BYTES_MAX = 1 << 30

_AGENT = """#!/{venv}/bin/python
import sys

from geartrain_edge.agent.process import main

sys.exit(main())
"""


def environment(target: Target, wheels: Wheels) -> dict[str, Entry]:
    """The files of the environment at `/opt/geartrain/venv`, by their paths; raises `MistakeError`."""
    packages = f"{VENV}/lib/python{target.python}/site-packages"
    entries = {
        f"{VENV}/pyvenv.cfg": Entry(b"home = /usr/bin\ninclude-system-site-packages = false\n"),
        f"{VENV}/bin/python": Entry(link=f"/usr/bin/python{target.python}"),
        f"{VENV}/bin/gear-agent": Entry(_AGENT.format(venv=VENV).encode(), 0o755),
    }
    room = BYTES_MAX
    for name, content in sorted(wheels.files.items()):
        with zipfile.ZipFile(BytesIO(content)) as wheel:
            for info in wheel.infolist():
                path = _place(name, info.filename)
                room -= info.file_size
                if room < 0 or len(entries) > FILES_MAX:
                    raise MistakeError(f"{name}: the wheels hold more than {BYTES_MAX >> 20} MiB")
                if path is not None and not info.is_dir():
                    runs = (info.external_attr >> 16) & stat.S_IXUSR
                    entries[f"{packages}/{path}"] = Entry(wheel.read(info), 0o755 if runs else 0o644)
    return entries


def _place(name: str, path: str) -> str | None:
    """Where a file of a wheel goes below site-packages; None for one that an agent has no use for."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path:
        raise MistakeError(f"{name} is no sound wheel: it holds {path[:80]!r}")
    if not parts[0].endswith(".data"):
        return path
    return "/".join(parts[2:]) if len(parts) > 2 and parts[1] in ("purelib", "platlib") else None
