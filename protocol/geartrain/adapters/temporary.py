"""The folder for temporary files, which Spark and large sorts need whatever else can be written.

Before anything is started. Guarantees: where none can be written, as under a read-only root file system, the
user is told so in one sentence, which names what to set.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from geartrain.errors import MistakeError


def temporary_folder(instead: str = "") -> Path:
    """The folder for temporary files.

    Args:
        instead: what the user can name so that none is needed, such as "--output DIR"; empty for nothing.

    Returns:
        Its path: that of TMPDIR, or else one that the system has for this.

    Raises:
        MistakeError: none can be written.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        raise MistakeError(
            "no folder for temporary files can be written, neither TMPDIR nor /tmp, /var/tmp or the current "
            f"folder: set TMPDIR to one that can be written{f', or name {instead}' if instead else ''}"
        ) from None


def loading_folder() -> Path:
    """The folder for temporary files, for a program that loads libraries from there, as Spark's Java does.

    Returns:
        Its path.

    Raises:
        MistakeError: none can be written, or it lies where no library may be loaded.
    """
    folder = temporary_folder()
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise MistakeError(
            f"Spark's Java loads libraries that it unpacks in {folder}, which is mounted with noexec: set "
            "TMPDIR to a folder that is not, or mount it with exec"
        )
    return folder
