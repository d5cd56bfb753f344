"""`python -m geartrain_cloud.control.checking`: what a flow is, found out by a short-lived process.

It stands between a submit and the control store. It reads a `Question` as JSON on stdin, loads the flow, sets
its options, cuts it, and writes an `Answer` as JSON to stdout. Guarantees: no code of a user is imported by
control itself. Whatever such code does (it prints, raises, exits, hangs), the answer is one sentence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from geartrain import __version__
from geartrain.declarations.options import Text
from geartrain.declarations.sink import Table
from geartrain.errors import ConfigError, FlowError, GeartrainError, PlacementError
from geartrain.flow.flow import Flow
from geartrain.flow.loading import NoModuleError, load_flow
from geartrain.graph.graph import Graph, Step, is_of_system
from geartrain.graph.without import without
from geartrain.operators.source import HISTORY, SourceOperator, check_sources
from geartrain.operators.windowed import pinned
from geartrain.planning import Plan
from geartrain.planning.cuts import Cut, choose_cut
from geartrain.planning.mixed import make_mixed_plan
from geartrain.planning.past import past_of
from geartrain.planning.properties import derive_properties
from geartrain.planning.shuffles import stage_numbers
from geartrain.planning.splitting import with_partials
from geartrain.revision import (
    Change,
    Revision,
    change_of,
    code_of,
    differences,
    in_short,
    parts_of,
    revision_of,
    with_parts,
)
from geartrain.revision.change import Evolution, TableForm
from geartrain.revision.revision import ChannelForm
from geartrain.schema import Schema
from geartrain_cloud.bundles.importing import import_from
from geartrain_cloud.changes.cut_checking import (
    AUTO,
    CLOUD,
    EDGE,
    CutFound,
    CutWish,
    cut_text,
    cut_words,
    find_cut,
    kept_back,
    ladder_of,
)
from geartrain_cloud.changes.fitting import Ladder
from geartrain_cloud.control_store.model import Channel, Options, Outline, SourceOutline
from geartrain_cloud.sinks.evolution import EvolutionError, evolutions
from geartrain_cloud.sinks.layout import Layout
from geartrain_cloud.sinks.opening import OutgoingSink, check_places, is_anew, sink_places
from geartrain_cloud.spark.compile import hosted_query, part_of

QUESTION_BYTES_MAX = 4 << 20
_OWNERS = ("declared", "task", "table")
"""Where an operator keeps what has the options."""


class Question(msgspec.Struct, frozen=True):
    """What to check. Texts among the options are converted by their annotations, as on a command line.

    revision: the document of who submits, as JSON, "" for none; bundle: the folder that the flow is imported
    from, "" for what is installed here. running: the document of the app that is to go over to this flow.
    The flow gets the cut and the options of that, but for steps that it does not have. drop: the steps that
    are to keep nothing; laid: the tables of revisions before that one. base: the cut of that app, where it is
    known; cuts: those that its devices may have beside it; wishes: for devices, which get cuts of their own;
    keeps_flow: only cuts are to change; without: the steps that are removed from the flow; sent: the channels
    by which devices send, or have sent; wider: a cut with steps for the devices that the app does not have
    yet, "" for none; is_back: to have what it had, as far as that can be; climbs: the ladder of cuts
    is wanted; reads_past: the steps that it attaches are to read the log of before; gives_up: records of
    former types that cannot be upgraded are to become dead letters; in_postgres: whether the platform keeps
    tables in PostgreSQL. parts: by step, what the code of that app rests on.
    """

    flow: str
    cut: str
    options: Options
    device_options: dict[str, Options] = {}
    revision: str = ""
    bundle: str = ""
    running: str = ""
    drop: tuple[str, ...] = ()
    laid: dict[str, TableForm] = {}
    base: str = ""
    cuts: tuple[str, ...] = ()
    wishes: tuple[CutWish, ...] = ()
    keeps_flow: bool = False
    without: tuple[str, ...] = ()
    sent: tuple[Channel, ...] = ()
    wider: str = ""
    is_back: bool = False
    climbs: bool = False
    reads_past: bool = False
    gives_up: bool = False
    parts: dict[str, dict[str, str]] | None = None
    in_postgres: bool = False


class PastFound(msgspec.Struct, frozen=True):
    """What attached steps need of the log of before: channels, each with the step whose output it is; keeps:
    the steps above them that keep state; sources: those above; refused: why it cannot be, a sentence.
    """

    channels: dict[str, str] = {}
    keeps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    refused: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What it is, with options as they were converted; or why it is refused. differs: in what the flow that
    is installed here is another than that of who submits. change: what becomes of the app that runs; cut: the
    one that was made; found: what the wishes come to, each at its place; is_same: the data centre's part is
    that of the app that runs; ladder and past: where these were asked for.
    """

    outline: Outline | None = None
    options: Options = {}
    device_options: dict[str, Options] = {}
    refused: str = ""
    differs: str = ""
    change: Change | None = None
    cut: str = ""
    found: tuple[CutFound, ...] = ()
    is_same: bool = False
    ladder: Ladder | None = None
    past: PastFound | None = None


def main() -> int:
    """Answer the question on stdin; the exit code is 0 where there is an answer, a refusal too."""
    out = os.dup(1)
    os.dup2(2, 1)  # a user's module may print
    raw = sys.stdin.buffer.read(QUESTION_BYTES_MAX)
    try:
        answer = check(msgspec.json.decode(raw, type=Question))
    except GeartrainError as error:
        answer = Answer(refused=" ".join(str(error).split()))
    with os.fdopen(out, "wb") as file:
        file.write(msgspec.json.encode(answer))
    return 0


def check(question: Question) -> Answer:
    """Load the flow and cut it; raises `GeartrainError`."""
    graph = without(_load(question).graph(), question.without)
    running = Revision.from_json(question.running) if question.running else None
    ran = frozenset[str]()
    if running is not None:
        before = (base_of(question, running), *question.cuts)
        ran = frozenset[str]().union(*(ran_by(running, cut) for cut in before))
        question = _pinned(question, running, graph)
    asked, question = question, replace(question, options=pinned(graph, question.options))
    plain = _of_person(question.options)
    whole = graph.with_options(plain)
    per_device = {}
    for device, options in question.device_options.items():
        own = _of_person(options)
        its = whole.with_options(own, f"device {device}: --set")
        _check_inputs(its)
        per_device[device] = _as_data(its, own)
    _check_whole(whole, question)
    base = cut_text(whole, choose_cut(whole, cut_words(question.cut)))
    found = tuple(find_cut(whole, base, wish) for wish in question.wishes)
    cuts = tuple(dict.fromkeys((*question.cuts, *(one.cut for one in found if one.cut and not one.refused))))
    plan = make_mixed_plan(whole, cut_words(question.cut), [cut_words(cut) for cut in cuts])
    found = kept_back(plan, found)
    revision = revision_of(question.flow, plan, plain, code_of(question.flow), __version__)
    if question.revision:
        ours = revision if asked.options == question.options else _as_asked(graph, asked, cuts)
        differ = differences(Revision.from_json(question.revision), ours)
        if differ:
            return Answer(differs=in_short(differ), found=found)
    devices = _steps_on_devices(whole, (base, *cuts))
    known = outline_of(plan, revision, devices)
    forms = {one.id: one for one in revision.channels if not one.down}
    channels = [_with_former(one, question, running, forms.get(one.id)) for one in known.channels]
    known = replace(known, channels=channels)
    there = {channel.id for channel in known.channels}
    outline = replace(
        known,
        channels=[*known.channels, *(channel for channel in question.sent if channel.id not in there)],
        bundled=bool(question.bundle),
        base=base,
        cuts=cuts,
        without=question.without,
        parts=parts_of(plan.graph, revision.code),
    )
    change, is_same, past = None, False, None
    if running is not None:
        is_same = not differences(replace(running, code=revision.code), revision)
        of_devices = frozenset() if question.keeps_flow else devices | ran if cuts else None
        drop, laid, evolution = question.drop, question.laid, _evolution(plan.graph)
        gives_up = question.gives_up
        change = change_of(running, revision, drop, laid, evolution, of_devices, gives_up=gives_up)
        refusals = () if question.keeps_flow else _unread(question, running, revision, known)
        letters = _with_older(change.letters, question, known, running)
        change = replace(change, refusals=(*change.refusals, *refusals), letters=letters)
        change = with_parts(change, running, revision, question.parts, outline.parts or {})
        past = _past(plan, change, devices, known.channels) if question.reads_past else None
    rungs = ladder_of(whole, base, cuts) if question.climbs else None
    options = _as_data(whole, plain)
    return Answer(outline, options, per_device, "", "", change, question.cut, found, is_same, rungs, past)


def _load(question: Question) -> Flow:
    """The flow, from its bundle where it has one; raises `GeartrainError`."""
    import_from(question.bundle)
    try:
        return load_flow(question.flow)
    except NoModuleError as error:
        if question.bundle:
            raise
        raise ConfigError(
            f"{error.what} where the platform runs: make keys with gear key new, and the "
            "code is sent along; or start gear up in the folder that holds it, or install it there"
        ) from None


def _past(plan: Plan, change: Change, on_devices: frozenset[str], channels: Sequence[Channel]) -> PastFound:
    """What the steps that a change attaches need of the log of before; channels: as they will be known."""
    attached = [one.step for one in change.steps if one.what == "attached"]
    try:
        found = past_of(plan, attached, on_devices)
    except PlacementError as error:
        return PastFound(refused=str(error))
    query = part_of(hosted_query(plan), found.new | found.above, found.new)
    for one in channels:
        if one.given_up and one.id in query.channels:
            names = in_short(_former_names(one, one.given_up))
            return PastFound(
                refused=f"the log may have rows of channel {one.id} of the former type {names}, which become "
                "dead letters: have the upgrade of the new type take them, or begin from now"
            )
    return PastFound(
        {channel: query.stream(channel) for channel in query.channels},
        tuple(sorted(step for step in found.above if plan.graph[step].operator.stateful)),
        tuple(sorted(found.sources)),
    )


def _check_whole(graph: Graph, question: Question) -> None:
    """Raise `GeartrainError` for history that cannot be read, and tables that a store will refuse."""
    _check_inputs(graph)
    if not question.keeps_flow:
        places = [place for place in sink_places(graph) if not isinstance(place.sink, OutgoingSink)]
        check_places(graph.name, places, in_postgres=question.in_postgres)


def _check_inputs(graph: Graph) -> None:
    """Raise `GeartrainError` for sources with options that cannot be, and where files of history cannot be
    read or would go to where others see them.
    """
    check_sources(graph)
    alone = False
    for step in graph.steps:
        operator = step.operator
        if isinstance(operator, SourceOperator) and operator.history is not None:
            source: Any = operator.source
            source.check_files(step.id, step.out)
            alone = alone or operator.history.alone
    others = [step.id for step in graph.sinks() if type(getattr(step.operator, "table", None)) is not Table]
    if alone and others:
        raise FlowError(
            f"flow {graph.name}: {in_short(others)} would send history to where live records go: a run of "
            "history is for flows whose sinks are tables of the platform"
        )


def _as_asked(graph: Graph, asked: Question, cuts: Sequence[str]) -> Revision:
    """The revision as who submits makes it, who has no rules of zones in it."""
    options = _of_person(asked.options)
    plan = make_mixed_plan(
        graph.with_options(options), cut_words(asked.cut), [cut_words(one) for one in cuts]
    )
    return revision_of(asked.flow, plan, options, code_of(asked.flow), __version__)


def _steps_on_devices(graph: Graph, cuts: Sequence[str]) -> frozenset[str]:
    """The steps that some device runs."""
    return frozenset[str]().union(*(choose_cut(graph, cut_words(cut)).edge for cut in cuts))


def _evolution(graph: Graph) -> Evolution:
    """How the columns of a flow's tables change, by the name of the table."""
    places = [place for place in sink_places(graph) if not isinstance(place.sink, OutgoingSink)]
    layouts = {place.layout.table.name: place.layout for place in places}

    def clauses(name: str, old: TableForm, new: TableForm) -> tuple[str, ...]:
        wanted = layouts[name]
        held = Layout(wanted.sink, wanted.table, Schema.from_json(old.record))
        try:
            return tuple(one for each in evolutions([held], [wanted]) for one in each.clauses())
        except EvolutionError as error:
            raise GeartrainError(error.clause) from None

    return clauses


def _pinned(question: Question, running: Revision, graph: Graph) -> Question:
    """The question with the cut of the app that runs, and without what the flow does not have.

    Raises `PlacementError` where what devices run cannot stay there.
    """
    split, steps = ({step.id for step in one.steps} for one in (with_partials(graph), graph))

    def there(cut: str) -> str:
        ran = ran_by(running, cut)
        stays = tuple(step.id for step in running.steps if step.id in ran and step.id in split)
        return cut_text(graph, choose_cut(graph, stays or CLOUD))

    def known(options: Options) -> Options:
        return {step: values for step, values in options.items() if step in steps}

    for cut in question.cuts:
        if there(cut) != cut:
            raise PlacementError(
                f"devices have the cut {cut}, which would be {there(cut)}: give them the cut of the app "
                "first, with gear cut"
            )
    own = {device: known(options) for device, options in question.device_options.items()}
    options, cut = known(question.options), there(base_of(question, running))
    if question.wider:
        cut = _wider(question, running, graph, cut)
    return replace(question, cut=cut, options=options, device_options=own)


def _wider(question: Question, running: Revision, graph: Graph, cut: str) -> str:
    """The app's cut with more steps on the devices, which begin there with what each device reads once it has
    gone over; cut: that which it has without. Raises `PlacementError`.
    """
    whole, there = with_partials(graph), {step.id for step in running.steps}
    stays = choose_cut(graph, cut_words(cut)).edge
    takes_all = question.is_back or question.wider == EDGE
    try:
        asked = choose_cut(graph, cut_words(question.wider)).edge
        new = tuple(step for step in asked if not (takes_all and step in there))
        wider = choose_cut(graph, (*stays, *new)).edge
    except PlacementError:
        if question.is_back:
            return cut
        raise
    comes = [one for one in sorted(wider - stays) if one in there and whole[one].operator.kind != "key_by"]
    if not comes:
        return cut_text(graph, Cut(wider))
    if question.is_back:
        return cut
    raise PlacementError(
        f"an update puts new steps on devices, and these are in the data centre ({in_short(comes)}): leave "
        "them there, and use gear move for them"
    )


def base_of(question: Question, running: Revision) -> str:
    """The cut of the app that runs."""
    return question.base or ",".join(running.cut)


def ran_by(running: Revision, cut: str) -> frozenset[str]:
    """The steps that devices with a cut run: those that it names, with all above them."""
    above = {step.id: [one.partition(":")[0] for one in step.inputs] for step in running.steps}
    found = set(running.cut)
    waiting = [] if cut in (AUTO, EDGE, CLOUD) else [one for one in cut.split(",") if one in above]
    while waiting:
        step = waiting.pop()
        found.add(step)
        waiting += [one for one in above[step] if one not in found]
    return frozenset(found)


def _with_former(
    channel: Channel, question: Question, running: Revision | None, form: ChannelForm | None
) -> Channel:
    """A channel with the schemas of its records in former revisions, where these are others, and with those
    of them that are given up, now or before; form: its own in this revision.
    """
    sent = next((one for one in question.sent if one.id == channel.id), None)
    texts = [] if sent is None else [*sent.former]
    if running is not None:
        texts += [one.schema for one in running.channels if one.id == channel.id and not one.down]
    former = dict.fromkeys(one for one in texts if Schema.from_json(one).schema_id != channel.schema)
    before = () if sent is None else sent.given_up
    given_up = [
        layout
        for text in former
        if form is not None and not form.takes(text) and not is_of_system(form.id)
        if (layout := Schema.from_json(text).layout) in before or question.gives_up
    ]
    return replace(channel, former=tuple(former), given_up=tuple(dict.fromkeys(given_up)))


def _former_names(channel: Channel, layouts: Container[str | None]) -> list[str]:
    """The names of the former types of a channel's records that have one of these layouts."""
    return [one.name for one in map(Schema.from_json, channel.former) if one.layout in layouts]


def _with_older(
    letters: Mapping[str, str], question: Question, known: Outline, running: Revision
) -> dict[str, str]:
    """The channels whose records become dead letters by this update, those of types before that of the
    running revision too.
    """
    before = {one.id: one.given_up for one in question.sent}
    last = {one.id: Schema.from_json(one.schema).layout for one in running.channels if not one.down}
    found = dict(letters)
    for one in known.channels:
        layouts = {*one.given_up} - {*before.get(one.id, ()), last.get(one.id)}
        if names := _former_names(one, layouts):
            older = f"its records were of type {in_short(names)} in a former revision"
            found[one.id] = "; ".join(filter(None, (letters.get(one.id), older)))
    return found


def _forgotten(revision: Revision, running: Revision, known: Outline) -> list[str]:
    """Why rows of types before that of the running revision could not be read, a sentence each."""
    forms = {one.id: one for one in revision.channels if not one.down}
    last = {one.id: one.schema for one in running.channels}
    return [
        f"the log has rows of channel {one.id} of a type {Schema.from_json(text).name} that a former "
        "revision had, and the upgrade of the new one does not name it: keep its function, or give the step "
        "another id, or have them become dead letters with --dead-letter-old"
        for one in known.channels
        for text in one.former
        if text != last.get(one.id) and not forms[one.id].takes(text)
        if Schema.from_json(text).layout not in one.given_up
    ]


def _unread(question: Question, running: Revision, revision: Revision, known: Outline) -> list[str]:
    """Why the data centre could not take what devices send until they have gone over, a sentence each."""
    now = {channel.id: channel.schema for channel in known.channels}
    variants = [one.id for one in running.channels if "-" in one.id and not one.down and one.id not in now]
    found = _forgotten(revision, running, known)
    if variants:
        found.append(
            f"devices with cuts of their own send channels that would have other names "
            f"({in_short(variants)}): give them the cut of the app first, with gear cut"
        )
    latest = {one.id for one in running.channels}
    others = [c.id for c in question.sent if c.id not in latest and now.get(c.id, c.schema) != c.schema]
    if others:
        found.append(
            f"former revisions had other records in channels of this name ({in_short(others)}): give the "
            "steps other ids"
        )
    return found


def outline_of(plan: Plan, revision: Revision, on_devices: frozenset[str] | None = None) -> Outline:
    """What control keeps of a plan; on_devices: the steps that some device runs, None for those that all
    run.
    """
    there = plan.cut.edge if on_devices is None else on_devices
    properties = derive_properties(plan.graph)
    channels = []
    for channel in plan.channels:
        known = properties.get(channel.stream)
        domain = (known.domain if known else None) or ""
        carried = {field.name for field in channel.schema.fields}
        channels.append(
            Channel(
                channel.id,
                sorted(channel.sources),
                channel.schema.schema_id,
                domain if domain in carried else "",
            )
        )
    sources = [
        SourceOutline(
            step.id,
            step.operator.source.bounded,
            step.operator.devices,
            _joins(plan, step, there),
            waits=step.operator.source.pausable,
        )
        for step in plan.graph.steps
        if isinstance(step.operator, SourceOperator)
    ]
    return Outline(
        plan.graph.name,
        channels,
        sources,
        revision.hash,
        down=bool(plan.down),
        document=revision.to_json(),
        code=revision.code.hash if revision.code.files else "",
        shuffles=max(stage_numbers(plan.graph, frozenset(plan.cloud)).values(), default=0),
        anew=tuple(one.id for one in sink_places(plan.graph) if is_anew(one.sink)),
    )


def _joins(plan: Plan, source: Step, on_devices: frozenset[str]) -> bool:
    """Whether a device may begin to read a source amid its work: the source gives what happens now
    and nothing of before, and no step on the device keeps what it would change.
    """
    operator, below = source.operator, {source.id}
    if not isinstance(operator, SourceOperator) or operator.source.bounded or operator.source.replayable:
        return False
    for step in plan.graph.steps:  # in topological order
        if step.id in on_devices and any(one.step in below for one in step.inputs):
            if step.operator.stateful:
                return False
            below.add(step.id)
    return True


def _of_person(options: Options) -> Options:
    return {
        step: {name: _text_of_person(name, value) for name, value in values.items()}
        for step, values in options.items()
    }


def _text_of_person(name: str, value: Any) -> Any:
    """A text as a person writes it, those among the options of a history, too."""
    if name == HISTORY and isinstance(value, dict) and isinstance(value.get("options"), dict):
        return value | {"options": {one: _text_of_person(one, its) for one, its in value["options"].items()}}
    return Text(value) if isinstance(value, str) else value


def _as_data(graph: Graph, options: Options) -> Options:
    """The values that options have in the graph, as plain data: what a configuration file has."""
    found: Options = {}
    for step, values in options.items():
        operator: Any = graph[step].operator
        owner = next(
            (getattr(operator, name) for name in _OWNERS if hasattr(operator, name)),
            operator,
        )
        found[step] = {
            name: msgspec.to_builtins(getattr(owner if hasattr(owner, name) else operator, name))
            for name in values
        }
    return found


if __name__ == "__main__":
    sys.exit(main())
