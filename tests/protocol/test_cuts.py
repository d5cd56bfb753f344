"""I1 in the small: random flows give the same records under every legal cut, equal to the naive reference.

Each device runs its fragment in batches of random size, with a snapshot and restore at random points; its
channels pass the wire's codec; the cloud takes what the devices send in a random interleaving, at a clock
that lags, in one fragment or dealt to shards. The flows are the same in every run; tests/proofs draws others.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

import geartrain.operators
from geartrain.aggregates.mergeable import BuiltIn
from geartrain.declarations.calendars import Calendar
from geartrain.declarations.windows import EveryRecords, EveryTime, Global, Session, Sliding, Tumbling
from geartrain.fleet.selectors import CLOUD_DEVICE
from geartrain.graph.operator import Plain
from geartrain.planning.splitting import with_partials
from tests.reference.comparison import check_case
from tests.reference.flows import Case, cases, check_drawn

FIRST_SEED, PARTS, FLOWS = 33, 5, 50
"""The first seed, how many, and flows of each: what hypothesis draws of one seed is much alike. The proofs
draw 5,000 flows.
"""
CUTS_MAX = 6
"""Cuts of each flow at the most, to keep this short; the proofs try 24."""
_PLACES = {"device without a source", "devices with unlike sources", "source in the cloud"}
DRAWN_MIN = 4
"""How often each operator, window and aggregate is drawn at the least."""


def test_every_legal_cut_of_random_flows_equals_the_reference_and_every_operator_is_drawn() -> None:
    drawn: Counter[str] = Counter()

    def check(case: Case) -> None:
        want = check_case(case, CUTS_MAX)
        for step in with_partials(case.graph).steps:
            drawn.update(_names(step.operator))
            drawn[getattr(step.out, "__name__", "")] += 1
        places = [frozenset(sources) for sources in case.world.devices.values()]
        drawn["device without a source"] += frozenset() in places
        drawn["devices with unlike sources"] += len(set(places)) > 1
        drawn["source in the cloud"] += CLOUD_DEVICE in case.world.devices
        drawn["late records"] += bool(want.late)
        drawn["dead letters"] += bool(want.dead)
        drawn["results"] += any(want.sinks.values())

    for part in range(PARTS):
        check_drawn(check, cases(down=True), FIRST_SEED + part, FLOWS)
    rare = {name: drawn[name] for name in _known() | _RECORDS | _PLACES if drawn[name] < DRAWN_MIN}
    assert not rare, f"drawn too seldom in {PARTS * FLOWS} flows: {rare}"


def _names(operator: Any) -> Iterator[str]:
    yield operator.kind
    for part in (getattr(operator, "window", None), getattr(operator, "early", None)):
        yield type(part).__name__
    for spec in getattr(operator, "fields", {}).values():
        yield type(spec.aggregate).__name__


def _known() -> set[str]:
    """Whatever there is in the tree: a new operator or aggregate has to be drawn, too."""
    modules = pkgutil.iter_modules(geartrain.operators.__path__, "geartrain.operators.")
    for module in modules:
        importlib.import_module(module.name)
    # Other tests have some of their own, and the measurement of a plan has one.
    ours = (kind for kind in _below(Plain) if kind.__module__.startswith("geartrain.operators."))
    operators = {kind.kind for kind in ours if "kind" in vars(kind)} - _MIXED
    aggregates = {kind.__name__ for kind in _below(BuiltIn) if not _below(kind) or kind.__name__ in _ALSO}
    windows = {w.__name__ for w in (Calendar, Tumbling, Sliding, Session, Global, EveryRecords, EveryTime)}
    return operators | aggregates | windows | {"late records", "dead letters", "results"}


_RECORDS = {"Reading", "Bill", "Balance", "Whole"}
"""Plain ones, those with a Decimal, an enum and a list, and what Spark's own windows may give."""
_MIXED = {"arrival", "union"}
"""Of plans of several cuts, which tests/protocol/test_mixed_cuts.py draws."""
_ALSO = {"Count", "CountDistinct", "TopN"}
"""Aggregates of which others are special cases."""


def _below(kind: Any) -> set[Any]:
    return set(kind.__subclasses__()).union(*(_below(k) for k in kind.__subclasses__()))
