"""Which sources of an app a device has, as far as the platform says.

Between the control store and what is told to ingest and devices. A source may be for some devices only, by a
selector in the flow. Who lacks a source is settled when a device gets the app, since what it begins with may
not change under it. Guarantees: `enabled`, as it was submitted for the app or for the device, stands above
the selector. What the device's own file says stands above both, and is not known here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from geartrain.fleet.selectors import ALL, parse_selector
from geartrain.operators.source import ENABLED
from geartrain_cloud.control.model import Device, Instance, Outline, Report, merged

Lacks = Mapping[str, tuple[str, ...]]
"""By device, the sources that are not for it."""
OPENED = ("running", "draining", "ended")
"""What a device says of an instance whose sources it has opened."""


def not_for(outline: Outline, device: Device) -> tuple[str, ...]:
    """The sources that are not for a device as it is labelled, sorted."""
    return tuple(
        sorted(
            source.id
            for source in outline.sources
            if not parse_selector(source.devices or ALL).matches(device.device, device.labels)
        )
    )


def after_label(outline: Outline, held: tuple[str, ...], device: Device) -> tuple[str, ...]:
    """The sources that a device which runs the app goes on without, once it is labelled so: it gets those
    that may join, and loses none.
    """
    meant, joins = not_for(outline, device), {source.id for source in outline.sources if source.joins}
    return tuple(source for source in held if source in meant or source not in joins)


def has(instance: Instance, device: str, lacks: Collection[str] = ()) -> tuple[str, ...]:
    """The sources that a device has; lacks: those that are not for it."""
    options = merged(instance.options, instance.device_options.get(device, {}))

    def is_enabled(source: str) -> bool:
        said: Any = options.get(source, {}).get(ENABLED, source not in lacks)
        return said not in (False, "false")

    return tuple(source.id for source in instance.outline.sources if is_enabled(source.id))


def lacking(
    instance: Instance, device: str, lacks: Collection[str], report: Report | None
) -> tuple[str, ...]:
    """The sources that a device lacks, sorted: as it says itself once it has opened them, else as `has`."""
    there = has(instance, device, lacks)
    if report is not None and report.state in OPENED:
        return tuple(sorted(report.lacks))
    return tuple(sorted(source.id for source in instance.outline.sources if source.id not in there))


def members(
    instance: Instance, device: str, lacks: Collection[str], report: Report | None
) -> tuple[str, ...]:
    """The sources for which a device may be waited: those that it was told to have, and those that it has all
    the same, by its own file.

    One that it lacks by its own file stays among them: ingest hears that from the device itself, behind the
    last record of it.
    """
    told, without = has(instance, device, lacks), lacking(instance, device, lacks, report)
    return tuple(s.id for s in instance.outline.sources if s.id in told or s.id not in without)


def on_device(instance: Instance, device: str, lacks: Collection[str]) -> Instance:
    """The instance as a device is told it: of sources that are for some devices it says which are for it."""
    told = {
        source.id: {ENABLED: source.id not in lacks}
        for source in instance.outline.sources
        if source.devices and ENABLED not in instance.options.get(source.id, {})
    }
    if not told:
        return instance
    own = merged(told, instance.device_options.get(device, {}))
    return replace(instance, device_options={**instance.device_options, device: own})
