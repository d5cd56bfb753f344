"""`gear up` and `gear down`: what they do and say."""

from __future__ import annotations

from pathlib import Path

from geartrain.printable import printable
from geartrain_client.terminal.screen import notices, results
from geartrain_cloud.platform.config import read_platform
from geartrain_cloud.supervisor.folder_lock import end_holder
from geartrain_cloud.supervisor.supervise import StopSignal
from geartrain_cloud.supervisor.up import DOWN_S, bring_up


def run_platform(state: Path | None, config: Path | None) -> None:
    """Run a platform until a signal ends it; raises `GeartrainError`."""
    found, notice = read_platform(config, state), notices()

    def say(sentence: str) -> None:
        notice.print(printable(sentence), soft_wrap=True)

    with StopSignal() as stop:
        bring_up(found, stop, say)


def end_platform(state: Path | None, config: Path | None) -> None:
    """End the platform in the state folder; raises `GeartrainError`."""
    folder = read_platform(config, state).state
    ended = end_holder(folder, DOWN_S)
    said = f"no platform runs in {folder}" if ended is None else f"the platform in {folder} has ended"
    results().print(printable(said), soft_wrap=True)
