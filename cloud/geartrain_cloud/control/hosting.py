"""The Spark host and the downlink as control sees them: told by a file what to run, heard by another.

Between the reconciler and `gear-spark` or `gear-downlink`. Each file is replaced in one step. Guarantees:
what is written is a function of the store alone, so that it may be written again at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from geartrain.operators.broadcast import Broadcast
from geartrain.ports import StateSize
from geartrain.revision import Revision
from geartrain_cloud.control_store.model import Instance, Options, Planned, State, Wanted
from geartrain_cloud.hosting.skew import Hottest
from geartrain_cloud.hosting.wanted import SLOTS
from geartrain_cloud.platform.followed import put_wanted
from geartrain_cloud.platform.places import PlatformPlaces, read_report


class HostReport(msgspec.Struct, frozen=True):
    """What the host says of an instance; state "" where it says nothing; next_why: why it does not go over to
    the next revision.
    """

    state: str = ""
    why: str = ""
    next_why: str = ""
    positions: dict[str, int] = {}
    clocks: dict[str, int] = {}
    rows: int = 0
    lag: int = 0
    micro_batch_ms: float | None = None
    entries_per_s: float | None = None
    run: int = 0
    revision: int = 1
    prepared: int = 1
    stuck: int = 0
    stages: int = 0
    slots: int = 0
    slots_wanted: int = 0
    skew: list[Hottest] = []
    state_bytes: int | None = None
    unread: dict[str, int] = {}
    kept: dict[str, StateSize] | None = None


@dataclass(frozen=True, slots=True)
class ToHost:
    """An instance for the host. drain: only to the end that its log has then; former: its revisions before,
    from the first on; following: the one that it is to go over to.
    """

    instance: Instance
    drain: bool = False
    former: Sequence[Planned] = ()
    following: Planned | None = None


def is_hosted(instance: Instance, assigned: Mapping[str, str]) -> bool:
    """Whether the host is to have the instance: from its first device on, until it has ended or a kill needs
    it no longer.
    """
    if instance.state is State.ENDED or not assigned:
        return False
    return instance.wanted is Wanted.RUNNING or any(state != "left" for state in assigned.values())


def write_hosted(places: PlatformPlaces, hosted: Iterable[ToHost]) -> None:
    """Tell the host what to run; raises `OSError`."""
    put_wanted(places.spark_wanted, {one.instance.instance: _flow(places, one) for one in hosted})


def knows_next(places: PlatformPlaces, told: ToHost, serial: int) -> bool:
    """Whether the host, which has come to `serial`, was told by then of the revision to which the instance is
    to go over.
    """
    found = read_report(places.spark_wanted)
    flow = found.get("flows", {}).get(told.instance.instance)
    return bool(flow == _flow(places, told) and serial >= found.get("serial", 0))


def write_outboxes(places: PlatformPlaces, hosted: list[Instance]) -> None:
    """Tell the downlink whose outboxes to send: of those that the host has all that send to devices, but none
    that had ended and is only replayed.

    Raises `OSError`.
    """
    sent = [one.instance for one in hosted if one.outline.sends and one.state is not State.REPLAYING]
    put_wanted(places.downlink_wanted, {name: {"outbox": str(places.outbox(name))} for name in sent})


def unsent_because(places: PlatformPlaces, instance: str) -> str:
    """Why the downlink cannot send the outbox of an instance; empty where it can, or says nothing."""
    flows = read_report(places.downlink_status).get("flows", {})
    said = flows.get(instance) if isinstance(flows, dict) else None
    return str(said.get("why", "")) if isinstance(said, dict) and said.get("state") == "failed" else ""


def _flow(places: PlatformPlaces, told: ToHost) -> dict[str, Any]:
    instance, newest = told.instance, told.following or told.instance
    number = instance.revision if told.following is None else told.following.number
    former = [_plan(places, instance, one) for one in told.former]
    former += [_plan(places, instance, instance)] if told.following is not None else []
    return {
        **_plan(places, instance, newest),
        "tables": str(places.tables(instance.instance)),
        "run": instance.run,
        "isolation": instance.isolation,
        "attempt": instance.attempt,
        **({"revision": number, "former": former} if number > 1 else {}),
        **({"slots": instance.slots} if instance.slots != SLOTS else {}),
        **({"broadcasts": found} if (found := _broadcasts(instance)) else {}),
        **({"end": "ended"} if instance.state is State.REPLAYING else {"end": "drain"} if told.drain else {}),
    }


def _broadcasts(instance: Instance) -> list[str]:
    """The steps of which every slot has the whole table, by id."""
    document = instance.outline.document
    steps = Revision.from_json(document).steps if document else ()
    return sorted(step.id for step in steps if step.kind == Broadcast.kind)


def _plan(places: PlatformPlaces, instance: Instance, one: Instance | Planned) -> dict[str, Any]:
    """What the host is told of a revision of an instance."""
    sources, steps = split_options(instance, one.options)
    given_up = {channel: list(layouts) for channel, layouts in one.outline.given_up.items()}
    return {
        "flow": one.flow,
        "cut": cut_in_file(one.cut),
        **({"cuts": list(one.outline.cuts)} if one.outline.cuts else {}),
        "sources": sources,
        "steps": steps,
        **({"bundle": str(places.code(one.outline.code))} if one.outline.bundled else {}),
        **({"drops": list(one.drops)} if one.drops else {}),
        **({"without": list(one.outline.without)} if one.outline.without else {}),
        **({"drain": True} if one.outline.drain else {}),
        **({"follows": one.outline.follows} if one.outline.follows else {}),
        **({"begin": one.outline.begin, "attached": list(one.outline.attached)} if one.outline.begin else {}),
        **({"given_up": given_up} if given_up else {}),
    }


def split_options(instance: Instance, options: Options) -> tuple[Options, Options]:
    """The options of sources, and those of other steps, as configuration files have them apart."""
    sources = {source.id for source in instance.outline.sources}
    return (
        {step: values for step, values in options.items() if step in sources},
        {step: values for step, values in options.items() if step not in sources},
    )


def cut_in_file(cut: str) -> str | list[str]:
    """A cut as a configuration file has it."""
    return cut if cut in ("auto", "edge", "cloud") else [part.strip() for part in cut.split(",")]


def read_hosted(places: PlatformPlaces) -> tuple[int, dict[str, HostReport]]:
    """The serial that the host has come to, and what it says of each instance."""
    found = read_report(places.spark_status)
    serial, flows = found.get("serial", 0), found.get("flows", {})
    reports: dict[str, HostReport] = {}
    for name, raw in flows.items() if isinstance(flows, dict) else ():
        try:
            reports[name] = msgspec.convert(raw, HostReport)
        except msgspec.ValidationError:
            reports[name] = HostReport(state=str(raw.get("state", "")) if isinstance(raw, dict) else "")
    return serial if isinstance(serial, int) else 0, reports
