"""The demos that are installed: what an example must offer so that `gear demo` can run it.

Found through the entry-point group `geartrain.demos`, so that the data centre's package imports no example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from geartrain.errors import ConfigError
from geartrain_cloud.pages.page import Page, Rows

GROUP = "geartrain.demos"

Options = dict[str, dict[str, Any]]


class Demo(Protocol):
    """A demo whose input is one file, dealt by parts (symbols, sensors, streets) to devices."""

    @property
    def name(self) -> str:
        """As in `gear demo NAME`."""
        ...

    @property
    def flow(self) -> str:
        """`module:name`."""
        ...

    @property
    def table(self) -> str:
        """The table that is its output."""
        ...

    @property
    def page(self) -> Page:
        """Its page."""
        ...

    @property
    def devices_default(self) -> int:
        """How many agents it is for, if there are as many parts."""
        ...

    def write_sample(self, path: Path) -> None:
        """Write the demo's own input; raises `SourceError`."""
        ...

    def parts(self, path: Path) -> list[str]:
        """What of an input file can be dealt to devices, sorted; raises `SourceError`."""
        ...

    def source_options(self, path: Path, parts: Sequence[str], *, others: bool, speed: str) -> Options:
        """The options of the sources on a device with these parts; `others`: and rows that name no part."""
        ...

    def step_options(self, period: str) -> Options:
        """The options of the steps."""
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
    demo: Demo, path: Path, dealt: Mapping[str, Sequence[str]], speed: str
) -> dict[str, Options]:
    """The source options of each device; the first one also takes the rows that name no part."""
    return {
        device: demo.source_options(path, parts, others=index == 0, speed=speed)
        for index, (device, parts) in enumerate(dealt.items())
    }
