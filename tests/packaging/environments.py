"""Environments of their own, with wheels that are built from sources as they are now.

Guarantees: nothing of this environment is in them. uv takes dependencies from its cache, and builds every
folder of sources anew.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PARTS = ("", "-client", "-cloud", "-devices", "-edge", "-examples", "-simulation")
# uv takes a folder of sources as it was built before while its pyproject.toml is the same, unless told so.
_ANEW = [f"--refresh-package=geartrain{part}" for part in _PARTS]


def uv(*arguments: str) -> None:
    """Run uv, which the checks are installed with. Raises `CalledProcessError`."""
    subprocess.run([sys.executable, "-m", "uv", *arguments], check=True)


def environment(folder: Path, *packages: str, python: str = sys.executable) -> Path:
    """Make an environment for `python` in `folder`, with these packages and what they need; its Python.

    packages: names, wheels or folders of sources, with extras. Raises `CalledProcessError`.
    """
    uv("venv", "--quiet", "--python", python, str(folder))
    there = folder / "bin" / "python"
    install("--python", str(there), *packages)
    return there


def install(*arguments: str) -> None:
    """Install packages where the arguments say. Raises `CalledProcessError`."""
    uv("pip", "install", "--quiet", *_ANEW, *arguments)
