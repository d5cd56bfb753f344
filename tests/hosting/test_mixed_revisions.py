"""A hosted flow takes in devices with other cuts by a revision, and gives what the reference gives.

The real source, stages and versions run without Spark. Each device has the base cut or another one, or goes
over to it; the log has the revision before the first row of a channel that the first plan does not know.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st

from geartrain.planning import Plan, make_plan
from geartrain.planning.mixed import make_mixed_plan
from tests.hosting.in_process import InProcess, RevisedLog
from tests.reference.comparison import check_equal, drawn_cuts, stateful
from tests.reference.flows import Case, cases, check_drawn, split_cases
from tests.reference.interpreter import interpret
from tests.reference.revised_flows import Revised, Stage
from tests.reference.two_tiers import World
from tests.spark.case_log import Logged, log_of

FLOWS, FITTING_MIN, CUTS_MAX = 24, 8, 12


def check(case: Case, folder: Path) -> bool:
    """Compare a flow to which a drawn cut of each device comes in; False where state would have to move."""
    graph, rng = case.graph, case.rng()
    cuts = drawn_cuts(graph, rng, CUTS_MAX)
    base = rng.choice(cuts)
    text, own, chosen = sorted(base.edge), dict[str, list[Plan]](), list[list[str]]()
    for device in case.world.devices:
        cut = rng.choice(cuts)
        chosen.append(sorted(cut.edge))
        plan = make_plan(graph, chosen[-1], base=text)
        moves = stateful(graph, cut) == stateful(graph, base) and rng.random() < 0.5
        own[device] = [make_plan(graph, text), plan] if moves else [plan]
    plans = make_mixed_plan(graph, text), make_mixed_plan(graph, text, chosen)
    known = {channel.id for channel in plans[0].channels}

    class Log(RevisedLog):
        """What these devices send."""

        def sent(self, world: World, rng: random.Random) -> Iterator[Logged]:
            return log_of(plans[1], world, rng, [own[device] for device in world.devices])

        def latest(self, logged: list[Logged]) -> int:
            named = (number for number, one in enumerate(logged) if one.channel and one.channel not in known)
            return next(named, len(logged))

    document: Any = None  # of no concern here
    stages = [Stage((), plan, document) for plan in plans]
    run = InProcess(folder, Revised({}, case.world, stages), rng, Log)
    try:
        if not run.fits():
            return False
        found, want = run.run(), interpret(graph, case.world.inputs(), case.world.bounds_us)
        check_equal(found, want)
    except AssertionError as error:
        raise AssertionError(f"base {text}, devices {chosen}: {error}") from error
    finally:
        run.log.close()
    return True


def test_cuts_that_come_in_by_a_revision_change_no_result() -> None:
    fitting = 0

    def check_fitting(case: Case) -> None:
        nonlocal fitting
        with TemporaryDirectory() as folder:
            fitting += check(case, Path(folder))

    check_drawn(check_fitting, st.one_of(cases(), split_cases()), 1, FLOWS)
    assert fitting >= FITTING_MIN
