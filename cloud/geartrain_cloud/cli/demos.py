"""The demos that are installed: what an example must offer so that `gear demo` can run it.

Found through the entry-point group `geartrain.demos`, so that the data centre's package imports no example.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import msgspec

from geartrain.errors import ConfigError
from geartrain.flow.loading import load_flow
from geartrain.planning import Plan, legal_cuts
from geartrain_cloud.pages.page import Page, Rows
from geartrain_cloud.supervisor.deployment import Deployment
from geartrain_cloud.supervisor.state_folder import Manifest

GROUP = "geartrain.demos"

Options = dict[str, dict[str, Any]]
Inputs = Mapping[str, Path]
"""Input files by the name of their option; one that was not given, and is not needed, is missing."""
Settings = Mapping[str, str]
"""What the user set, as text, by the name of the option (`limit_mps` for `--limit-mps`)."""

Survey = tuple[list[str], dict[str, str], list[str]]
"""What reading the inputs has shown: the parts that can be dealt to devices (symbols, streets), sorted; by
name what the flow must be told of the inputs as a whole, which no device sees; sentences for the user.
"""


class Demo(Protocol):
    """A demo whose input is files, dealt by parts to devices."""

    @property
    def name(self) -> str:
        """As in `gear demo NAME`."""
        ...

    def flow_of(self, settings: Settings) -> str:
        """Its flow, as `module:name`."""
        ...

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that are its output: one is written to a file, several to a folder."""
        ...

    @property
    def settings(self) -> Settings:
        """Its own options that results depend on, with their defaults."""
        ...

    @property
    def devices_default(self) -> int:
        """How many agents it is for, if there are as many parts."""
        ...

    @property
    def edge_is_strict(self) -> bool:
        """Whether the cut `edge` is refused if a step cannot be on a device; else it is all that can."""
        ...

    @property
    def page_while_running(self) -> bool:
        """Whether its page is worth looking at before the end."""
        ...

    def beside(self, folder: Path, settings: Settings) -> Mapping[str, Sequence[str]]:
        """What else runs as long as the demo: arguments for Python by the name of the process.

        A demo that has any has no end of its own: Ctrl-C ends it, with its results so far.
        """
        ...

    def own_inputs(self, folder: Path, given: Inputs, settings: Settings) -> dict[str, Path]:
        """The demo's own input beside what was given, written to `folder` unless it lies somewhere already;
        raises `SourceError` or `ConfigError`.
        """
        ...

    def survey(self, inputs: Inputs, settings: Settings) -> Survey:
        """Read the inputs; raises `SourceError`."""
        ...

    def source_options(
        self, inputs: Inputs, settings: Settings, parts: Sequence[str], *, first: bool, speed: str
    ) -> Options:
        """The options of the sources on a device with these parts; `first`: and what is nobody's part."""
        ...

    def step_options(self, settings: Settings) -> Options:
        """The options of the steps; raises `ConfigError`."""
        ...

    def page_of(self, plan: Plan, settings: Settings) -> Page:
        """Its page."""
        ...

    def summary(self, rows: Rows) -> tuple[str, list[str], list[list[str]]]:
        """Title, column heads and rows of the table to print at the end."""
        ...


def load_demo(name: str) -> Demo:
    """The demo of that name; raises `ConfigError` when it is not installed."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        raise ConfigError(f"the demo {name!r} is not installed: run pip install geartrain-examples[data]")
    load: Callable[[], Demo] = found[name].load
    return load()


def deal(parts: Sequence[str], count: int) -> dict[str, list[str]]:
    """Parts by device: dealt in turn to `count` devices, named device-1 and on; none is left without any.

    >>> deal(["a", "b", "c"], 2)
    {'device-1': ['a', 'c'], 'device-2': ['b']}
    """
    count = min(count, len(parts))
    return {f"device-{number + 1}": list(parts[number::count]) for number in range(count)}


def device_options(
    demo: Demo, inputs: Inputs, settings: Settings, dealt: Mapping[str, Sequence[str]], speed: str
) -> dict[str, Options]:
    """The source options of each device; the first one also takes what is nobody's part."""
    return {
        device: demo.source_options(inputs, settings, parts, first=index == 0, speed=speed)
        for index, (device, parts) in enumerate(dealt.items())
    }


def cut_of(demo: Demo, wanted: str, settings: Settings) -> str:
    """The cut that the planner is asked for: for `edge`, in a demo that is not strict, the names of all steps
    that may be on a device. Raises `PlacementError`.
    """
    if wanted != "edge" or demo.edge_is_strict:
        return wanted
    return ",".join(sorted(legal_cuts(load_flow(demo.flow_of(settings)).graph())[-1].edge))


def deployment_of(demo: Demo, manifest: Manifest, speed: str = "max", master: str = "local[2]") -> Deployment:
    """What to run for a manifest; raises what the demo's options and its cut raise."""
    settings = manifest.settings | manifest.surveyed
    return Deployment(
        demo.flow_of(settings),
        cut_of(demo, manifest.cut, settings),
        demo.step_options(settings),
        device_options(demo, paths_of(manifest), settings, manifest.devices, speed),
        master,
    )


def layout_of(plan: Plan) -> str:
    """A fingerprint of what a state folder depends on: the steps of each tier, and the records that cross."""
    channels = {channel.id: channel.schema.schema_id for channel in (*plan.channels, *plan.down)}
    layout = [list(plan.edge), list(plan.cloud), channels]
    return hashlib.sha256(msgspec.json.encode(layout)).hexdigest()


def paths_of(manifest: Manifest) -> dict[str, Path]:
    """Its inputs by the names of their options."""
    return {name: Path(file.path) for name, file in manifest.inputs.items()}
