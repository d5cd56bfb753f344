"""`gear-agent`: `--config FILE.toml`, `--device FILE.toml`, `join` or `renew`.

The process is prepared before it imports the rest.

Guarantees: importing a module of the agent changes nothing in the process that imports it. This module
sets what the process needs before those imports.
"""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Sequence

from geartrain_edge.agent.parentage import die_with_parent
from geartrain_edge.lazy_import import load_later
from geartrain_edge.settings import FORK_SERVER

GARBAGE_THRESHOLD = 10_000
"""New objects between two searches for garbage. With Python's 700 it would search fifty times during the
imports and several times a batch of thousands of records; neither makes much garbage.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an agent, or the parent of a device's agents, until its end; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] in (["join"], ["renew"]):
        from geartrain_edge.joining.main import main as run_joining  # which imports no agent

        return run_joining(words)
    if words[:1] == ["--device"]:
        from geartrain_edge.programs.launch import launch  # which imports nothing

        launch(words)
    prepare()
    if words[:1] == ["--device"]:
        from geartrain_edge.parent.main import main as run_parent  # which imports no agent

        return run_parent(words)
    die_with_parent()
    if words == [FORK_SERVER]:
        from geartrain_edge.agent.forking import serve

        words = serve(socket.socket(fileno=0))
    from geartrain_edge.agent.main import main as run  # after what is set for its imports

    return run(words)


def prepare() -> None:
    """Set up this process for an agent: call it before the agent's modules are imported."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    # paho looks for proxies there, but only where PySocks is installed: 1.3 MB that no agent has a use for.
    load_later("urllib.request")
    # protobuf in Python, with its text format: protobuf in C asks it for nothing.
    load_later("google.protobuf.internal.python_message")


if __name__ == "__main__":
    sys.exit(main())
