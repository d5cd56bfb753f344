"""`python -m geartrain_cloud.hosting.prepare`: make a flow ready to be hosted, in a process that then ends.

It stands before a flow's first record: it imports the user's module, sets options, cuts and compiles the
flow, keeps its code and pickles its query. The host itself imports no user code.

It reads one JSON object from standard input (`Request`) and writes one to standard output: a `Prepared`, or
`{"error": sentence}` with exit code 2. What the user's module prints goes to standard error.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from geartrain.errors import USER_ERRORS, GeartrainError
from geartrain.flow.loading import load_flow
from geartrain.graph.graph import CLAIMS, GIVEN
from geartrain.graph.without import without
from geartrain.operators.process import Process
from geartrain.planning import Plan
from geartrain.planning.dealt import waits_for_time
from geartrain.planning.mixed import make_mixed_plan
from geartrain.planning.past import past_of
from geartrain.planning.plan import given_channel
from geartrain.planning.splitting import MERGE
from geartrain.tasks.migration import former_states
from geartrain_cloud.bundles.importing import import_from
from geartrain_cloud.hosting.code import keep, keep_bundle, user_packages
from geartrain_cloud.hosting.errors import PreparationError
from geartrain_cloud.hosting.plans import put_plan
from geartrain_cloud.hosting.prepared import DownSaid, PastSaid, Prepared, SinkSaid, put_prepared
from geartrain_cloud.hosting.program import program
from geartrain_cloud.sinks.opening import OutgoingSink, sink_places
from geartrain_cloud.spark.compile import Query, hosted_query, part_of

EXIT_OK = 0
EXIT_REFUSED = 2
"""The flow cannot be hosted; the sentence says why."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to prepare. instance: as the log names it; flow: `module:name`; plans and code: folders, where the
    results are kept; bundle: the folder that the module is imported from, "" for what is installed; kept:
    by top-level name, the hash of the code that is imported in the place of what is installed now; the others
    as in wanted.json.
    """

    instance: str
    flow: str
    plans: str
    code: str
    cut: str | list[str] = "auto"
    steps: dict[str, dict[str, Any]] = {}
    sources: dict[str, dict[str, Any]] = {}
    bundle: str = ""
    cuts: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    begin: str = ""
    attached: tuple[str, ...] = ()
    kept: dict[str, str] = {}
    given_up: dict[str, tuple[str, ...]] = {}


def prepare(request: Request) -> Prepared:
    """Make a flow ready; raises `GeartrainError` and `OSError`."""
    for code_of_before in request.kept.values():
        import_from(str(Path(request.code) / code_of_before))
    import_from(request.bundle)
    plan = _plan(request)
    if request.bundle:
        code = keep_bundle(Path(request.code), Path(request.bundle))
    else:
        code = keep(Path(request.code), user_packages(request.flow.partition(":")[0], _BEFORE))
    query = hosted_query(plan, request.given_up)
    plans = Path(request.plans)
    try:
        name = put_plan(plans, query)
        past = put_past(plans, plan, query, request.begin, request.attached) if request.begin else None
    except (OSError, GeartrainError):
        raise
    except USER_ERRORS as error:  # of the user's own objects
        raise PreparationError(
            f"flow {request.instance}: its plan cannot be pickled ({type(error).__name__}: {error}): take "
            "what is open, such as a file or a connection, into a task's open()"
        ) from None
    prepared = Prepared(
        name,
        code,
        len(query.stages) - 1,
        tuple(sorted(query.channels)),
        tuple(sorted(step.id for step in plan.graph.sources())),
        tuple(
            SinkSaid.of(place)
            for place in sink_places(plan.graph)
            if not isinstance(place.sink, OutgoingSink)
        ),
        tuple(
            DownSaid(channel.id, channel.schema.to_json(), waits_for_time(plan.graph, channel.id))
            for channel in plan.down
        )
        + tuple(
            DownSaid(GIVEN, given_channel(plan.graph).schema.to_json(), is_timed=False)
            for channel in plan.channels
            if channel.id == CLAIMS
        ),
        {
            step: stage.number
            for stage in query.stages[1:]
            for step in sorted(stage.steps)
            if plan.graph[step].operator.stateful
        },
        merging_steps(plan),
        *task_forms(plan),
        past,
        program(),
    )
    put_prepared(plans, prepared)
    for part in parts_in_past(prepared):
        put_prepared(plans, part)
    return prepared


def put_past(plans: Path, plan: Plan, query: Query, begin: str, attached: tuple[str, ...]) -> PastSaid:
    """Keep the queries by which new steps read the log of before; raises `PlacementError` and `OSError`."""
    past = past_of(plan, attached)
    new = part_of(query, past.new | past.above, past.new)
    states = {step for stage in query.stages[1:] for step in stage.steps}
    takes = tuple(sorted(step for step in past.new & states if plan.graph[step].operator.stateful))
    said = PastSaid(
        begin, tuple(sorted(past.sources)), takes, put_plan(plans, new), tuple(sorted(new.channels))
    )
    if not past.keeps:
        return said
    above = part_of(query, past.above, frozenset())
    return replace(said, above_plan=put_plan(plans, above), above_channels=tuple(sorted(above.channels)))


def parts_in_past(prepared: Prepared) -> list[Prepared]:
    """What the host knows of the queries that read the log of before: they write the flow's tables."""
    past = prepared.past
    if past is None:
        return []
    found = [replace(prepared, plan=past.plan, channels=past.channels, past=None)]
    if past.above_plan:
        found.append(replace(prepared, plan=past.above_plan, channels=past.above_channels, past=None))
    return found


def merging_steps(plan: Plan) -> tuple[str, ...]:
    """The steps in the cloud that merge partial aggregates."""
    return tuple(sorted(step for step in plan.cloud if plan.graph[step].operator.kind == MERGE))


def task_forms(plan: Plan) -> tuple[dict[str, str], tuple[str, ...]]:
    """By task in the cloud, what stands for the layout of what it keeps; and the tasks that name former types
    of that.
    """
    tasks = {s: task for s in plan.cloud if isinstance(task := plan.graph[s].operator, Process)}
    forms = {step: task.due_form for step, task in sorted(tasks.items())}
    return forms, tuple(sorted(step for step, task in tasks.items() if former_states(task.task)))


def _plan(request: Request) -> Plan:
    graph = without(load_flow(request.flow).graph(), request.without)
    for section, options in (("sources", request.sources), ("steps", request.steps)):
        graph = graph.with_options(options, f"flow {request.instance}: [{section}]")
    return make_mixed_plan(graph, request.cut, request.cuts)


_BEFORE = frozenset(sys.modules)
"""What was imported before the user's module."""


def main() -> int:
    """Prepare what standard input asks for; returns the exit code."""
    os.umask(0o077)
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the user's module may print
    importlib.invalidate_caches()
    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
        said, code = msgspec.json.encode(prepare(request)), EXIT_OK
    except (GeartrainError, OSError, msgspec.DecodeError) as error:
        said, code = msgspec.json.encode({"error": " ".join(str(error).split())}), EXIT_REFUSED
    with os.fdopen(answer, "wb") as out:
        out.write(said)
    return code


if __name__ == "__main__":
    sys.exit(main())
