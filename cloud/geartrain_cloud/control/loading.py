"""The short-lived process that loads a user's flow for control.

It stands between REST and `checking`. Guarantees: it takes at most `CHECK_S` and `ANSWER_BYTES_MAX`. Whatever
becomes of it, there is an answer or one sentence. At most `AT_ONCE` run at a time, and `WAITING_MAX` wait.
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from geartrain_cloud.control.checking import QUESTION_BYTES_MAX, Answer, Question
from geartrain_cloud.control_store.errors import (
    ConflictError,
    FlowRefusedError,
    InvalidError,
    TooManyError,
    UnavailableError,
)
from geartrain_cloud.short_process import Ended, run_short

CHECK_S = 60.0
ANSWER_BYTES_MAX = 4 << 20
AT_ONCE = 2
WAITING_MAX = 32


class Loader:
    """Loads flows for the one event loop that it is used in."""

    def __init__(self, limit_s: float = CHECK_S, *, in_postgres: bool = False) -> None:
        """limit_s: how long a flow may take to load; in_postgres: whether tables go to PostgreSQL."""
        self._in_postgres = in_postgres
        self._limit_s, self._turns, self._waiting = limit_s, asyncio.Semaphore(AT_ONCE), 0

    async def __call__(self, question: Question) -> Answer:
        """What the flow is; raises `FlowRefusedError`, `InvalidError`, `TooManyError` or `UnavailableError`.

        Raises `ConflictError` where another one is installed here than was submitted.
        """
        question = replace(question, in_postgres=self._in_postgres)
        content = msgspec.json.encode(question)
        if len(content) > QUESTION_BYTES_MAX:
            raise InvalidError(
                f"the settings have {len(content):,} bytes; {QUESTION_BYTES_MAX:,} are the most"
            )
        if self._waiting >= WAITING_MAX:
            raise TooManyError(f"{WAITING_MAX} flows wait to be loaded, which are the most: try again later")
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            ended = await self._run(question, content)
        finally:
            self._turns.release()
        if ended.is_too_long:
            raise FlowRefusedError(
                f"flow {question.flow!r}: what was found of it has more than {ANSWER_BYTES_MAX:,} bytes: "
                "make it smaller, or two of it"
            )
        if ended.code != 0 or not ended.answer:
            raise FlowRefusedError(
                f"flow {question.flow!r}: loading it ended its process with {ended.code}{ended.last_line}"
            )
        try:
            answer = msgspec.json.decode(ended.answer, type=Answer)
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

    async def _run(self, question: Question, content: bytes) -> Ended:
        try:
            return await run_short(
                "geartrain_cloud.control.checking", content, self._limit_s, ANSWER_BYTES_MAX
            )
        except TimeoutError:
            raise FlowRefusedError(
                f"flow {question.flow!r}: loading it took more than {self._limit_s:g} s: do the work in a "
                "source or a task, not in the module"
            ) from None
        except OSError as error:
            raise UnavailableError(
                f"flow {question.flow!r}: no process can be started to load it: {error.strerror or error}"
            ) from None
