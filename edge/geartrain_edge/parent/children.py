"""The processes of a device's apps, as the parent's own children: forked by the fork server, or started anew.

Under `AgentProcesses`. Guarantees: a fork server that dies or hangs is replaced at the next start, and ends
no app. Where the system cannot hand a forked process over (all but Linux), each app is started by itself,
which costs its imports once more. What an app leaves behind as a process is reaped. A child that the parent
has started for itself is never, as long as it stays in the parent's session.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from typing import Protocol

import msgspec

from geartrain_edge.errors import StartError
from geartrain_edge.settings import FORK_REQUEST_BYTES_MAX, FORK_SERVER, PARENT_VARIABLE

_LOG = logging.getLogger("geartrain.parent")

MODULE = "geartrain_edge.agent.process"
FORK_S_MAX = 60.0
"""So long may a fork take; the first one waits for the server's imports."""
_STRAYS_MAX = 1_000


class Child(Protocol):
    """A process of this one's own."""

    pid: int
    """Its number, which nobody else gets before `reap`, where the system can tell."""

    def is_over(self) -> bool:
        """Whether it has ended."""
        ...

    def reap(self) -> int:
        """Its exit code, or minus the signal that ended it; waits for its end."""
        ...


class Children(Protocol):
    """Starts agents."""

    async def start(self, words: list[str], printed: int) -> Child:
        """An agent with this command line, which prints to the descriptor `printed`; raises `StartError`."""
        ...


def children() -> Children:
    """How agents are started on this system."""
    return ForkServer() if sys.platform == "linux" else Spawned()


class ForkServer:
    """`Children` from one process that has imported what they need; it is started with the first of them."""

    def __init__(self, fork_s_max: float = FORK_S_MAX) -> None:
        """Makes this process the reaper of those that its children leave. fork_s_max: how long a fork may
        take, seconds.
        """
        from geartrain_edge import libc

        libc.have_one_heap()
        libc.adopt_orphans()
        self._fork_s_max = fork_s_max
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._turn = asyncio.Lock()
        self._own: set[int] = set()

    async def start(self, words: list[str], printed: int) -> Child:
        """As `Children.start`."""
        request = msgspec.json.encode(words)
        if len(request) > FORK_REQUEST_BYTES_MAX:
            raise StartError(f"the path {words[-1][:80]}... is too long")
        async with self._turn:  # so that no more than one request waits in the socket
            try:
                told, telling = os.pipe()
                try:
                    self._send(request, [printed, telling])
                finally:
                    os.close(telling)
                try:
                    pid = await _number(told, self._fork_s_max)
                finally:
                    os.close(told)
            except TimeoutError:
                self._end_server()
                raise StartError(f"the fork server has not answered for {self._fork_s_max:g} s") from None
            except OSError as error:
                self._end_server()
                raise StartError(f"no process can be started: {error.strerror or error}") from None
            if not pid:
                raise StartError("no process can be forked: are there too many, or is memory short?")
            self._own.add(pid)
            return ForkedChild(pid, self)

    def reaped(self, pid: int) -> None:
        """A child is gone."""
        self._own.discard(pid)

    def reap_strays(self) -> None:
        """Reap what apps have started, left behind, and is over; those of the apps themselves wait.

        The server and all that comes of it lie in other sessions than this process, and no process can enter
        a session. So what lies in this one's is a child that somebody here waits for.
        """
        for _ in range(_STRAYS_MAX):
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            server = self._server.pid if self._server else 0
            if found is None or found.si_pid in self._own or found.si_pid == server:
                return
            try:
                if os.getsid(found.si_pid) == os.getsid(0):
                    return
                os.waitpid(found.si_pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                continue  # a thread has reaped it that waits for it

    def _send(self, request: bytes, descriptors: list[int]) -> None:
        if self._server is not None and self._server.poll() is not None:
            _LOG.warning("the fork server ended with %d and is started again", self._server.returncode)
            self._end_server()
        if self._server is None or self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._control.setblocking(False)
            with theirs:
                self._server = subprocess.Popen(
                    [sys.executable, "-m", MODULE, FORK_SERVER],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=_environment(),
                    start_new_session=True,
                )
        socket.send_fds(self._control, [request], descriptors)

    def _end_server(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        self._server = self._control = None


class ForkedChild:
    """`Child` that the fork server has forked."""

    def __init__(self, pid: int, family: ForkServer) -> None:
        self.pid, self._family = pid, family

    def is_over(self) -> bool:
        """As `Child.is_over`, and without reaping it: nobody else gets its number then."""
        self._family.reap_strays()
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def reap(self) -> int:
        """As `Child.reap`."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._family.reaped(self.pid)
        return code


class Spawned:
    """`Children` that are started one by one."""

    async def start(self, words: list[str], printed: int) -> Child:
        """As `Children.start`."""
        try:
            popen = subprocess.Popen(  # noqa: ASYNC220 - it returns once the program runs
                [sys.executable, "-m", MODULE, *words],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                env=_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise StartError(f"no process can be started: {error.strerror or error}") from None
        return SpawnedChild(popen)


class SpawnedChild:
    """`Child` of `Spawned`."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.pid, self._popen = popen.pid, popen

    def is_over(self) -> bool:
        """As `Child.is_over`."""
        return self._popen.poll() is not None

    def reap(self) -> int:
        """As `Child.reap`."""
        return self._popen.wait()


async def _number(told: int, within_s: float) -> int:
    """The number that a forked process writes to the pipe; 0 where its other ends are closed."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(told, readable.set)
    try:
        async with asyncio.timeout(within_s):
            await readable.wait()
    finally:
        loop.remove_reader(told)
    return int(os.read(told, 20) or b"0")


def _environment() -> dict[str, str]:
    return os.environ | {PARENT_VARIABLE: str(os.getpid())}
