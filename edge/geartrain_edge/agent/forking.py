"""The fork server: has imported what every agent needs, and forks one for each request of the parent.

Between the parent of a device's agents and these. What is imported once is in memory once, however many
apps there are. Guarantees: it has no thread, no event loop and no connection when it forks. A forked process
becomes the parent's own child, so the server may die and no app ends with it. All die with the parent.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from importlib import import_module

import msgspec

from geartrain_edge import libc
from geartrain_edge.agent.parentage import die_with_parent
from geartrain_edge.settings import FORK_REQUEST_BYTES_MAX

PRELOADED = (
    "geartrain",
    "geartrain.source",
    "geartrain.adapters.mqtt",
    "geartrain_edge.agent.main",
)
"""What every agent and every flow imports; nothing of a user is among it."""

_decode = msgspec.json.Decoder(list[str]).decode


def serve(control: socket.socket) -> list[str]:
    """Fork for each request on `control`, a socket that keeps messages apart, until the parent is gone.

    A request is the words of an agent's command line, with two descriptors: where the agent prints, and where
    it writes its number once it is the parent's child. Returns in each forked process, with its words; the
    server itself exits.
    """
    libc.have_one_heap()
    gc.disable()  # what is collected leaves holes in pages, which would be filled in each process anew
    for name in PRELOADED:
        import_module(name)
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, FORK_REQUEST_BYTES_MAX, 2)
        if not data:
            sys.exit(0)
        printed, told = descriptors
        if _is_forked_away():
            control.close()
            _begin(printed, told)
            gc.enable()
            return _decode(data)
        os.close(printed)
        os.close(told)


def _is_forked_away() -> bool:
    """Whether this is the forked process, which is not this server's child but is left to the parent."""
    try:
        between = os.fork()
    except OSError:  # the parent sees that nobody has told a number
        return False
    if between:
        os.waitpid(between, 0)
        return False
    between = os.getpid()
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    while os.getppid() == between:
        time.sleep(0.001)
    return True


def _begin(printed: int, told: int) -> None:
    """Make this process an agent's: a group and an output of its own, tied to the parent."""
    die_with_parent()
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(descriptor, number)
    os.close(nothing)
    os.close(printed)
    try:
        os.write(told, b"%d" % os.getpid())
    except BrokenPipeError:  # the parent has given it up
        os._exit(1)
    os.close(told)
