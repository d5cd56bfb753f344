"""source: where records are born. It has no input; the agent reads its splits and feeds its output stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

import msgspec
from msgspec.structs import replace

from geartrain.declarations.options import Text, check_options, secret_options
from geartrain.declarations.source import Source
from geartrain.errors import ConfigError, FlowError, SelectorError
from geartrain.fleet.selectors import ALL, IN_CLOUD, Selector, parse_selector
from geartrain.graph.graph import Graph, Step, Tier
from geartrain.graph.operator import Plain, Services, StreamProperties, Transform
from geartrain.operators.windowed import TIME_ZONE, ZONE_RULES

ENABLED = "enabled"
"""The option that every source has beside its own: whether a device has it."""
HISTORY = "history"
"""The other such option: a `HistoryFiles` as data."""
HISTORIES = "geartrain_devices.history"
"""The module whose `History` reads it; what runs without histories need not have it."""


class HistoryFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Records of before, in files: `files` are their paths, `time` is the column of the event time, `device`
    whose history it is. alone: the source gives nothing else, and is read in the cloud. options: of the
    sources that read such files, which say how these are written.
    """

    files: list[str] = []
    time: str = "time"
    device: str = ""
    alone: bool = False
    options: dict[str, Any] = {}


def _enabled(value: Any, where: str) -> bool:
    text = str(value).lower()
    if isinstance(value, bool) or (isinstance(value, Text) and text in ("true", "false")):
        return text == "true"
    raise ConfigError(f"{where}.{ENABLED} = {value!r}: write true or false")


class SourceOperator(Plain, frozen=True):
    """A declared source.

    partitioned_by: the field whose values each live on one device only, or None; enabled: whether this device
    has it. One that lacks it opens no split of it, and says nothing of it. devices: a selector of those that
    are to have it, "" for all; where there is no fleet, as in a test, it asks nothing. history: records of
    before, which `source` then gives first. every_us: about so long between two records of a key,
    microseconds, 0 where the flow does not say; only the estimate of bytes reads it.
    """

    source: Source[Any]
    partitioned_by: str | None = None
    enabled: bool = True
    devices: str = ""
    history: HistoryFiles | None = None
    every_us: int = 0
    kind = "source"

    def __post_init__(self) -> None:
        check_options(self.source)

    @property
    def in_cloud(self) -> bool:
        """Whether it is read in the cloud, by the platform's own device."""
        return self.devices == IN_CLOUD

    @property
    def declared(self) -> Source[Any]:
        """The source that the flow declares, whatever history comes first."""
        source: Any = self.source
        found: Source[Any] = source if self.history is None else source.original
        return found

    @property
    def goes_on(self) -> Source[Any]:
        """What it reads once a history has come to its end: the same for devices with one and without."""
        is_before = self.history is not None and not self.history.alone
        return self.declared if is_before else self.source

    @property
    def has_zone(self) -> bool:
        """Whether the source has an option that names a time zone, and one for the rules of that."""
        return hasattr(self.declared, TIME_ZONE) and hasattr(self.declared, ZONE_RULES)

    @property
    def zone(self) -> str:
        """The time zone whose rules the source asks for, "" where none is set."""
        source: Any = self.declared
        return str(source.time_zone) if self.has_zone else ""

    def is_meant_for(self, device: str, labels: Mapping[str, str]) -> bool:
        """Whether a device of this name and these labels is to have the source."""
        return parse_selector(self.devices or ALL).matches(device, labels)

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """What the source declares of itself."""
        return StreamProperties(self.partitioned_by, self.source.keeps_order, born_in_cloud=self.in_cloud)

    def open(self, services: Services) -> Transform:
        """A source transforms nothing: batches are fed to its output stream."""
        return lambda batch: batch

    def with_options(self, values: Mapping[str, Any], where: str) -> SourceOperator:
        """A copy whose source has other options; `enabled` and `history`, unless the source has one of that
        name itself, are whether the device has it, and what comes first.

        Raises `ConfigError` for those that change what the flow's steps rest on: the order of its records,
        and whether there are any before 1970.
        """
        enabled, history, own = self.enabled, self.history, dict(values)
        source = self.declared
        if ENABLED in values and not hasattr(source, ENABLED):
            enabled = _enabled(own.pop(ENABLED), where)
        if HISTORY in values and not hasattr(source, HISTORY):
            history = _history(own.pop(HISTORY), where)
        source = source.with_options(own, where)
        changed = replace(self, source=source, enabled=enabled)
        if history is not None:
            changed = _with_history(changed, history, where)
        promised, given = self.source, changed.source
        for what, differs in (
            ("records come in the order of time", given.keeps_order is not promised.keeps_order),
            ("there are records before 1970", given.since_1970 is not promised.since_1970),
        ):
            if differs:
                raise ConfigError(
                    f"{where}: {', '.join(sorted(values))} would change whether {what}, which the steps of "
                    "the flow rest on: set it where the flow is written"
                )
        return changed


def _history(value: Any, where: str) -> HistoryFiles:
    try:
        return msgspec.convert(value, HistoryFiles)
    except msgspec.ValidationError as error:
        said = str(error).replace("`", "")
        raise ConfigError(f"{where}.{HISTORY}: {said[:1].lower()}{said[1:]}") from None


def _with_history(operator: SourceOperator, history: HistoryFiles, where: str) -> SourceOperator:
    """The source that gives records of before first; raises `ConfigError` where nothing here reads them."""
    try:
        first: Any = import_module(HISTORIES).History
    except ImportError:
        raise ConfigError(
            f"{where}.{HISTORY}: geartrain-devices reads histories, and is not installed here: install it"
        ) from None
    hidden = [
        name for name in sorted(secret_options(type(operator.source))) if getattr(operator.source, name)
    ]
    if hidden and not history.alone:
        raise ConfigError(
            f"{where}.{HISTORY}: a source with a secret ({hidden[0]}) can have no history before it"
        )
    source: Any = first(original=operator.source, **msgspec.structs.asdict(history))
    if any(isinstance(value, Text) for value in history.options.values()):
        history = replace(history, options=source.read_options(f"{where}.{HISTORY}.options"))
        source = first(original=operator.source, **msgspec.structs.asdict(history))
    devices = IN_CLOUD if history.alone else operator.devices
    return replace(operator, source=source, history=history, devices=devices)


def declared_source(
    where: str,
    source: Source[Any],
    partitioned_by: str | None = None,
    devices: str = ALL,
    every: timedelta | None = None,
) -> SourceOperator:
    """The source that a flow declares; where: how a sentence begins.

    Raises `FlowError` for a selector and a time that cannot be. A source with an option `enabled` of its own
    may have none: by that name a device is told that it lacks a source.
    """
    try:
        selector = parse_selector(devices)
    except SelectorError as error:
        raise FlowError(f"{where}: devices={devices!r}: {error}") from None
    chosen = "" if selector == Selector() else str(selector)
    if chosen and hasattr(source, ENABLED):
        raise FlowError(
            f"{where}: a source with an option {ENABLED} of its own cannot be told by devices= where it is: "
            f"give that option of {type(source).__name__} another name"
        )
    if every is not None and every <= timedelta():
        raise FlowError(f"{where}: every={every!r}: give a time that is longer than nothing")
    return SourceOperator(
        source,
        partitioned_by,
        devices=chosen,
        every_us=0 if every is None else every // timedelta(microseconds=1),
    )


def pinned_source(where: str, operator: SourceOperator, tier: Tier) -> SourceOperator:
    """The source where `tier` puts it: in the cloud, or on its devices; where: how a sentence begins.

    Raises `FlowError` for one that is for some devices.
    """
    if tier == "edge":
        return replace(operator, devices="") if operator.in_cloud else operator
    if operator.devices not in ("", IN_CLOUD):
        raise FlowError(
            f"{where}: devices={operator.devices!r} says which devices have it, and at('cloud') that none "
            "has: leave one of them out"
        )
    return replace(operator, devices=IN_CLOUD)


def check_told_apart(graph: Graph) -> None:
    """Raise `FlowError` where sources in the cloud stand beside one with an option `enabled` of its own: by
    that name the platform's device is told which of them it lacks.
    """
    sources = [s for s in graph.steps if isinstance(s.operator, SourceOperator)]
    own = [
        s for s in sources if isinstance(s.operator, SourceOperator) and hasattr(s.operator.source, ENABLED)
    ]
    if own and any(is_in_cloud(step) for step in sources):
        raise FlowError(
            f"flow {graph.name}, source {own[0].id!r}: a flow with sources in the cloud can have no source "
            f"with an option {ENABLED} of its own: give that option another name"
        )


def check_sources(graph: Graph) -> None:
    """Ask each source for options with which no device could open it, before anything is read.

    Raises `SourceError`, one sentence that names the option.
    """
    for step in graph.sources():
        if isinstance(step.operator, SourceOperator):
            step.operator.declared.check_settings(step.id, step.out)


def is_in_cloud(step: Step) -> bool:
    """Whether the step is a source that is read in the cloud."""
    return isinstance(step.operator, SourceOperator) and step.operator.in_cloud


def on_device(graph: Graph, device: str, labels: Mapping[str, str]) -> Graph:
    """The graph as a device of this name and these labels has it: without the sources that are for others.

    Options that are set afterwards stand above that.
    """
    return replace(graph, steps=tuple(_here(step, device, labels) for step in graph.steps))


def _here(step: Step, device: str, labels: Mapping[str, str]) -> Step:
    operator = step.operator
    if not isinstance(operator, SourceOperator) or operator.is_meant_for(device, labels):
        return step
    return replace(step, operator=replace(operator, enabled=False))
