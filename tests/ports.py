"""A TCP or UDP port on which a test lets something listen a moment later.

Guarantees: a process of the tests gives none of its 1,000 ports twice, and the system gives none of them to
an outgoing connection. So nothing else takes a port before its listener is there, or while that is restarted.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from functools import cache
from itertools import count

from geartrain_cloud.broker.ready import is_free

_FIRST = 10_000  # its slices end below the ports that the product chooses itself, from 20,000
_SLICE = 1_000  # ports of one process of the test run


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    return next(port for port in _ports() if is_free(port))


@cache
def _ports() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
    begin = secrets.randbelow(_SLICE)  # another test run on this machine begins elsewhere
    return (_FIRST + worker * _SLICE + (begin + number) % _SLICE for number in count())
