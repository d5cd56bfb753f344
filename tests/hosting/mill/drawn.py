"""The random flows of the tests by name: `flow_7_2` is the second revision of flow 7."""

from __future__ import annotations

import random

from geartrain import Flow
from tests.reference.revised_flows import flow_of, revised


def __getattr__(name: str) -> Flow:
    kind, _, numbers = name.partition("_")
    if kind != "flow":
        raise AttributeError(name)
    number, revision = map(int, numbers.split("_"))
    flow = revised(random.Random(number), 3, 3)
    stage = flow.stages[revision - 1]
    return flow_of({one: flow.sources[one] for one in stage.sources}, stage.nodes)
