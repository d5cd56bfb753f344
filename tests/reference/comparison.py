"""A case under its legal cuts against the reference, bit for bit: what the property tests assert."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from geartrain.errors import PlacementError
from geartrain.graph.graph import Graph
from geartrain.planning import Cut, choose_cut, legal_cuts
from geartrain.planning.mixed import make_mixed_plan
from geartrain.planning.splitting import with_partials
from tests.reference.flows import Case
from tests.reference.interpreter import interpret
from tests.reference.rows import Answer, Letter, same_bits
from tests.reference.two_tiers import World, run_cut, run_mixed, run_moving

CUTS_MAX = 24
Mixed = Callable[[Graph, Cut, Sequence[Cut], World, random.Random], Answer]
"""As `run_mixed`."""


def check_case(
    case: Case, cuts_max: int = CUTS_MAX, only: Callable[[Cut], bool] = lambda cut: True
) -> Answer:
    """Assert that the legal cuts of `case` (drawn, when there are more than `cuts_max`), or `only` some of
    them, all give what the reference gives; returns that.
    """
    graph, rng = case.graph, case.rng()
    want = interpret(graph, case.world.inputs(), case.world.bounds_us)
    for cut in filter(only, drawn_cuts(graph, rng, cuts_max)):
        found = run_cut(graph, cut, case.world, rng)
        try:
            check_equal(found, want)
        except AssertionError as error:
            raise AssertionError(f"with {sorted(cut.edge)} on the edge: {error}") from error
    return want


def check_mixed(case: Case, draws: int = 2, run: Mixed = run_mixed) -> set[str]:
    """Assert that `case` gives what the reference gives where each device has a cut of its own, `draws`
    times; returns the kinds of operators of the cloud's plans, and what else was met.
    """
    graph, rng = case.graph, case.rng()
    want = interpret(graph, case.world.inputs(), case.world.bounds_us)
    cuts, met = drawn_cuts(graph, rng, CUTS_MAX), set[str]()
    for _ in range(draws):
        base, chosen = rng.choice(cuts), [rng.choice(cuts) for _ in case.world.devices]
        texts = [sorted(cut.edge) for cut in chosen]
        plan = make_mixed_plan(graph, sorted(base.edge), texts)
        met |= {step.operator.kind for step in plan.graph.steps if step.id in plan.cloud}
        met |= {step.operator.kind for step in plan.graph.steps if step.operator.kind == "arrival"}
        met |= {"variant"} if any(c.id != c.stream for c in plan.channels) else set()
        met |= {"different cuts"} if len({cut.edge for cut in chosen}) > 1 else set()
        found = run(graph, base, chosen, case.world, rng)
        try:
            check_equal(found, want)
        except AssertionError as error:
            raise AssertionError(f"base {sorted(base.edge)}, devices {texts}: {error}") from error
    return met


def check_moving(case: Case, draws: int = 2) -> int:
    """Assert that `case` gives what the reference gives where devices go from one cut to another that differs
    in steps without state; returns in how many runs one did.
    """
    graph, rng = case.graph, case.rng()
    want = interpret(graph, case.world.inputs(), case.world.bounds_us)
    alike: dict[frozenset[str], list[Cut]] = {}
    for cut in (cuts := drawn_cuts(graph, rng, CUTS_MAX)):
        alike.setdefault(stateful(graph, cut), []).append(cut)
    moved = 0
    for _ in range(draws):
        base, chosen = rng.choice(cuts), []
        for _ in case.world.devices:
            several = alike[stateful(graph, rng.choice(cuts))]
            chosen.append([rng.choice(several) for _ in range(rng.randint(2, 3))])
        moved += any(len({cut.edge for cut in several}) > 1 for several in chosen)
        found = run_moving(graph, base, chosen, case.world, rng)
        try:
            check_equal(found, want)
        except AssertionError as error:
            texts = [[sorted(cut.edge) for cut in several] for several in chosen]
            raise AssertionError(f"base {sorted(base.edge)}, devices {texts}: {error}") from error
    return moved


def stateful(graph: Graph, cut: Cut) -> frozenset[str]:
    """The steps with state that a cut has on the edge."""
    return frozenset(s.id for s in with_partials(graph).steps if s.id in cut.edge and s.operator.stateful)


def drawn_cuts(graph: Graph, rng: random.Random, cuts_max: int) -> list[Cut]:
    """All legal cuts of `graph`, or `cuts_max` of them; of a flow with too many to list, cuts of drawn steps
    with all above them.
    """
    try:
        cuts = legal_cuts(graph)
    except PlacementError:
        steps = sorted(choose_cut(graph, "edge").edge)
        return [choose_cut(graph, rng.sample(steps, rng.randint(1, len(steps)))) for _ in range(cuts_max)]
    return cuts if len(cuts) <= cuts_max else rng.sample(cuts, cuts_max)


def check_equal(found: Answer, want: Answer) -> None:
    """Assert that two answers are the same to the last bit, with times and origins."""
    assert found.sinks.keys() == want.sinks.keys()
    for sink, rows in want.sinks.items():
        got = found.sinks[sink]
        wanted, there = [r.order for r in rows], [r.order for r in got]
        if wanted != there:
            lost, more = Counter(wanted) - Counter(there), Counter(there) - Counter(wanted)
            assert not lost, f"{sink} lacks {_some(lost)}, and has {_some(more)} instead"
            assert not more, f"{sink} has {_some(more)}, too"
        for left, right in zip(got, rows, strict=True):
            assert same_bits(left.value, right.value), f"{sink} has {left}, and should have {right}"
    _check_letters("dead letters", found.dead, want.dead)
    _check_letters("late records", found.late, want.late)


def _check_letters(what: str, found: Counter[Letter], want: Counter[Letter]) -> None:
    assert found == want, f"{what}: lacking {_some(want - found)}, too many {_some(found - want)}"


def _some(places: Counter[object] | Counter[Letter] | Counter[tuple[int, str, int, bytes]]) -> str:
    listed = [str(place) for place in list(places.elements())[:5]]
    return ", ".join(listed) or "none"
