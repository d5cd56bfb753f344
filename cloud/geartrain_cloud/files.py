"""Files that others must never see half-written, or at all: written beside their place, 0600, then renamed.

For configurations, manifests and results. The log has its own `Disk` port; durability is not promised here.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def make_private_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, with mode 0700; raises `OSError`."""
    for folder in reversed([path, *path.parents]):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, content: str | bytes) -> None:
    """Replace the file at `path` by `content` (text as UTF-8) in one step, with mode 0600.

    Makes the folders above it (0700). Raises `OSError`.
    """
    make_private_folder(path.parent)
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
