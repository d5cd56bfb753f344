"""Apps on a platform of their own, from submit to the end, in the process of the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from geartrain.adapters.files import write_private
from geartrain.adapters.toml_text import to_toml
from geartrain_cloud.cli.demo_run import DemoRun
from geartrain_cloud.cli.demos import DemoApp
from geartrain_cloud.cli.hops import Accounts
from geartrain_cloud.platform.config import read_platform
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.supervisor.child import Child
from geartrain_cloud.supervisor.supervise import StopSignal
from geartrain_cloud.supervisor.up import bring_up


def run_to_the_end(
    apps: Sequence[DemoApp],
    folder: Path,
    config: Mapping[str, Any],
    look: Callable[[], None] = lambda: None,
) -> dict[str, list[Accounts]]:
    """Run the apps on one platform until all have ended; the accounts of each by its name.

    config: of the platform; look: called in each turn.
    """
    write_private(folder / "platform.toml", to_toml(config))
    runs = {app.name: DemoRun(app, PlatformPlaces(folder), lambda hops: None) for app in apps}
    done = set[str]()

    def work(url: str, children: Mapping[str, Child]) -> bool:
        look()
        done.update(name for name, run in runs.items() if name not in done and run(url, children))
        return len(done) == len(runs)

    with StopSignal() as stop:
        bring_up(read_platform(state=folder), stop, lambda sentence: None, work)
    return {name: run.accounts for name, run in runs.items()}
