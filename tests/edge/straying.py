"""A flow whose module leaves a process behind that is nobody's child and soon over."""

from __future__ import annotations

import subprocess
import sys

from geartrain_examples.stocks.flow import flow

__all__ = ["flow"]

_AWAY = "import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep(0.2)"
subprocess.run([sys.executable, "-c", _AWAY], check=True)
