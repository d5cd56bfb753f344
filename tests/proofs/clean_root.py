"""A machine of its own for an installation: this one's programs, but its own /etc, /opt, /var/lib and /run.

It has no network. Guarantees: nothing that is done there is seen outside, and all of it goes with its end.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.waiting import WAIT_S

_SETUP = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
cp -a /etc "$1/etc"
mount --bind "$1/etc" /etc
rm -rf /etc/geartrain /etc/systemd/system/geartrain-*
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /run
mount -t tmpfs -o "$2" tmpfs /opt
echo ready
exec sleep 100000
"""


class CleanRoot:
    """Such a machine, for as long as the `with` lasts. opt: options of the file system of /opt."""

    def __init__(self, folder: Path, opt: str = "size=512m") -> None:
        folder.mkdir()
        command = ["unshare", "--mount", "--net", "sh", "-c", _SETUP, "sh", str(folder), opt]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def enter(self) -> list[str]:
        """What a command begins with that is to run there."""
        return ["nsenter", "--target", str(self._process.pid), "--mount", "--net"]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command there, with few variables and from the folder /."""
        plain = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"]
        words = [*self.enter, "--wd=/", *plain, *command]
        return subprocess.run(words, check=False, capture_output=True, text=True, timeout=WAIT_S)

    def at(self, path: str) -> Path:
        """A path there, seen from here. A symbolic link that is absolute leads out of it."""
        return Path(f"/proc/{self._process.pid}/root") / path.lstrip("/")
