"""Wrong tokens: how many each address may show in a minute, and how many came.

Before every answer of REST. Guarantees: an address that has shown `WRONG_MAX` in a minute is told to wait. A
good token is always answered, so that nobody is shut out by who shares his address. At most `ADDRESSES_MAX`
are known at a time, the latest. What came is in the audit log, one entry a minute.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Callable

from geartrain_cloud.control_store.errors import StoreError, ThrottledError
from geartrain_cloud.rest.audit import AuditLog

_LOG = logging.getLogger("geartrain.control")

WRONG_MAX = 100
"""Wrong tokens of one address that are answered in `WINDOW_S`."""
WINDOW_S = 60.0
ADDRESSES_MAX = 1_024


class WrongTokens:
    """Those of one platform's REST; `monotonic_s` tells time, seconds."""

    def __init__(self, audit: AuditLog, monotonic_s: Callable[[], float]) -> None:
        self._audit, self._monotonic_s = audit, monotonic_s
        self._windows: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._came, self._others = Counter[str](), 0
        self._next_s = monotonic_s() + WINDOW_S

    def came(self, address: str) -> None:
        """Count a wrong token; raises `ThrottledError` where the address has shown too many."""
        if address in self._came or len(self._came) < ADDRESSES_MAX:
            self._came[address] += 1
        else:
            self._others += 1
        now_s = self._monotonic_s()
        begun_s, count = self._windows.pop(address, (now_s, 0))
        if now_s - begun_s >= WINDOW_S:
            begun_s, count = now_s, 0
        self._windows[address] = begun_s, count + 1
        if len(self._windows) > ADDRESSES_MAX:
            self._windows.popitem(last=False)
        if count >= WRONG_MAX:
            wait_s = max(1, math.ceil(begun_s + WINDOW_S - now_s))
            raise ThrottledError(
                f"{WRONG_MAX} wrong tokens came from your address within a minute: take a good one, or wait "
                f"{wait_s} s",
                wait_s,
            )

    def round(self) -> None:
        """Put what came into the audit log, once a minute; called at any time."""
        if self._monotonic_s() < self._next_s:
            return
        self._next_s = self._monotonic_s() + WINDOW_S
        if not self._came:
            return
        count, [(address, most)] = self._came.total() + self._others, self._came.most_common(1)
        told = {"wrong_tokens": count, "addresses": len(self._came), "of_this": most}
        try:
            self._audit.note(401, "unauthorized", told, address)
        except StoreError as error:
            _LOG.warning("%d wrong tokens are not in the audit log yet: %s", count, error)
            return
        self._came.clear()
        self._others = 0
