"""Programs of ours that tests start often, forked from a process that has imported them.

A start takes a tenth of the CPU time then. It stands beside the record's path, in the place of
`python -m MODULE` where the start itself is not what is tested. `python -m tests.forked` is that process,
one for each module. Guarantees: a forked program has the arguments, environment, folder, output, session and
module path that a started one would have, and sees nothing of those before it. The process that forks has no
thread, and ends with the tests.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from threading import Lock

from tests.tidy.source import ROOT
from tests.waiting import WAIT_S

GEAR, CONTROL = "geartrain_client.cli", "geartrain_cloud.control.main"
PRELOADED = {GEAR: ("geartrain_client",), CONTROL: ()}
"""The modules whose `main` can be run, with packages of which each module is imported beforehand."""

_REQUEST_BYTES_MAX = 1 << 17


class Forked:
    """A program that runs: what tests ask of `subprocess.Popen`."""

    def __init__(self, told: int, name: str) -> None:
        self._told, self._said, self.name = told, b"", name
        self.returncode: int | None = None
        while b"\n" not in self._said and self._read():
            pass
        assert b"\n" in self._said, f"{name} could not be forked"
        self.pid = int(self._said.partition(b"\n")[0])

    def _read(self) -> bool:
        said = os.read(self._told, 64)
        self._said += said
        return bool(said)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        while self.returncode is None and select.select([self._told], [], [], 0)[0]:
            if not self._read():
                os.close(self._told)
                self.returncode = int(self._said.split(b"\n")[1])
        return self.returncode

    def wait(self, timeout: float | None = WAIT_S) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if left == 0.0:
                raise subprocess.TimeoutExpired(self.name, timeout or 0.0)
            select.select([self._told], [], [], left)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """kill -9 of all that belongs to its session, which has its number."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def start(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    output: tuple[int, int] = (1, 2),
) -> Forked:
    """As `python -m MODULE ARGUMENTS`, in a session of its own; output: descriptors of stdout and stderr."""
    read, write = os.pipe()
    request = json.dumps(
        [list(arguments), str(folder or Path.cwd()), dict(os.environ if environment is None else environment)]
    ).encode()
    assert len(request) <= _REQUEST_BYTES_MAX
    server, lock = _server(module)
    try:
        with lock:
            socket.send_fds(server, [request], [*output, write])
    finally:
        os.close(write)
    return Forked(read, f"{module} {' '.join(arguments)}")


def run(
    module: str, arguments: Sequence[str], *, environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, and take what it says."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        output = out.fileno(), error.fileno()
        code = start(module, arguments, environment=environment, folder=folder, output=output).wait()
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess([module, *arguments], code, out.read(), error.read())


@cache
def _server(module: str) -> tuple[socket.socket, Lock]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.forked", module, str(theirs.fileno())]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours, Lock()


def serve(module: str, control: socket.socket) -> None:
    """Fork for each request until the tests are over; returns in each program, which is then to be run."""
    import_module(module)
    for package in PRELOADED[module]:
        for found in walk_packages(import_module(package).__path__, f"{package}."):
            if not found.name.endswith("__main__"):
                import_module(found.name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would lose threads"
    gc.freeze()
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES_MAX, 3)
        if not request:
            sys.exit(0)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            control.close()
            break
        for descriptor in descriptors:
            os.close(descriptor)
    output, told = descriptors[:2], descriptors[2]
    program = os.fork()
    if program:
        os.write(told, b"%d\n" % program)
        for descriptor in output:
            os.close(descriptor)
        os.write(told, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
        os._exit(0)
    os.close(told)
    _become(module, output, *json.loads(request))


def _become(
    module: str, output: Sequence[int], arguments: list[str], folder: str, environment: dict[str, str]
) -> None:
    os.setsid()
    for descriptor, number in zip(output, (1, 2), strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    asked = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [folder, *(path for path in asked if path and path not in sys.path)]
    sys.argv = [str(sys.modules[module].__file__), *arguments]


if __name__ == "__main__":
    serve(MODULE := sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
    sys.exit(sys.modules[MODULE].main())
