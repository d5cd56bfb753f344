"""What comes down: the steps below a `deal` stay on the devices, and what must hold of them.

Part of building a flow. Guarantees: every step below one that is dealt to devices is pinned to them. A flow
in which it could not be is refused in one sentence that names the step and says what to write.
"""

from __future__ import annotations

from operator import attrgetter

from msgspec.structs import replace

from geartrain.errors import FlowError
from geartrain.graph.graph import Graph, Input, Step, key_step
from geartrain.operators.deal import ByKey, Deal, Device
from geartrain.operators.key_by import KeyBy
from geartrain.operators.sink import DeviceSinkOperator, SinkOperator
from geartrain.planning.dealt import below_deals
from geartrain.schema import derive


def deal_step(graph: Graph, step: Step, device: Device) -> Step:
    """The step `<step>_down` that deals what `step` reads to devices; raises `FlowError`."""
    where = f"flow {graph.name}, step {step.id!r}"
    if len(step.inputs) != 1:
        what = (
            "a source stands on the devices that hold it" if not step.inputs else "it reads several streams"
        )
        fix = "" if not step.inputs else ", each of which comes its own way: give device= to a step before it"
        raise FlowError(f"{where}: {what}, so at('edge', device=...) has no meaning{fix}")
    above = graph[step.inputs[0].step]
    if above.operator.kind == "deal":
        raise FlowError(f"{where}: its records are dealt to devices already: give device= once")
    keyed = key_step(graph, above.id)
    by = keyed.operator if keyed is not None and isinstance(keyed.operator, KeyBy) else None
    return Step(f"{step.id}_down", _deal(where, above, by, device), step.inputs, above.out, "cloud")


def _deal(where: str, above: Step, by: KeyBy | None, device: Device) -> Deal:
    if isinstance(device, ByKey):
        if by is None:
            raise FlowError(
                f"{where}: device=by_key, but the records of {above.id!r} have no key: put a key_by before "
                f'{where.rpartition(" ")[2]}, or write device="FIELD"'
            )
        return Deal(by.function, by.field, local=True)
    if isinstance(device, str):
        names = [field.name for field in derive(above.out).fields]
        if device not in names:
            raise FlowError(
                f"{where}: device={device!r} is not a field of the records that it reads, "
                f"{getattr(above.out, '__name__', above.out)}; their fields: {', '.join(names)}"
            )
        return Deal(attrgetter(device), device, local=by is not None and by.field == device)
    if not callable(device):
        raise FlowError(f"{where}: device={device!r}: write by_key, a field's name, or a function")
    return Deal(device)


def with_down(graph: Graph) -> Graph:
    """`graph` with every step below a `deal` pinned to the edge; raises `FlowError` where it cannot be."""
    dealt = below_deals(graph)
    for step in graph.steps:
        if step.id in dealt:
            _check_below(graph, step)
            if step.operator.stateful:
                _check_one_way(graph, step)
    return Graph(graph.name, tuple(replace(s, tier="edge") if s.id in dealt else s for s in graph.steps))


def _check_below(graph: Graph, step: Step) -> None:
    where = f"flow {graph.name}, step {step.id!r}"
    if isinstance(step.operator, SinkOperator) and not isinstance(step.operator, DeviceSinkOperator):
        raise FlowError(
            f"{where}: a table is in the cloud, and what was dealt to devices stays there: end it in a sink "
            "on the device (JsonLinesFile, an Actuator), or put the table above the step with device="
        )
    if step.tier == "cloud" or step.operator.only_tier == "cloud":
        raise FlowError(
            f"{where}: it stands in the cloud, below records that were dealt to devices, which stay there: "
            "put it above the step with device=, or leave it on the edge"
        )


def _check_one_way(graph: Graph, step: Step) -> None:
    """Nothing says that a key's records of the device's own and those that come down meet on one device."""
    ways = {graph[top].operator.kind == "deal" for top in _tops(graph, step)}
    if len(ways) > 1:
        raise FlowError(
            f"flow {graph.name}, step {step.id!r}: it keeps state over records of the device's own and over "
            "others that were dealt to it, and nothing promises that those of one key meet on one device: "
            "bring them together in the cloud, and deal the result"
        )


def _tops(graph: Graph, step: Step) -> set[str]:
    """The sources and `deal` steps from which a step is fed, looking no further than the first."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [i.step for i in step.inputs]
    while waiting:
        one = graph[waiting.pop()]
        if one.id in seen:
            continue
        seen.add(one.id)
        if one.operator.kind == "deal" or not one.inputs:
            found.add(one.id)
        else:
            waiting += [i.step for i in one.inputs]
    return found


def with_device(graph: Graph, step_id: str, device: Device) -> Graph:
    """`graph` where the step is pinned to the devices that `device` names; raises `FlowError`."""
    steps: list[Step] = []
    for step in graph.steps:
        if step.id == step_id:
            deal = deal_step(graph, step, device)
            steps.append(deal)
            step = replace(step, inputs=(Input(deal.id, step.inputs[0].grouping),), tier="edge")
        steps.append(step)
    return Graph(graph.name, tuple(steps))
