"""I1 of aggregates that are split: random ones, over keys that are on several devices, under every cut that
splits them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from geartrain.aggregates.mergeable import BuiltIn
from geartrain.planning import Cut
from geartrain.planning.splitting import MERGE, with_partials
from geartrain.records.event_time import END_OF_TIME
from tests.reference.comparison import check_case
from tests.reference.flows import Case, check_drawn, split_cases
from tests.reference.rows import Answer

PARTS, FLOWS = 4, 50
"""Seeds, and flows of each: what hypothesis draws of one seed is much alike."""
CUTS_MAX = 4
DRAWN_MIN = 2


def splits(cut: Cut) -> bool:
    return any(step.endswith("_partial") for step in cut.edge)


@pytest.mark.proof
def test_random_aggregates_that_are_split_give_what_the_reference_gives() -> None:
    drawn: Counter[str] = Counter()

    def check(case: Case) -> None:
        want = check_case(case, CUTS_MAX, splits)
        merging = [step for step in with_partials(case.graph).steps if step.operator.kind == MERGE]
        assert merging
        for step in merging:
            operator: Any = step.operator
            drawn[type(operator.whole.window).__name__] += 1
            drawn.update(type(spec.aggregate).__name__ for spec in operator.whole.fields.values())
            drawn.update(_met(case, want, step.id))

    for part in range(PARTS):
        check_drawn(check, split_cases(), part, FLOWS)
    kinds = {kind.__name__ for kind in _below(BuiltIn) if not _below(kind)} | {"Spread"}
    wanted = (
        kinds
        | {"Calendar", "Tumbling", "Sliding", "Global"}
        | {"met by two devices", "dead letters", "end of time"}
    )
    rare = {name: drawn[name] for name in wanted if drawn[name] < DRAWN_MIN}
    assert not rare, f"drawn too seldom in {PARTS * FLOWS} flows: {rare}"


def _met(case: Case, want: Answer, step: str) -> list[str]:
    """What happened in a case to the aggregate `step`."""
    born = [
        {
            item[1].key
            for splits in sources.values()
            for items in splits.values()
            for item in items
            if _is(item)
        }
        for sources in case.world.devices.values()
    ]
    shared = any(left & right for number, left in enumerate(born) for right in born[:number])
    rows = [row for rows in want.sinks.values() for row in rows if row.name == step]
    return [
        *["met by two devices"] * (shared and bool(rows)),
        *["dead letters"] * any(letter[0] == step for letter in want.dead),
        *["end of time"] * any(row.time == END_OF_TIME - 1 for row in rows),
    ]


def _is(item: Any) -> bool:
    return isinstance(item, tuple)


def _below(kind: Any) -> set[Any]:
    return set(kind.__subclasses__()).union(*(_below(k) for k in kind.__subclasses__()))
