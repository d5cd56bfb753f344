"""The bound of a log that processes write into by a descriptor of their own, such as Java's and a child's.

Beside the record's path. Guarantees: a log and the one former part of it (`.1`) have about `LOG_BYTES_MAX`
bytes each, as long as `bound_log` is called again and again. Whoever writes at the end of the file
(`O_APPEND`) goes on there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

LOG_BYTES_MAX = 16 << 20
"""A log longer than this is set aside as `.1`, in the place of the former one."""


def bound_log(log: Path) -> None:
    """Set a log aside that is too long, and begin it anew; what is written just now may be lost.

    It is copied and cut short, so that the file stays the same one for all who write to it.
    """
    try:
        if log.stat().st_size > LOG_BYTES_MAX:
            shutil.copyfile(log, fresh := log.with_name(f".{log.name}.new"))
            fresh.chmod(0o600)
            fresh.replace(log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)
    except OSError:  # a log is a courtesy
        return
