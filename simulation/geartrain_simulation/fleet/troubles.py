"""What goes wrong in a run, as plain data drawn from its seed: each fault with its rate, reach and time.

They act from outside the nodes. Guarantees: each fault can be left out by itself, and the others strike as
before. All of them are over at `HEALED_S`; a run that does not end after that has found a fault of the code.
Kills aim at the points around effects, because kills at random times miss what lies between a write and its
fsync.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from random import Random

from geartrain_simulation.fleet.devices import Device, partitions_of

HEALED_S = 12.0
"""Virtual time from which on nothing goes wrong any more."""
_LATEST_S = 9.0

NET_POINTS = ("net.connect", "net.subscribe", "net.publish", "net.publish done", "net.incoming")
SPOOL_POINTS = (
    *("spool.commit", "spool.commit done", "spool.trim", "spool.trim done", "spool.write half"),
    *("spool.write done", "spool.fsync done", "spool.open done"),
)
LOG_POINTS = (
    *("disk.write half", "disk.write done", "disk.fsync", "disk.fsync done", "disk.rename done"),
    *("disk.remove done", "ledger.commit", "ledger.commit done", "ledger.write half", "ledger.write done"),
    *("ledger.fsync done", "ledger.open done"),
)
INGEST, SECOND = "ingest", "ingest-b"
"""The nodes that take in: the second one serves a part of the buckets, where there are two."""
READER = "spark"
"""The node that reads the log."""
READER_POINTS = (
    *("spark.plan", "spark.plan done", "spark.read", "spark.write", "spark.write done"),
    *("spark.commit", "spark.commit done"),
)
NTH_MAX = 40
"""A kill strikes at one of the first so many points of its name."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    kind: one of `KINDS`; node: whom it strikes, empty for the broker and the net; at_s, for_s: from when and
    for how long, virtual seconds; rate: of each effect; reach: how far, in the kind's own unit; point, nth:
    where a kill strikes, or which point of `buggify` does.
    """

    kind: str
    node: str = ""
    at_s: float = 0.0
    for_s: float = 0.0
    rate: float = 0.0
    reach: float = 0.0
    point: str = ""
    nth: int = 0

    def __str__(self) -> str:
        parts = [self.kind, self.node]
        for one in fields(self)[2:]:
            value = getattr(self, one.name)
            if value:
                parts.append(f"{one.name}={value:g}" if isinstance(value, float) else f"{one.name}={value}")
        return " ".join(part for part in parts if part)


NET_RATES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "drop": ((0.02, 0.1, 0.3), (0.0,)),
    "duplicate": ((0.05, 0.3), (0.0,)),
    "reorder": ((0.05, 0.3), (0.05, 1.0, 5.0)),
    "delay": ((0.02, 0.1), (20.0, 120.0)),
}
"""Rates of each leg of a publish; reach: how far it is held back at the most, seconds."""
DISK_RATES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "write_error": ((0.02, 0.2), (0.0,)),
    "no_space": ((0.3, 1.0), (0.0,)),
    "sync_error": ((0.05, 0.3), (0.0,)),
    "slow_sync": ((0.1, 0.5), (0.5, 5.0)),
}
"""Rates of a node's writes and syncs; reach: how slow a sync is at the most, seconds."""
LOSSES = ("lost", "torn", "reordered")
"""What power loss does to a node's un-synced writes, whenever it strikes."""
TIMED = ("stop", "cut", "silence", "one way up", "one way down", "flap", "forget", "take over")
CLOCKS = ("offset", "drift", "jump", "1970")
SPOOLS = ("restore", "delete", "flip", "copy")
"""What befalls a spool; copy: two agents on one spool, each on its own copy, under one name."""
POINTS = (
    *("early flush", "poll of one row", "window of one", "resend at once", "read again from the spool"),
    *("late trim", "slow ack", "tiny group commit", "merge at once"),
)
"""The points of `geartrain.ports.buggify` in agent and ingest."""
KINDS = (
    *(*NET_RATES, *DISK_RATES, *LOSSES, *TIMED, *CLOCKS, *SPOOLS),
    *("kill", "power loss", "broker crash", "queue limit", "buggify", "two ingests", "retention"),
)
"""Every kind of fault, by the name that leaves it out."""


def draw_faults(seed: int, devices: Sequence[Device]) -> list[Fault]:
    """The faults of a run: of each kind none in some runs, and much in others."""
    names = [device.name for device in devices]
    faults = _net_faults(Random(f"{seed}/net faults"))
    random = Random(f"{seed}/buggify")
    faults += [Fault("buggify", point=point) for point in POINTS if random.random() < 0.3]
    ingests = [INGEST]
    if partitions_of(seed) > 1 and Random(f"{seed}/two ingests").random() < 0.5:
        faults.append(Fault("two ingests"))
        ingests.append(SECOND)
    random = Random(f"{seed}/retention")
    if random.random() < 0.15:
        faults.append(Fault("retention", reach=random.choice((1.0, 2_000.0))))
    for name in (*names, *ingests):
        random = Random(f"{seed}/{name}/faults")
        faults += _crashes(random, name)
        faults += _disk_faults(random, name)
        faults += _meetings(random, name)
        faults += _clock_faults(random, name)
    for device in devices:
        faults += _spool_faults(Random(f"{seed}/{device.name}/spool faults"), device)
    return faults + _reader_faults(Random(f"{seed}/{READER}/faults"))


def _moment(random: Random) -> float:
    return round(random.uniform(0, _LATEST_S), 3)


def _timed(random: Random, fault: Fault, for_s_max: float) -> Fault:
    return replace(fault, at_s=_moment(random), for_s=round(random.uniform(0, for_s_max), 3))


def _rated(random: Random, kind: str, drawn: tuple[tuple[float, ...], tuple[float, ...]], node: str) -> Fault:
    rates, reaches = drawn
    fault = Fault(kind, node, rate=random.choice(rates), reach=random.choice(reaches))
    return replace(fault, for_s=HEALED_S) if random.random() < 0.5 else _timed(random, fault, 4.0)


def _net_faults(random: Random) -> list[Fault]:
    faults = [_rated(random, k, drawn, "") for k, drawn in NET_RATES.items() if random.random() < 0.55]
    crash = Fault("broker crash")
    faults += [_timed(random, crash, 2.0) for _ in range(random.choice((0, 0, 1, 2)))]
    if random.random() < 0.2:
        faults.append(_timed(random, Fault("queue limit", reach=random.choice((1, 3, 10))), 6.0))
    return faults


def _crashes(random: Random, node: str) -> list[Fault]:
    faults = [Fault(kind, node) for kind in LOSSES if random.random() < 0.6]
    points = (*NET_POINTS, *(LOG_POINTS if node in (INGEST, SECOND) else SPOOL_POINTS))
    for _ in range(random.choice((0, 1, 2, 3))):
        kind = "power loss" if random.random() < 0.5 else "kill"
        if random.random() < 0.25:
            faults.append(Fault(kind, node, at_s=_moment(random)))
        else:
            nth = random.randint(1, random.choice((3, NTH_MAX)))
            faults.append(Fault(kind, node, point=random.choice(points), nth=nth))
    return faults


def _reader_faults(random: Random) -> list[Fault]:
    kills = random.choice((0, 0, 0, 1, 3))
    places = [(random.choice(READER_POINTS), random.randint(1, 6)) for _ in range(kills)]
    return [Fault("kill", READER, point=point, nth=nth) for point, nth in places]


def _disk_faults(random: Random, node: str) -> list[Fault]:
    return [_rated(random, k, drawn, node) for k, drawn in DISK_RATES.items() if random.random() < 0.12]


def _meetings(random: Random, node: str) -> list[Fault]:
    faults = []
    for _ in range(random.choice((0, 0, 1, 2, 3))):
        kind = random.choice(TIMED)
        faults.append(_timed(random, Fault(kind, node), random.choice((1.0, 2.0, 5.0))))
    return faults


def _clock_faults(random: Random, node: str) -> list[Fault]:
    faults = []
    if random.random() < 0.5:
        faults.append(Fault("offset", node, reach=random.uniform(-(10**12), 10**12)))
    if random.random() < 0.3:
        faults.append(Fault("drift", node, reach=random.choice((-5e3, -100.0, 100.0, 5e3))))
    if random.random() < 0.15:
        faults.append(Fault("1970", node))
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        reach = random.choice((-1, 1)) * random.choice((10**5, 2 * 10**6, 3_600 * 10**6, 86_400 * 10**6))
        faults.append(Fault("jump", node, at_s=_moment(random), reach=float(reach)))
    for_s = round(random.uniform(0.1, 6.0), 3)
    return [replace(fault, for_s=for_s) if fault.kind == "1970" else fault for fault in faults]


def _spool_faults(random: Random, device: Device) -> list[Fault]:
    faults = []
    if random.random() < 0.08:
        faults.append(_timed(random, Fault(random.choice(("restore", "delete")), device.name), 4.0))
    if random.random() < 0.08:
        faults.append(Fault("flip", device.name, at_s=_moment(random)))
    # What a sensor says is said once, and where a spool was lost nobody knows what a copy of it took in.
    alone = device.readings or any(fault.kind in ("restore", "delete") for fault in faults)
    if random.random() < 0.06 and not alone:
        faults.append(Fault("copy", device.name, at_s=_moment(random)))
    return faults
