"""source: where records are born. It has no input; the agent reads its splits and feeds its output stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from geartrain.declarations.options import Text, check_options
from geartrain.declarations.source import Source
from geartrain.errors import ConfigError, FlowError, SelectorError
from geartrain.fleet.selectors import ALL, IN_CLOUD, Selector, parse_selector
from geartrain.graph.graph import Graph, Step, Tier
from geartrain.graph.operator import Plain, Services, StreamProperties, Transform

ENABLED = "enabled"
"""The option that every source has beside its own: whether a device has it."""


def _enabled(value: Any, where: str) -> bool:
    text = str(value).lower()
    if isinstance(value, bool) or (isinstance(value, Text) and text in ("true", "false")):
        return text == "true"
    raise ConfigError(f"{where}.{ENABLED} = {value!r}: write true or false")


class SourceOperator(Plain, frozen=True):
    """A declared source.

    partitioned_by: the field whose values each live on one device only, or None; enabled: whether this device
    has it. One that lacks it opens no split of it, and says nothing of it. devices: a selector of those that
    are to have it, "" for all; where there is no fleet, as in a test, it asks nothing.
    """

    source: Source[Any]
    partitioned_by: str | None = None
    enabled: bool = True
    devices: str = ""
    kind = "source"

    def __post_init__(self) -> None:
        check_options(self.source)

    @property
    def in_cloud(self) -> bool:
        """Whether it is read in the cloud, by the platform's own device."""
        return self.devices == IN_CLOUD

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
        """A copy whose source has other options; `enabled`, unless the source has one of that name itself, is
        whether the device has it.

        Raises `ConfigError` for those that change what the flow's steps rest on: the order of its records,
        and whether there are any before 1970.
        """
        enabled = self.enabled
        if ENABLED in values and not hasattr(self.source, ENABLED):
            values = dict(values)
            enabled = _enabled(values.pop(ENABLED), where)
        changed = replace(self, source=self.source.with_options(values, where), enabled=enabled)
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


def declared_source(
    where: str, source: Source[Any], partitioned_by: str | None = None, devices: str = ALL
) -> SourceOperator:
    """The source that a flow declares; where: how a sentence begins.

    Raises `FlowError` for a selector that cannot be. A source with an option `enabled` of its own may have
    none: by that name a device is told that it lacks a source.
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
    return SourceOperator(source, partitioned_by, devices=chosen)


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
