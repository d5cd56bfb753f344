"""What this machine can run: under the launcher of devices, which is to import next to nothing."""

from __future__ import annotations

import os
import sys


def machine() -> str:
    """Which compiled code can run here: Python's minor version and the processor, such as `3.11 aarch64`."""
    return f"{sys.version_info[0]}.{sys.version_info[1]} {os.uname().machine}"
