"""`gear up` and `gear down`: what they do and say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from geartrain.printable import printable
from geartrain_client.errors import StoppedError
from geartrain_client.terminal.screen import notices, results
from geartrain_cloud.control_store.database import check_store
from geartrain_cloud.platform.config import read_platform
from geartrain_cloud.spark.java import find_java
from geartrain_cloud.supervisor.child import Child
from geartrain_cloud.supervisor.folder_lock import end_holder
from geartrain_cloud.supervisor.supervise import StopSignal
from geartrain_cloud.supervisor.up import DOWN_S, bring_up


def run_platform(state: Path | None, config: Path | None) -> None:
    """Run a platform until a signal ends it; raises `GeartrainError`, also when it was not up by then."""
    found, notice, urls = read_platform(config, state), notices(), list[str]()

    def say(sentence: str) -> None:
        notice.print(printable(sentence), soft_wrap=True)

    def tell(url: str, children: Mapping[str, Child]) -> bool:
        if url and url not in urls[-1:]:
            urls.append(url)
            say(f"control answers at {url}")
            if len(urls) == 1:
                say("the platform is up: gear submit, gear list, gear status; Ctrl-C ends it")
        return False

    say(f"state folder: {found.state}")
    check_store(found.places.control)  # before ingest and Spark open theirs
    find_java()  # or Spark would be started in vain, again and again
    with StopSignal() as stop:
        try:
            bring_up(found, stop, say, tell)
        except StoppedError:
            if not urls:
                raise
    say("the platform has ended: devices keep what is not acked, and all goes on with the next gear up")


def end_platform(state: Path | None, config: Path | None) -> None:
    """End the platform in the state folder; raises `GeartrainError`."""
    folder = read_platform(config, state).state
    ended = end_holder(folder, DOWN_S)
    said = f"no platform runs in {folder}" if ended is None else f"the platform in {folder} has ended"
    results().print(printable(said), soft_wrap=True)
