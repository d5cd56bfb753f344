"""A log of what the devices of a random world have sent, written with the real ledger and segments."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from geartrain.planning import Plan, legal_cuts, make_plan
from geartrain.planning.mixed import make_mixed_plan
from geartrain.schema import ColumnBatch, RowCodec, derive
from geartrain_cloud.explaining.logged import LoggedFlow
from geartrain_cloud.log.reader import LogReader
from tests.reference.flows import Case
from tests.reference.records import Named, Reading
from tests.reference.two_tiers import Device, World
from tests.spark.log_writer import LogWriter


def drawn_plans(case: Case, rng: random.Random) -> tuple[Plan, list[Plan]]:
    """The cloud's plan of a flow, and that of each of its devices: all by one cut, or each by its own, where
    the first device's is the base.
    """
    cuts, graph = legal_cuts(case.graph), case.graph
    one = rng.choice(cuts)
    chosen = [
        one,
        *(rng.choice(cuts) if rng.random() < 0.5 else one for _ in range(len(case.world.devices) - 1)),
    ]
    base, *others = (sorted(cut.edge) for cut in chosen)
    return make_mixed_plan(graph, base, others), [make_plan(graph, cut, base=base) for cut in (base, *others)]


def log_of(
    plan: Plan,
    world: World,
    rng: random.Random,
    folder: Path,
    own: Sequence[Plan] = (),
    former: random.Random | None = None,
) -> LoggedFlow:
    """Run the devices' part of the plan, or of each device's `own`, and write what they send in a random
    interleaving. former: draws which batches come in a former type.
    """
    plans = dict(zip(world.devices, own or [plan] * len(world.devices), strict=True))
    sent = {
        device: Device(plans[device], splits, world.bounds_us, rng).run()
        for device, splits in world.devices.items()
    }
    sources = [step.id for step in plan.graph.sources()]
    writer = LogWriter(
        folder, plan.graph.name, {c.id: c.kind for c in plan.channels}, sources=sources, sealed=True
    )
    codecs = {channel.id: RowCodec(channel.kind) for channel in plan.channels}
    marks: dict[str, dict[str, int]] = {device: {} for device in sent}
    for items in sent.values():
        items.reverse()
    while left := [device for device, items in sent.items() if items]:
        device = rng.choice(left)
        one = sent[device].pop()
        if one.rows is None:
            marks[device] |= one.marks
            least = {
                source: min(told[source] for told in marks.values())
                for source in sources
                if all(source in told for told in marks.values())
            }
            writer.move(least)
            continue
        rows = one.rows
        columns = codecs[one.channel].to_columns(rows.values)
        is_former = former is not None and codecs[one.channel].kind is Reading and former.random() < 0.4
        writer.append_rows(
            one.channel,
            ColumnBatch(columns, rows.times, rows.names, rows.numbers, rows.paths),
            schema=replace(derive(Named), name="Reading") if is_former else None,  # its columns in its order
        )
    writer.close()
    return LoggedFlow(LogReader(folder), plan.graph.name, plan)
