"""How each kind of fault strikes a fleet: the one place that turns `Fault` into what happens in the world.

Stands between the drawn faults and the nodes, the broker and the disks. Guarantees: what a fault does ends
with its time, or at the healing; a fault that finds nothing to strike does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from geartrain_simulation.checkers import Checkers
from geartrain_simulation.fleet.troubles import (
    DISK_RATES,
    HEALED_S,
    LOSSES,
    NET_RATES,
    Fault,
)
from geartrain_simulation.machine.broker import INBOX_MAX, SimBroker
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.world import Node, World
from geartrain_simulation.stores.spools import SpoolBook

FLAP_S = 0.15
"""How long a flapping link is up or down, at the most."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What there is to strike. `spools`: by device; `climate`: what effects meet without any fault;
    `points`: those of `buggify` that may strike now; `copies`: by device, the second spool that a copy gives
    it.
    """

    world: World
    flow: str
    broker: SimBroker
    platters: Mapping[str, Platter]
    spools: Mapping[str, SpoolBook]
    checkers: Checkers
    climate: Faults
    points: set[str]
    copies: Mapping[str, SpoolBook]


def arrange(targets: Targets, faults: Sequence[Fault]) -> None:
    """Arrange all faults of a run, and its healing; before any node starts."""
    for platter in targets.platters.values():
        platter.losses = ()
    for fault in faults:
        if not fault.node or fault.node in targets.world.nodes:
            _ARRANGERS[fault.kind](targets, fault)
    targets.world.later(HEALED_S, heal, targets)


def heal(targets: Targets) -> None:
    """Let nothing go wrong any more: all that is in force ends, and no node dies."""
    targets.world.note("world", "heal")
    targets.broker.faults = targets.climate
    targets.broker.inbox_max = INBOX_MAX
    targets.points.clear()
    for node in targets.world.nodes.values():
        node.faults = targets.climate
        node.offset.drift_ppm = 0.0
        node.spare()
        if node.name in targets.spools and not node.offset.is_known(targets.world.loop.time()):
            _set_clock(targets, node)


def _rate_net(targets: Targets, fault: Fault) -> None:
    on = {fault.kind: fault.rate}
    if fault.reach:
        on["late_s_max" if fault.kind == "reorder" else "delay_s_max"] = fault.reach
    _during(targets, fault, lambda: _set_net(targets, on), lambda: _set_net(targets, {fault.kind: 0.0}))


def _set_net(targets: Targets, rates: Mapping[str, float]) -> None:
    targets.broker.faults = replace(targets.broker.faults, **rates)  # type: ignore[arg-type]


def _rate_disk(targets: Targets, fault: Fault) -> None:
    node, on = _node(targets, fault), {fault.kind: fault.rate}
    if fault.reach:
        on["slow_sync_s_max"] = fault.reach
    _during(targets, fault, lambda: _set_disk(node, on), lambda: _set_disk(node, {fault.kind: 0.0}))


def _set_disk(node: Node, rates: Mapping[str, float]) -> None:
    node.faults = replace(node.faults, **rates)  # type: ignore[arg-type]


def _during(targets: Targets, fault: Fault, begin: Callable[[], None], end: Callable[[], None]) -> None:
    if fault.at_s <= 0:
        begin()
    else:
        targets.world.later(fault.at_s, begin)
    targets.world.later(fault.at_s + fault.for_s, end)


def _lose(targets: Targets, fault: Fault) -> None:
    platter = targets.platters[fault.node]
    platter.losses = (*platter.losses, fault.kind)


def _crash(targets: Targets, fault: Fault) -> None:
    node, power = _node(targets, fault), fault.kind == "power loss"
    if fault.point:
        node.kill_at_point(fault.nth, fault.point, power=power)
    else:
        targets.world.later(fault.at_s, lambda: node.crash(power=power))


def _at(strike: Callable[[Targets, Fault], None]) -> Callable[[Targets, Fault], None]:
    return lambda targets, fault: targets.world.later(fault.at_s, strike, targets, fault)


def _flap(targets: Targets, fault: Fault) -> None:
    random, at_s = Random(str(fault)), fault.at_s
    while at_s < fault.at_s + fault.for_s:
        down_s = random.uniform(0, FLAP_S)
        targets.world.later(at_s, targets.broker.cut, fault.node, down_s)
        at_s += down_s + random.uniform(0.01, FLAP_S)


def _limit_queues(targets: Targets, fault: Fault) -> None:
    def limit(most: int) -> None:
        targets.broker.inbox_max = most

    _during(targets, fault, lambda: limit(int(fault.reach)), lambda: limit(INBOX_MAX))


def _offset(targets: Targets, fault: Fault) -> None:
    _node(targets, fault).offset.jump(round(fault.reach))


def _drift(targets: Targets, fault: Fault) -> None:
    _node(targets, fault).offset.drift_ppm = fault.reach


def _without_battery(targets: Targets, fault: Fault) -> None:
    """Each boot begins in 1970, and is told the time `for_s` later, or at the healing."""
    node, world = _node(targets, fault), targets.world

    def begin() -> None:
        node.offset.begin_at(0, world.loop.time())
        if fault.for_s:
            world.later(fault.for_s, tell, node.boots)

    def tell(boots: int) -> None:
        if node.boots == boots:
            _set_clock(targets, node)

    begin()
    node.on_power_loss(begin)


def _set_clock(targets: Targets, node: Node) -> None:
    targets.world.note("world", "time is set", node.name)
    node.offset.offset_us = 0


def _jump(targets: Targets, fault: Fault) -> None:
    targets.world.note("world", "jump", f"{fault.node} {fault.reach:g}")
    _node(targets, fault).offset.jump(round(fault.reach))


def _restore(targets: Targets, fault: Fault) -> None:
    """Back the spool up, and put the backup in its place later."""
    files = targets.platters[fault.node].save()
    targets.world.later(fault.for_s, _put_back, targets, fault, files)


def _delete(targets: Targets, fault: Fault) -> None:
    _put_back(targets, fault, {})


def _put_back(targets: Targets, fault: Fault, files: Mapping[str, bytes]) -> None:
    node, book = _node(targets, fault), targets.spools[fault.node]
    if node.finished.done():
        return
    targets.world.note("world", fault.kind, fault.node)
    node.crash()
    targets.checkers.repeats(fault.node, targets.flow, is_lost=not files)
    book.put_back(files)


def _flip(targets: Targets, fault: Fault) -> None:
    seq = targets.spools[fault.node].flip(Random(str(fault)))
    if seq:
        targets.world.note("world", "flip", f"{fault.node} {seq}")
        targets.checkers.delivery.doubles.add(fault.node)


def _copy(targets: Targets, fault: Fault) -> None:
    """Start a second agent of the device, on a copy of what its disk holds now."""
    targets.world.note("world", "copy", fault.node)
    targets.checkers.repeats(fault.node, targets.flow, is_copied=True)
    targets.copies[fault.node].put_back(targets.platters[fault.node].save())
    targets.world.nodes[copy_of(fault.node)].start()


def copy_of(device: str) -> str:
    """The name of the node that runs a device's agent for the second time."""
    return f"{device} again"


def _node(targets: Targets, fault: Fault) -> Node:
    return targets.world.nodes[fault.node]


_ARRANGERS: dict[str, Callable[[Targets, Fault], None]] = {
    **dict.fromkeys(NET_RATES, _rate_net),
    **dict.fromkeys(DISK_RATES, _rate_disk),
    **dict.fromkeys(LOSSES, _lose),
    "kill": _crash,
    "power loss": _crash,
    "stop": _at(lambda targets, fault: _node(targets, fault).stop()),
    "cut": _at(lambda targets, fault: targets.broker.cut(fault.node, fault.for_s)),
    "silence": _at(lambda targets, fault: targets.broker.silence(fault.node, fault.for_s)),
    "one way up": _at(lambda targets, fault: targets.broker.silence(fault.node, fault.for_s, ("up",))),
    "one way down": _at(lambda targets, fault: targets.broker.silence(fault.node, fault.for_s, ("down",))),
    "flap": _flap,
    "forget": _at(lambda targets, fault: targets.broker.forget(fault.node)),
    "take over": _at(lambda targets, fault: targets.broker.take_over(fault.node)),
    "broker crash": _at(lambda targets, fault: targets.broker.crash(fault.for_s)),
    "queue limit": _limit_queues,
    "offset": _offset,
    "drift": _drift,
    "jump": _at(_jump),
    "1970": _without_battery,
    "buggify": lambda targets, fault: targets.points.add(fault.point),
    "restore": _at(_restore),
    "delete": _at(_delete),
    "flip": _at(_flip),
    "copy": _at(_copy),
    # Ways to be set up, and no fault of anybody.
    "two ingests": lambda targets, fault: None,
    "retention": lambda targets, fault: None,
}
