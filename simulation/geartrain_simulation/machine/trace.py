"""The trace of a run: a line for every effect of every node, folded into one hash.

Equal seeds give equal hashes; where two runs part, the lines show it. Bounded: only the newest are kept.
"""

from __future__ import annotations

import hashlib
from collections import deque

LINES_KEPT = 5_000
_TOGETHER = 256
"""Lines that are hashed at a time."""


class Trace:
    """Lines of one run."""

    def __init__(self, lines_kept: int = LINES_KEPT) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._lines: deque[str] = deque(maxlen=lines_kept)
        self._unhashed: list[str] = []
        self.count = 0
        self.newest: dict[str, float] = {}
        """When each kind of effect was noted last, virtual seconds."""

    def add(self, time_s: float, who: str, what: str, detail: str = "") -> None:
        """Note that `who` did `what` at virtual time `time_s`."""
        line = f"{time_s:.6f} {who} {what} {detail}".rstrip()
        self._lines.append(line)
        self._unhashed.append(line)
        if len(self._unhashed) >= _TOGETHER:
            self._take_in()
        self.count += 1
        self.newest[what] = time_s

    @property
    def digest(self) -> str:
        """The hash of all lines so far, in hexadecimal digits."""
        self._take_in()
        return self._hash.copy().hexdigest()

    def _take_in(self) -> None:
        """Hash what was not yet."""
        lines, self._unhashed = self._unhashed, []
        self._hash.update("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))

    def tail(self, lines: int = 40) -> list[str]:
        """The newest lines, oldest first."""
        return list(self._lines)[-lines:]


def short_digest(data: bytes) -> str:
    """Eight hexadecimal digits that stand for `data` in a trace."""
    return hashlib.blake2b(data, digest_size=4).hexdigest()
