"""The program with which Spark on this machine starts its Python workers.

Spark puts a ZIP of pyspark before the installed one in every worker's module path. Python keeps nothing
compiled in a ZIP, so a worker compiles all that it imports anew, which takes most of its start. On a busy
machine that takes longer than the ten seconds that Spark waits. Guarantees: the workers are this interpreter,
with this process's module path.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from geartrain.adapters.files import write_private

_SCRIPT = """\
#!/bin/sh
PYTHONPATH={path} exec {python} "$@"
"""


def worker_python(folder: Path, module_path: str) -> str:
    """A program in `folder` that is this interpreter with `module_path`; the interpreter itself where nothing
    in that folder may be run. Raises `OSError`.
    """
    program = folder / "python"
    write_private(program, _SCRIPT.format(path=shlex.quote(module_path), python=shlex.quote(sys.executable)))
    program.chmod(0o700)
    return str(program) if os.access(program, os.X_OK) else sys.executable
