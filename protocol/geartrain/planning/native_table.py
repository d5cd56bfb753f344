"""Which steps may run as plans of Spark's own: those where Spark gives the same bits as the devices' runtime.

The compiler of the cloud asks it before anything runs, and `gear plan` shows it. Guarantees: a step that fits
gives the same records, event times, origins and dead letters either way. docs/decisions/0008 says what does
not fit, and why.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping

from geartrain.aggregates.count import Count, CountAll
from geartrain.aggregates.mergeable import AggregateSpec
from geartrain.aggregates.ranking import Max, Min
from geartrain.aggregates.total import Sum
from geartrain.declarations.windows import Sliding, Tumbling
from geartrain.graph.graph import Step
from geartrain.operators.aggregate import WindowAggregate
from geartrain.operators.arrival import ARRIVAL
from geartrain.operators.key_by import KeyBy
from geartrain.operators.source import SourceOperator
from geartrain.planning.plan import Plan
from geartrain.schema import Field, FieldType, derive

_PLAIN = {FieldType.BOOL, FieldType.INT64, FieldType.FLOAT64, FieldType.STR, FieldType.BYTES}
"""Fields of which every value in the log makes a record; a datetime may be too far away to be one."""
_KEYS = {FieldType.BOOL, FieldType.INT64, FieldType.STR}
_WHOLE = {FieldType.BOOL, FieldType.INT64}
_RANKED = _WHOLE | {FieldType.STR}
_TAKES: dict[type, set[FieldType]] = {
    CountAll: _PLAIN,
    Count: _PLAIN,
    Sum: _WHOLE,
    Min: _RANKED,
    Max: _RANKED,
}
"""By aggregate, the fields of which Spark's own gives the same: never a float, whose sums must be exact."""

_OVERLAP_MAX = 64
"""Windows that a record may lie in: as many rows of it reach Spark."""


def fits_window(plan: Plan, step: Step) -> bool:
    """Whether a windowed aggregate is one of whole numbers and texts, by a field, straight from a channel of
    plain records born since 1970, and nothing below it keeps state. The key may be given on either tier.
    """
    graph, operator, key = plan.graph, step.operator, plan.graph[step.inputs[0].step]
    if not isinstance(operator, WindowAggregate) or operator.early is not None:
        return False
    if not isinstance(key.operator, KeyBy) or key.operator.field is None:
        return False
    channel = channel_of(plan, step)
    if not plan.brings(channel) or not _since_1970(plan, channel):
        return False
    fields = _plain_fields(graph[channel].out)
    keyed = fields.get(key.operator.field)
    if keyed is None or keyed.optional or keyed.type not in _KEYS:
        return False
    whole = all(_takes(spec, fields) for spec in operator.fields.values())
    return whole and _overlaps_little(operator.window) and _ends_plainly(plan, step)


NATIVE: Mapping[str, Callable[[Plan, Step], bool]] = {"window_aggregate": fits_window}
"""By kind of operator, which of its steps are native: a plan of Spark's own, in a query by itself.

Without an entry, a step without state is in a `chain` (one fused loop over packed rows), and a step with
state is embedded (the runtime of the devices behind a shuffle). docs/decisions/0008 says what is not here,
and why.
"""


def engine(plan: Plan, step: Step) -> str:
    """What runs a step in the cloud: `native`, `embedded` or `chain`."""
    if fits(plan, step, NATIVE):
        return "native"
    return "embedded" if step.operator.stateful else "chain"


def fits(plan: Plan, step: Step, table: Mapping[str, Callable[[Plan, Step], bool]]) -> bool:
    """Whether a step is native by such a table."""
    found = table.get(step.operator.kind)
    return found is not None and found(plan, step)


def channel_of(plan: Plan, step: Step) -> str:
    """The stream that a native step reads: one that devices gave its key, or the one that gets it here."""
    key = plan.graph[step.inputs[0].step]
    return key.inputs[0].step if key.id in plan.cloud else key.id


def _plain_fields(kind: object) -> dict[str, Field]:
    """The fields of a record by name; none where one of them is not plain."""
    schema = derive(kind)
    plain = not schema.scalar and all(f.type in _PLAIN and not f.logical for f in schema.fields)
    return {field.name: field for field in schema.fields} if plain else {}


def _takes(spec: AggregateSpec, fields: typing.Mapping[str, Field]) -> bool:
    types = _TAKES.get(type(spec.aggregate))
    selector = spec.selector
    if types is None or selector.function is not None or spec.give is not None:
        return False
    if selector.field is None:
        return type(spec.aggregate) is CountAll
    return fields[selector.field].type in types


def _overlaps_little(window: object) -> bool:
    if isinstance(window, Sliding):
        return -(-window.size_us // window.every_us) <= _OVERLAP_MAX
    return isinstance(window, Tumbling)


def _since_1970(plan: Plan, channel: str) -> bool:
    """Whether every source above a channel says that its event times are of 1970 and later."""
    operators = [plan.graph[s].operator for s in plan.graph.ancestors(channel)]
    sources = [o.source for o in operators if isinstance(o, SourceOperator)]
    return bool(sources) and all(source.since_1970 for source in sources)


def _ends_plainly(plan: Plan, step: Step) -> bool:
    below = steps_below(plan, [step.id])
    graph = plan.graph
    if any(graph[s].operator.kind == ARRIVAL for s in below):
        return False  # devices with another cut bring what it gives, too
    alone = all(i.step in below or i.step == step.id for s in below for i in graph[s].inputs)
    plain = all(not graph[s].operator.stateful and graph[s].operator.replayable for s in below)
    return alone and plain and not below & {channel.id for channel in plan.down}


def steps_below(plan: Plan, steps: Iterable[str]) -> frozenset[str]:
    """All that reads `steps`, or reads what does."""
    found: set[str] = set()
    fresh = list(steps)
    while fresh:
        readers = [s.id for s in plan.graph.consumers(fresh.pop()) if s.id not in found]
        found.update(readers)
        fresh += readers
    return frozenset(found)
