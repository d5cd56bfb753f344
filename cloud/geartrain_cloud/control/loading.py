"""The short-lived process that loads a user's flow for control: started, given its question, and ended.

It stands between REST and `checking`. Guarantees: it takes at most `CHECK_S` and `ANSWER_BYTES_MAX`. Whatever
becomes of it, there is an answer or one sentence. At most `AT_ONCE` run at a time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import suppress

import msgspec

from geartrain.printable import printable
from geartrain_cloud.control.checking import QUESTION_BYTES_MAX, Answer, Question
from geartrain_cloud.control.errors import ConflictError, FlowRefusedError, InvalidError, UnavailableError

CHECK_S = 60.0
END_S = 5.0
"""How long a process that was killed may keep its pipes open, by one that it has started elsewhere."""
ANSWER_BYTES_MAX = 4 << 20
AT_ONCE = 2
_SAID_CHARS_MAX = 300
_SAID_BYTES_MAX = 4_096


class Loader:
    """Loads flows for the one event loop that it is used in."""

    def __init__(self, limit_s: float = CHECK_S) -> None:
        """`limit_s`: how long a flow may take to load."""
        self._limit_s, self._turns = limit_s, asyncio.Semaphore(AT_ONCE)

    async def __call__(self, question: Question) -> Answer:
        """What the flow is; raises `FlowRefusedError`, `InvalidError` or `UnavailableError`.

        Raises `ConflictError` where another one is installed here than was submitted.
        """
        content = msgspec.json.encode(question)
        if len(content) > QUESTION_BYTES_MAX:
            raise InvalidError(
                f"the settings have {len(content):,} bytes; {QUESTION_BYTES_MAX:,} are the most"
            )
        async with self._turns:
            code, out, said = await self._run(question, content)
        if code != 0 or not out:
            raise FlowRefusedError(
                f"flow {question.flow!r}: loading it ended its process with {code}{_last(said)}"
            )
        try:
            answer = msgspec.json.decode(out, type=Answer)
        except msgspec.MsgspecError as error:
            raise FlowRefusedError(
                f"flow {question.flow!r}: what its process answered cannot be read: {error}"
            ) from None
        if answer.differs:
            raise ConflictError(
                f"flow {question.flow!r}: the platform has other code installed than was submitted: "
                f"{answer.differs}; make keys with gear key new, so that your code is sent there, or install "
                "the same there, or submit with --unchecked"
            )
        if answer.outline is None:
            raise FlowRefusedError(answer.refused)
        return answer

    async def _run(self, question: Question, content: bytes) -> tuple[int, bytes, bytes]:
        command = (sys.executable, "-m", "geartrain_cloud.control.checking")
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
            )
        except OSError as error:
            raise UnavailableError(
                f"flow {question.flow!r}: no process can be started to load it: {error.strerror or error}"
            ) from None
        try:
            async with asyncio.timeout(self._limit_s):
                out, said, _ = await asyncio.gather(
                    _head(process.stdout), _tail(process.stderr), _give(process.stdin, content)
                )
                return await process.wait(), out, said
        except TimeoutError:
            raise FlowRefusedError(
                f"flow {question.flow!r}: loading it took more than {self._limit_s:g} s: do the work in a "
                "source or a task, not in the module"
            ) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what a user's module may have started
            # Its end is only noticed once its pipes are read to theirs, which are full where it talks a lot.
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await asyncio.gather(_tail(process.stdout), _tail(process.stderr), process.wait())


async def _give(stream: asyncio.StreamWriter | None, content: bytes) -> None:
    if stream is not None:
        with suppress(ConnectionError):
            stream.write(content)
            await stream.drain()
        stream.close()


async def _head(stream: asyncio.StreamReader | None) -> bytes:
    """All that comes, up to what an answer may have; nothing where it is more."""
    found = b""
    while stream is not None and (part := await stream.read(1 << 16)):
        found += part
        if len(found) > ANSWER_BYTES_MAX:
            return b""
    return found


async def _tail(stream: asyncio.StreamReader | None) -> bytes:
    """The last of what comes."""
    found = b""
    while stream is not None and (part := await stream.read(1 << 16)):
        found = (found + part)[-_SAID_BYTES_MAX:]
    return found


def _last(said: bytes) -> str:
    lines = [line for line in said.decode(errors="backslashreplace").splitlines() if line.strip()]
    return f": {printable(lines[-1].strip()[:_SAID_CHARS_MAX])}" if lines else ""
