"""The figures of a demo's run: its throughput, and what its cut saved on the link.

After the end of a record's path. Guarantees: the bytes of the run are the devices' own counters. The figure
of another cut needs no second run: every stream is weighed once, as the planner does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geartrain.flow.loading import load_flow
from geartrain.planning import make_plan
from geartrain.planning.splitting import with_partials
from geartrain_client.cli.plan import has_records, measure
from geartrain_cloud.cli.demos import DemoApp
from geartrain_cloud.cli.hops import agent_status, read_hops
from geartrain_cloud.platform.places import PlatformPlaces, read_report

MEASURE_S = 5.0
"""How long the streams are weighed at the most."""


def figures(
    app: DemoApp,
    sources: Mapping[str, Mapping[str, Any]],
    places: PlatformPlaces,
    seconds: float,
    *,
    weighs: bool,
) -> list[str]:
    """Lines of text for people.

    sources: the options of a device that would have all of the input; seconds: how long the run took, from
    its first process to its last; weighs: whether its cut is compared with `cloud`.
    """
    instance = app.instance
    hops = read_hops(places, instance, app.devices)
    counters = [read_report(agent_status(places, d, instance)).get("counters", {}) for d in app.devices]
    sent = sum(one.get("bytes_sealed", 0) for one in counters)
    speed = (
        f"throughput: {hops.read:,} records in {seconds:.1f} s, Spark's start included: "
        f"{hops.read / max(seconds, 0.001):,.0f} records/s"
    )
    link = f"link: {sent:,} bytes in {hops.batches:,} batches"
    if not weighs:
        return [speed, link]
    whole = load_flow(app.flow).graph().with_options({**app.steps, **sources})
    graph = with_partials(whole)
    costs = measure(graph, MEASURE_S)
    if not has_records(graph, costs):
        return [speed, link]
    this, other = (make_plan(graph, cut) for cut in (app.cut, "cloud"))
    bodies, all_cloud = (costs.of_cut(one.graph, one.cut).bytes for one in (this, other))
    share = f" ({100 * bodies / all_cloud:.0f} %)" if all_cloud else ""
    weighed = (
        f"; their rows alone, in full batches, come to {bodies:,} bytes by this cut, and would come to "
        f"{all_cloud:,} by the cut cloud{share}"
    )
    return [speed, link + weighed]
