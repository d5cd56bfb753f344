"""How many bytes a second an uplink sends at most.

Between the uplink's sender and its connection, without I/O. Guarantees: over any span, no more was sent than
the rate allows and one batch besides. Nothing is dropped: what is too soon waits in the spool.
"""

from __future__ import annotations


class Pace:
    """That of one uplink. Each batch goes out whole, and the next one once it is paid for."""

    def __init__(self, bytes_per_s_max: int) -> None:
        """`bytes_per_s_max`: 0 for no bound."""
        self._bytes_per_s_max = bytes_per_s_max
        self._free_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """For how many seconds nothing may be sent yet; now_s: monotonic seconds."""
        return max(0.0, self._free_s - now_s)

    def sent(self, size: int, now_s: float) -> None:
        """So many bytes were sent; now_s: monotonic seconds."""
        if self._bytes_per_s_max:
            self._free_s = max(self._free_s, now_s) + size / self._bytes_per_s_max
