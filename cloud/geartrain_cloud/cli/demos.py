"""Demos: what a package must offer so that `gear demo` can run it, and how it is found.

A demo is an object behind an entry point of the group `geartrain.demos`. It declares its options, its flow,
the settings of its devices, its page and what to show at the end. `gear demo` starts and ends all processes.
So no demo imports this package, and this package knows neither the name nor the options of any demo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
from msgspec import inspect

from geartrain import __version__
from geartrain.errors import ConfigError
from geartrain.flow.loading import load_flow
from geartrain.planning import Plan, make_plan
from geartrain.revision import Revision, code_of, revision_of
from geartrain_cloud.cli.demo_folder import Manifest, Setup
from geartrain_cloud.control_store.names import instance_name
from geartrain_cloud.pages.page import Page, Tables

Options = Mapping[str, Mapping[str, Any]]

GROUP = "geartrain.demos"
INSTALL = "run pip install geartrain-examples[data]"


class Demo(Protocol):
    """What an entry point of the group leads to. An argument `options` is a value of its type `options`."""

    @property
    def about(self) -> str:
        """What it shows, in a sentence: the help of its command."""
        ...

    @property
    def examples(self) -> Sequence[str]:
        """Commands to try, for the help."""
        ...

    @property
    def options(self) -> type[Any]:
        """Its own options: a frozen `msgspec.Struct` with a default for each field.

        A field is an option: `limit_mps` is `--limit-mps`. Its type is str, int, float, bool, Path or a
        Literal of texts, perhaps optional; `msgspec.Meta` gives its description, its bounds and, as `extra`,
        its `metavar`. A Path is a file that the demo reads: `gear` notes what was in it.
        """
        ...

    @property
    def part(self) -> str:
        """What its input is dealt to devices by, in a word: `symbol`."""
        ...

    @property
    def devices(self) -> int:
        """How many devices it has unless the user says so, if there are as many parts."""
        ...

    @property
    def tables(self) -> Sequence[str]:
        """The tables that are its results: one is written to a file, several to a folder."""
        ...

    @property
    def page_while_running(self) -> bool:
        """Whether its page shows something before the end."""
        ...

    @property
    def moves(self) -> str:
        """The step that moves to the devices while it runs with `--throttle`, "" where there is no such
        option.
        """
        ...

    @property
    def throttled_devices(self) -> int:
        """How many devices it has then unless the user says so."""
        ...

    @property
    def throttled_speed(self) -> str:
        """How many event seconds pass in a second then, or `max`, unless the user says so."""
        ...

    def throttled(self, options: Any) -> Any:
        """Its options where links are throttled; asked only where it has a step that moves."""
        ...

    def flow(self, options: Any) -> str:
        """Its flow, as `module:name`."""
        ...

    def beside(self, folder: Path, options: Any) -> Mapping[str, Sequence[str]]:
        """What else runs in a state folder: arguments for Python, by the name of the process.

        A demo that has any has no end of its own: Ctrl-C ends it, with the results so far.
        """
        ...

    def set_up(self, folder: Path, options: Any, devices: int) -> Any:
        """Find or make its input, and deal it to so many devices: an object with the attributes of `Setup`.

        It may write `input.csv`, or files in `input/`, to the state folder. Raises `ConfigError` for options
        that do not go together, `SourceError` for an input that cannot be read, and `NoRecordError`.
        """
        ...

    def page(self, plan: Plan, drawing: str, options: Any) -> Page:
        """Its page; `drawing`: the plan as SVG."""
        ...

    def summary(self, rows: Tables) -> tuple[str, list[str], list[list[str]]]:
        """Title, column heads and rows of the table to print at the end."""
        ...


def installed() -> dict[str, EntryPoint]:
    """The demos that are installed, by name, not yet loaded; raises `ConfigError` where there are none."""
    found = {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda one: one.name)}
    if not found:
        raise ConfigError(f"no demo is installed: {INSTALL}")
    return found


def load_demo(name: str) -> Demo:
    """The demo of that name; raises `ConfigError` when it is not installed or cannot be loaded."""
    found = installed()
    if name not in found:
        raise ConfigError(f"the demo {name!r} is not installed; there are: {', '.join(found)}")
    try:
        demo: Demo = found[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the demo {name!r} cannot be loaded: {error}") from None
    return demo


class OwnOption(msgspec.Struct, frozen=True):
    """One of a demo's own options, as it declares it.

    kind: str, int, float, bool, Path, or the texts that there are to choose from; minimum, maximum: None for
    no bound.
    """

    name: str
    kind: type | tuple[str, ...]
    default: Any
    help: str = ""
    metavar: str | None = None
    minimum: float | None = None
    maximum: float | None = None

    @property
    def word(self) -> str:
        """As it is written: `--limit-mps`."""
        return f"--{self.name.replace('_', '-')}"


_KINDS: dict[type, type] = {
    inspect.BoolType: bool,
    inspect.FloatType: float,
    inspect.IntType: int,
    inspect.StrType: str,
}


def own_options(demo: Demo) -> list[OwnOption]:
    """The demo's own options, in the order of its type."""
    declared = cast(inspect.StructType, inspect.type_info(demo.options))
    return [_own_option(field) for field in declared.fields]


def _own_option(field: inspect.Field) -> OwnOption:
    described: dict[str, Any] = {}
    kind: Any = field.type
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            described |= (kind.extra_json_schema or {}) | (kind.extra or {})
            kind = kind.type
        else:
            (kind,) = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
    if isinstance(kind, inspect.LiteralType):
        python: Any = tuple(map(str, kind.values))
    else:
        python = kind.cls if isinstance(kind, inspect.CustomType) else _KINDS[type(kind)]
    return OwnOption(
        field.name,
        python,
        field.default,
        described.get("description", ""),
        described.get("metavar"),
        getattr(kind, "ge", None),
        getattr(kind, "le", None),
    )


def files_of(demo: Demo) -> frozenset[str]:
    """The names of its options that are files."""
    return frozenset(option.name for option in own_options(demo) if option.kind is Path)


def set_up(demo: Demo, folder: Path, options: Any, devices: int) -> Setup:
    """What `Demo.set_up` gives, as a `Setup`."""
    return msgspec.convert(demo.set_up(folder, options, devices), Setup, from_attributes=True)


@dataclass(frozen=True, slots=True)
class DemoApp:
    """What a demo submits under a name: `flow` as `module:name`, its cut, and the options of steps and of
    each device's sources.
    """

    name: str
    flow: str
    cut: str
    steps: Options
    devices: Mapping[str, Options]

    @property
    def instance(self) -> str:
        """Its life: the platform is its own, and it is submitted once."""
        return instance_name(self.name, 1)

    def plan(self) -> Plan:
        """The flow with its options, cut in two; raises `ConfigError`, `FlowError` or `PlacementError`."""
        return make_plan(load_flow(self.flow).graph().with_options(self.steps, "options"), self.cut)

    def revision(self) -> Revision:
        """The revision of the flow with its options and cut; raises what `plan` raises."""
        return revision_of(self.flow, self.plan(), self.steps, code_of(self.flow), __version__)


def app_of(demo: Demo, manifest: Manifest) -> DemoApp:
    """What to run for a manifest, by the flow's name; raises what the demo's options and its flow raise."""
    flow, setup = demo.flow(begun_options(demo, manifest)), manifest.setup
    return DemoApp(load_flow(flow).graph().name, flow, manifest.cut, setup.steps, setup.devices)


def begun_options(demo: Demo, manifest: Manifest) -> Any:
    """The demo's options as the run was begun with them; files are not among them, for they are dealt.

    Raises `ConfigError` when this version of the demo does not take them.
    """
    try:
        return msgspec.convert(manifest.options, demo.options)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"the demo {manifest.demo!r} no longer takes what it was begun with: {error}"
        ) from None
