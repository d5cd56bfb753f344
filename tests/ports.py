"""A TCP or UDP port on which a test lets something listen a moment later.

Guarantees: a process of the tests gives none of its 1,000 ports twice, and the system gives none of them to
an outgoing connection. So nothing else takes a port before its listener is there, or while that is restarted.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from functools import cache

from geartrain_cloud.broker.ready import is_free

_FIRST = 10_000  # its slices end below the ports that the product chooses itself, from 20,000
_SLICE = 1_000  # ports of one process of the test run


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now; raises `AssertionError` without one."""
    for port in _ports():
        if is_free(port):
            return port
    raise AssertionError(f"a process of the tests has only {_SLICE:,} ports, and has given all of them")


@cache
def _ports() -> Iterator[int]:
    """The ports of this process, each once."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
    first, begin = _FIRST + worker * _SLICE, secrets.randbelow(_SLICE)  # another test run begins elsewhere
    return (first + (begin + number) % _SLICE for number in range(_SLICE))
