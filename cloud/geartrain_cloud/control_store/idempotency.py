"""Answers by idempotency key: a request that comes again gets its answer again, and changes nothing.

Between REST and the changes that it makes. Guarantees: an answer is kept in the transaction of the change
that it tells of, so that there is never one without the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from geartrain_cloud.control_store.database import ControlDatabase, as_text
from geartrain_cloud.control_store.errors import ConflictError

ANSWERS_MAX = 10_000
"""Idempotency keys that are remembered, the newest."""

Answer = tuple[int, dict[str, Any]]
"""An HTTP status and a body."""


class Answers:
    """Those that are kept."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database

    def once(self, key: str, request: str, work: Callable[[], Answer]) -> Answer:
        """Do `work` and remember its answer under the idempotency key, in one transaction.

        request: what was asked, in a form that is equal for equal requests. A key that is known gives its
        answer again without work. Raises `ConflictError` where it came with another request.
        """
        with self._database.change() as database:
            if key and (known := self.recall(key, request)) is not None:
                return known
            status, body = work()
            if key:
                database.execute(
                    "INSERT INTO answers (key, request, status, body) VALUES (?, ?, ?, ?)",
                    (key, request, status, as_text(body)),
                )
                database.execute(
                    "DELETE FROM answers WHERE number <= (SELECT max(number) FROM answers) - ?",
                    (ANSWERS_MAX,),
                )
            return status, body

    def recall(self, key: str, request: str) -> Answer | None:
        """The answer that the idempotency key stands for; raises `ConflictError` for another request."""
        found = self._database.rows("SELECT request, status, body FROM answers WHERE key = ?", (key,))
        if not found:
            return None
        ((known, status, body),) = found
        if known != request:
            raise ConflictError("this Idempotency-Key came with another request before: take a new one")
        return int(status), msgspec.json.decode(body)
