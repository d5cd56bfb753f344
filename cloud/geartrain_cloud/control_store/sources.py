"""Which sources of an app a device has, as far as the platform says.

Between the control store and what is told to ingest and devices. A source may be for some devices only, by a
selector in the flow, or for the platform's own device alone. Who lacks a source is settled when a device gets
the app, since what it begins with may not change under it. Guarantees: `enabled`, as it was submitted for the
app or for the device, stands above the selector. It gives no device a source in the cloud, and the platform's
own no other. What a device's own file says stands above both, and is not known here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from geartrain.fleet.selectors import ALL, IN_CLOUD, Selector, is_cloud_device, parse_selector
from geartrain.operators.source import ENABLED
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.model import Device, Instance, Outline, Report, SourceOutline, merged

Lacks = Mapping[str, tuple[str, ...]]
"""By device, the sources that are not for it."""
OPENED = ("running", "draining", "ended")
"""What a device says of an instance whose sources it has opened."""


def has_cloud_sources(outline: Outline) -> bool:
    """Whether a source of the flow is read by the platform's own device."""
    return any(source.devices == IN_CLOUD for source in outline.sources)


def needs_devices(outline: Outline) -> bool:
    """Whether devices of the fleet have something to do for the flow."""
    return outline.down or any(source.devices != IN_CLOUD for source in outline.sources)


def takes_part(outline: Outline, selector: Selector, device: Device) -> bool:
    """Whether a device is to run the app: the platform's own where a source is in the cloud, others as the
    selector says.
    """
    if device.retired:
        return False
    if is_cloud_device(device.device, device.labels):
        return has_cloud_sources(outline)
    return needs_devices(outline) and selector.matches(device.device, device.labels)


def check_meets_devices(outline: Outline, selector: Selector, meant: Sequence[Device]) -> None:
    """Raise `ConflictError` where none of the devices that are `meant` is of the fleet, though some have
    something to do for the flow. `all` means those that come, too, so that an empty fleet is no mistake.
    """
    there = [one for one in meant if not is_cloud_device(one.device, one.labels)]
    if there or selector == Selector() or not needs_devices(outline):
        return
    if selector.name:
        mend = f"add it by gear device add {selector.name}, or see gear device ls"
    else:
        labels = " ".join(f"{term.key}={term.value}" for term in selector.terms if term.equal)
        mend = f"label one by gear device label DEVICE {labels or 'KEY=VALUE'}, or see gear device ls"
    raise ConflictError(
        f"no device matches {selector}: {mend}; or choose others with --devices, or say --allow-none "
        "(allow_none in REST), so that the app waits for one that comes"
    )


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
    elsewhere = _elsewhere(instance.outline, lacks)

    def is_enabled(source: str) -> bool:
        said: Any = options.get(source, {}).get(ENABLED, source not in lacks)
        return source not in elsewhere and said not in (False, "false")

    return tuple(source.id for source in instance.outline.sources if is_enabled(source.id))


def with_since(outline: Outline, held: Outline, number: int) -> Outline:
    """The outline of revision `number`, whose sources say with which one they came, and which says what has
    gone; held: of that before.
    """
    known = {source.id: source.since for source in held.sources}
    sources = [replace(source, since=known.get(source.id, number)) for source in outline.sources]
    here = {source.id for source in sources}
    gone = {name: since for name, since in {**held.gone, **known}.items() if name not in here}
    return replace(outline, sources=sources, gone=gone)


def _elsewhere(outline: Outline, lacks: Collection[str]) -> frozenset[str]:
    """The sources that no option gives to a device: those in the cloud, and for the platform's own, which has
    these, all others.
    """
    in_cloud = {source.id for source in outline.sources if source.devices == IN_CLOUD}
    is_cloud = any(source not in lacks for source in in_cloud)
    return frozenset(source.id for source in outline.sources if (source.id in in_cloud) is not is_cloud)


def lacking(
    instance: Instance, device: str, lacks: Collection[str], report: Report | None
) -> tuple[str, ...]:
    """The sources that a device lacks, sorted: as it says itself once it has opened them, else as `has`. What
    it says is of the revision that it runs, which knows nothing of a source that came later.
    """
    there = has(instance, device, lacks)

    def is_lacked(source: SourceOutline) -> bool:
        if report is not None and report.state in OPENED and source.since <= report.number:
            return source.id in report.lacks
        return source.id not in there

    return tuple(sorted(source.id for source in instance.outline.sources if is_lacked(source)))


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
    firm = {
        one: {ENABLED: False}
        for one in _elsewhere(instance.outline, lacks)
        if has_cloud_sources(instance.outline)
    }
    if not told and not firm:
        return instance
    own = merged(merged(told, instance.device_options.get(device, {})), firm)
    return replace(instance, device_options={**instance.device_options, device: own})
