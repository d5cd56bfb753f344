"""The devices of a run, drawn from its seed: what they read, their agents' settings, what their spools do.

Read by `geartrain_simulation.fleet.fleet`. Guarantees: a device is a function of the seed and its name alone,
so that taking one out of a run leaves the others as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from geartrain.planning import Plan
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.flow import SYSTEM_CHANNELS
from geartrain_cloud.log.roster import RosterChannel, RosterDocument
from geartrain_edge.settings import AgentSettings, Policy, UplinkSettings

DEVICES_MAX = 4
SPOOL_BYTES = (2_000, 10_000, 1 << 20)


@dataclass(frozen=True, slots=True)
class Device:
    """One device: how many rows it has recorded, how many readings its live sensor will give, and what its
    spool does when it is full. others: its rows of a further source; None: the flow has no such source.
    """

    name: str
    records: int = 24
    readings: int = 0
    others: int | None = None
    policy: Policy = Policy.BLOCK
    spool_bytes_max: int = 10_000


def recorded_devices(count: int, records: int, seed: int) -> list[Device]:
    """Devices that replay, with room enough or with sources that wait."""
    devices = []
    for number in range(1, count + 1):
        random = Random(f"{seed}/device-{number}/spool")
        devices.append(Device(f"device-{number}", records, spool_bytes_max=random.choice(SPOOL_BYTES)))
    return devices


def draw_devices(seed: int) -> list[Device]:
    """One to four devices: those that replay, and in a third of the runs live ones beside them. In a third of
    the runs the flow has one source more, which some of them lack, or all.
    """
    random = Random(f"{seed}/devices")
    live, merged = random.random() < 0.35, Random(f"{seed}/merged").random() < 0.35
    return [
        _drawn(seed, f"device-{number}", merged, live=live and (number == 1 or random.random() < 0.4))
        for number in range(1, random.choice((1, 2, 2, 3, DEVICES_MAX)) + 1)
    ]


def _drawn(seed: int, name: str, merged: bool, *, live: bool) -> Device:
    random = Random(f"{seed}/{name}/device")
    policies = [Policy.DROP_NEWEST, Policy.DROP_OLDEST, Policy.DOWNSAMPLE]
    if live:
        readings, records = random.choice((10, 20)), random.choice((0, 0, 10))
    else:
        readings, records = 0, random.choice((8, 16, 24))
        policies += [Policy.BLOCK] * 5
    others = Random(f"{seed}/{name}/others").choice((0, 0, 6, 12)) if merged else None
    return Device(name, records, readings, others, random.choice(policies), random.choice(SPOOL_BYTES))


def agent_settings(seed: int, device: Device) -> AgentSettings:
    """How a device's agent is set."""
    random, since = Random(f"{seed}/{device.name}/settings"), Random(f"{seed}/{device.name}/since")
    uplink = UplinkSettings(
        window=random.choice((1, 3, 16, 64)),
        resend_ms=random.choice((200, 1_000, 2_000)),
        resend_ms_max=random.choice((2_000, 10_000)),
        backoff_ms_max=random.choice((500, 10_000)),
        silence_ms=random.choice((5_000, 20_000)),
        trim_ms=since.choice((1, 50, 1_000)),
    )
    return AgentSettings(
        device.name,
        spool_bytes_max=device.spool_bytes_max,
        records_max=random.choice((1, 5, 50)),
        interval_ms=random.choice((10, 200)),
        linger_ms=since.choice((0, 5, 50)),
        durability_ms=Random(f"{seed}/{device.name}/durability").choice((0, 0, 0, 300, 1_000)),
        uplink=uplink,
        policy=device.policy,
        downsample_keep=random.choice((2, 5)),
    )


def partitions_of(seed: int) -> int:
    """How many partitions a flow has."""
    return Random(f"{seed}/partitions").choice((1, 1, 1, 3))


def draw_ingest(
    seed: int, plan: Plan, members: Mapping[str, tuple[str, ...]], devices: Sequence[Device]
) -> tuple[IngestConfig, RosterDocument]:
    """How ingest is set, and what the roster says of the flow; members: the devices that have each source.
    With a live device among them the flow goes on without one that is not heard of.
    """
    random = Random(f"{seed}/ingest/config")
    has = {one.name: tuple(s for s, several in members.items() if one.name in several) for one in devices}
    document = RosterDocument(
        {
            channel.id: RosterChannel(tuple(sorted(channel.sources)))
            for channel in plan.channels
            if channel.id not in SYSTEM_CHANNELS
        },
        tuple(members),
        has,
        bounded=not any(device.readings for device in devices),
        join_timeout_s=random.choice((3.0, 60.0)),
        idle_after_s=random.choice((3.0, 8.0, 30.0)),
    )
    config = IngestConfig(
        partitions=partitions_of(seed),
        group_commit_ms=random.choice((1, 20, 100)),
        group_rows_max=random.choice((1, 20, 50_000)),
        waiting_batches_max=random.choice((2, 16, 256)),
        merge_grace_s=random.choice((0.5, 60.0)),
        nack_interval_ms=random.choice((10, 100)),
        status_interval_ms=5_000,
        resubscribe_ms=10_000,
    )
    return config, document
