"""source: where records are born. It has no input; the agent reads its splits and feeds its output stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from geartrain.declarations.options import Text, check_options
from geartrain.declarations.source import Source
from geartrain.errors import ConfigError
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
    has it. One that lacks it opens no split of it, and says nothing of it.
    """

    source: Source[Any]
    partitioned_by: str | None = None
    enabled: bool = True
    kind = "source"

    def __post_init__(self) -> None:
        check_options(self.source)

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """What the source declares of itself."""
        return StreamProperties(self.partitioned_by, self.source.keeps_order)

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
