"""Python's bytecode for the files of an image whose root cannot be written, so that no start compiles them.

Part of making a container. Guarantees: the bytecode is known by what it was made of, not by a time, and is
used without a look at its source. The same files and Python give the same bytes. No code of the files runs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from geartrain_client.errors import FailedError
from geartrain_client.flash.archive import Entry

_COMPILE_S_MAX = 600.0
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}


def can_compile(python: str) -> bool:
    """Whether the Python that runs here makes bytecode for `python`, such as `3.11`."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    return sys.implementation.name == "cpython" and python == here


def bytecode(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The bytecode of all modules among the entries, by its path; raises `OSError` and `FailedError`.

    A file that is no Python of this version has none.
    """
    with tempfile.TemporaryDirectory(prefix=".gear-bytecode-") as work:
        root = Path(work)
        for path, entry in entries.items():
            if path.endswith(".py") and entry.content is not None:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(entry.content)
        # A process of its own: what marshal writes depends on what its process holds.
        command = [sys.executable, "-S", "-m", "compileall", "-q", "-q", "-j", "1", "-s", work, "-p", "/"]
        command += ["--invalidation-mode", "unchecked-hash", work]
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                timeout=_COMPILE_S_MAX,
                check=False,  # it fails for a file that is no Python, and has compiled the others
            )
        except subprocess.TimeoutExpired:
            raise FailedError(f"compiling the packages took longer than {_COMPILE_S_MAX:g} s") from None
        found = sorted(root.rglob("*.pyc"))
        return {str(path.relative_to(root)): Entry(path.read_bytes()) for path in found}
