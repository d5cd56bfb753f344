"""A guard over one process: `python -m geartrain_cloud.supervisor.guard FD PROGRAM ARGUMENTS...`.

It is for programs that the system does not end with the supervisor. mosquitto, started by root, changes its
user, and Linux then forgets that it was to die with its parent. Other systems have no such promise at all.

FD is the reading end of a pipe whose writing end only the supervisor holds. Guarantees: when that end closes,
however the supervisor died, the program is asked to end, and soon killed with its group. The guard ends as
the program did.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

GRACE_S = 2.0


def main(arguments: list[str]) -> int:
    """Run the program until it ends or the supervisor is gone; its exit code."""
    watched = int(arguments[0])
    wake_read, wake_write = os.pipe()
    for end in (wake_read, wake_write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_write)
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            asked.append(number)

    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    try:
        process = subprocess.Popen(arguments[1:], stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.stderr.write(f"{arguments[1]} cannot be started: {error.strerror}\n")
        return 1
    while process.poll() is None and not asked and not _is_orphan(watched, wake_read):
        os.read(wake_read, 512)
    return _end(process, watched)


def _is_orphan(watched: int, wake_read: int | None = None) -> bool:
    """Whether the supervisor is gone; with `wake_read`, wait for that or for a signal."""
    if wake_read is None:
        return bool(select.select([watched], [], [], 0)[0])
    return watched in select.select([watched, wake_read], [], [])[0]


def _end(process: subprocess.Popen[bytes], watched: int) -> int:
    """Ask the program to end, wait for it, and end as it did; an orphan kills what will not end."""
    process.terminate()
    began = time.monotonic()
    while process.poll() is None:
        if time.monotonic() - began > GRACE_S and _is_orphan(watched):
            os.killpg(os.getpgrp(), signal.SIGKILL)
        time.sleep(0.02)
    code = process.returncode
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
