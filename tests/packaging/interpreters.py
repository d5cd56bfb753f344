"""The core of the tests on another Python: found, given an environment of its own with the parts, and run.

Guarantees: the environment is made anew in a temporary folder, so that nothing of this one's is used. What
is not installed is said by its version.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.packaging.environments import environment

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
CORE = ("protocol", "wire", "delivery", "reference", "adapters", "devices", "edge")
"""Folders of tests: the flow, its operators, the wire, delivery and the whole of the agent."""
PARTS = ("protocol", "devices", "edge", "client", "cloud", "simulation", "examples[data]")
_PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"


def find(version: str) -> str | None:
    """The interpreter of `version`, such as 3.13; None where there is none."""
    if (found := shutil.which(f"python{version}")) and _is(found, version):
        return found
    built = sorted(_PYENV.glob(f"{version}.*/bin/python{version}"))
    return next((str(path) for path in reversed(built) if _is(str(path), version)), None)


def _is(path: str, version: str) -> bool:
    """Whether it runs and can make an environment; a shim of a manager may be there for nothing."""
    question = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([path, "-c", question], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


def run(python: str, tests: Sequence[str], processes: int = 3, without: Sequence[str] = ()) -> int:
    """Run these folders or files of tests on `python`; pytest's exit code.

    without: packages that these tests do not import, and that are left out of the environment.
    """
    with tempfile.TemporaryDirectory(prefix="geartrain-python-") as folder:
        left_out = Path(folder) / "left-out.txt"
        left_out.write_text("\n".join(without), encoding="utf-8")
        parts = [str(ROOT / part) for part in PARTS]
        needed = ["--requirement", str(ROOT / "requirements-dev.txt"), "--excludes", str(left_out)]
        there = environment(Path(folder) / "venv", *parts, *needed, python=python)
        command = [str(there), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(processes), *tests]
        variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        variables |= {"PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Run the core on each of these interpreters, or on all that are found; 1 where one failed."""
    wanted = list(arguments) or list(VERSIONS)
    failed, ran = [], 0
    for name in wanted:
        python = find(name) if name in VERSIONS else name
        if python is None:
            print(f"interpreters: not run: Python {name} is not installed", flush=True)
            continue
        print(f"interpreters: {python}", flush=True)
        ran += 1
        if run(python, [f"tests/{folder}" for folder in CORE]) != 0:
            failed.append(name)
    print(f"interpreters: {ran} run, failed: {', '.join(failed) or 'none'}")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
