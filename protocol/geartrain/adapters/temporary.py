"""The folder for temporary files, which Spark and large sorts need whatever else can be written.

Before anything is started. Guarantees: where none can be written, as under a read-only root file system, the
user is told so in one sentence, which names what to set.
"""

from __future__ import annotations

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
