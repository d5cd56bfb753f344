"""A hosted flow whose devices take steps with state from it, and leave them to it again, gives what the
reference gives.

The real source, stages and versions run without Spark. Devices wait for what they have claimed, and give up
now and then. Micro-batches end anywhere, and some are killed and run again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import GeartrainError
from geartrain.graph.graph import GIVEN, Graph
from geartrain.planning import Cut, Plan, make_plan
from geartrain.planning.mixed import claimable, make_mixed_plan
from geartrain.records.event_time import START_OF_TIME
from geartrain.runtime import moving
from geartrain.schema import RowCodec
from geartrain.state.claims import HAS, GivenCell
from geartrain_cloud.log.pack import unpack
from geartrain_cloud.ports import LedgerChange
from geartrain_cloud.spark import claims
from geartrain_cloud.spark.buckets import BucketState
from tests.drawing import few_and_all
from tests.hosting.in_process import InProcess, RevisedLog
from tests.reference.comparison import check_equal, drawn_cuts, stateful
from tests.reference.flows import Case, drawn
from tests.reference.interpreter import interpret
from tests.reference.moving_flows import moving_cases
from tests.reference.revised_flows import Revised, Stage
from tests.reference.rows import Answer
from tests.reference.two_tiers import Device, Sent, coming
from tests.spark.case_log import Logged, columns_of

FLOWS, FAULTY_FLOWS = 24, 60
BOTH = 10
"""A flow whose devices take state and leave it: part of each draw."""
CROSSINGS_MAX = 5


class _Sender:
    """A device at work, and what it has sent and the log has not."""

    def __init__(self, name: str, partition: int, device: Device, later: list[Plan]) -> None:
        self.name, self.partition, self.device = name, partition, device
        self._turns = device.turns(later, amid=True)
        self.queued: list[Sent] = []
        self.has_ended = False

    def become(self, device: Device) -> None:
        """Be the sender of another device."""
        self.device, self._turns = device, device.turns(amid=True)

    def next(self) -> Sent | None:
        """What it sends next; None where it waits, or has ended."""
        if not self.queued and not self.has_ended:
            sent = next(self._turns, None)
            self.has_ended = sent is None
            if sent:
                self.queued += sent
                sent.clear()
        return self.queued.pop(0) if self.queued else None


class LiveLog(RevisedLog):
    """The log of devices that answer to what comes down to them."""

    loses_spools = False
    turns: tuple[int, ...] = (1, 5, 40)
    """Of one device at once."""

    def __init__(self, folder: Path, flow: Revised, rng: random.Random, own: list[list[Plan]]) -> None:
        super().__init__(folder, flow, rng)
        names, bounds = list(flow.world.devices), flow.world.bounds_us
        self.senders = [
            _Sender(name, at % self.partitions, Device(first, flow.world.devices[name], bounds, rng), later)
            for at, (name, (first, *later)) in enumerate(zip(names, own, strict=True))
        ]
        for sender in self.senders:
            sender.device.loses_spools = self.loses_spools
        self._sources = list(bounds)
        self._said: dict[tuple[int, str, str], int] = {}
        self._now: list[dict[str, int]] = [{} for _ in range(self.partitions)]

    def sent(self, world: Any, rng: random.Random) -> Any:
        """Nothing is known beforehand."""
        return iter(())

    @property
    def is_whole(self) -> bool:
        """Whether all devices have ended."""
        return all(sender.has_ended for sender in self.senders)

    def grow(self, rng: random.Random) -> None:
        """Have some device go on."""
        sender = rng.choice([one for one in self.senders if not one.has_ended])
        entries = []
        for _ in range(rng.choice(self.turns)):
            sent = sender.next()
            if sent is None:
                break
            if (logged := self._logged(sender, sent)) is not None:
                entries.append(self._entry(sender.partition, logged))
        if entries:
            self._loop.run_until_complete(self._ledger.commit(self._term, LedgerChange(entries=entries)))

    def _logged(self, sender: _Sender, sent: Sent) -> Logged | None:
        at, clocks = sender.partition, self._now[sender.partition]
        if sent.rows is not None:
            return Logged(
                sent.channel, columns_of(self._codecs[sent.channel], sent.rows), clocks, sender.name
            )
        if sent.is_fresh:
            return Logged(sent.channel, None, clocks, sender.name)
        for source, mark in sent.marks.items():
            self._said[at, source, sender.name] = mark
        names = [one.name for one in self.senders if one.partition == at]
        moved = {
            source: min(self._said.get((at, source, name), START_OF_TIME) for name in names)
            for source in self._sources
        }
        if moved == clocks:
            return None
        self._now[at] = moved
        return Logged("", None, moved)


class LosingLog(LiveLog):
    """That of devices whose spools are lost now and then."""

    loses_spools = True


class Claiming(InProcess):
    """The group of a flow whose devices get what they claim."""

    log: LiveLog

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.given = set[tuple[str, int, str, bytes, int, bytes]]()
        """All of it: device, claim, step, key, offset and piece of a cell."""

    def again(self) -> Claiming:
        """Another run of the same log."""
        folder = self.folder / "again"
        folder.mkdir()
        (folder / "log").symlink_to(self.folder / "log")
        other = Claiming(folder, self._flow, self._rng, lambda *_: self.log)
        other.scales = 0
        return other

    def _micro_batch(self) -> bool:
        went_on = super()._micro_batch()
        codec = RowCodec(GivenCell)
        for rows in self._rows.values():
            packed = rows.pop(GIVEN, [])
            for one in packed:
                found = unpack(one)
                *fields, names = found.fields
                for name, given in zip(names, codec.from_columns(fields), strict=True):
                    if given.step:
                        self.given.add((name, given.number, given.step, given.key, given.offset, given.cell))
                    taking = next(one.device for one in self.log.senders if one.name == name).taking
                    if taking is not None:
                        taking.take(given)
        return went_on


def _back_and_forth(graph: Graph, cuts: list[Cut], rng: random.Random) -> list[Cut]:
    """Cuts with much state and with little, by turns."""
    turns = range(rng.randint(0, 1), rng.randint(3, CROSSINGS_MAX + 1))
    return [
        (max if at % 2 else min)(rng.choices(cuts, k=3), key=lambda c: len(stateful(graph, c)))
        for at in turns
    ]


def check_replay(run: Claiming, want: Answer) -> None:
    """A run of the same log from its beginning gives the same, down to the cells that devices have got."""
    again = run.again()
    answer = again.run()
    check_equal(answer, want)
    assert again.given == run.given


@dataclass
class Drawn:
    """One flow under one schedule: its run, and the cuts for which its plan was made."""

    run: Claiming
    plan: Plan
    base: list[str]
    cuts: list[list[str]]


def draw(case: Case, folder: Path, seen: Counter[str], log: type[LiveLog] = LiveLog) -> Drawn:
    """Draw the cuts of a flow's devices, and a schedule."""
    graph, rng = case.graph, case.rng()
    cuts = drawn_cuts(graph, rng, 16)
    base = sorted(rng.choice(cuts).edge)
    chosen = [_back_and_forth(graph, cuts, rng) for _ in case.world.devices]
    others = [sorted(cut.edge) for several in chosen for cut in several]
    plan = make_mixed_plan(graph, base, others)
    known = claimable(plan.graph)
    own = list[list[Plan]]()
    for several in chosen:
        found: list[Plan] = []
        for cut in several:
            now = make_plan(graph, sorted(cut.edge), base=base)
            if not found or all(step in known for step in coming(found[-1], now)):
                found.append(now)
        own.append(found)
        seen.update(
            now.graph[step].operator.kind for before, now in pairwise(found) for step in coming(before, now)
        )
    document: Any = None  # of no concern here
    run = Claiming(
        folder,
        Revised({}, case.world, [Stage((), plan, document)]),
        rng,
        lambda at, flow, chance: log(at, flow, chance, own),
    )
    if any(step.operator.kind == "broadcast" for step in graph.steps):
        run.scales = 0  # its table is in every slot, and is not dealt anew
    return Drawn(run, plan, base, others)


def check(case: Case, folder: Path, seen: Counter[str]) -> None:
    """Compare one flow, under one schedule."""
    run = draw(case, folder, seen, LosingLog).run
    kills = run.kills
    try:
        answer, want = run.run(), interpret(case.graph, case.world.inputs(), case.world.bounds_us)
        check_equal(answer, want)
        check_replay(run, want)
    except AssertionError as error:
        raise AssertionError(f"{case!r}\n{error}") from error
    finally:
        run.log.close()
    seen["killed"] += kills - run.kills
    seen["taken"] += sum(one.device.taken for one in run.log.senders)
    seen["left"] += sum(one.device.cells for one in run.log.senders)


@pytest.mark.proof
@pytest.mark.parametrize("flows", few_and_all("flows of which devices take steps", range(FLOWS), 9))
def test_state_that_devices_take_from_a_hosted_flow_and_leave_to_it_changes_no_result(
    flows: list[int], tmp_path: Path
) -> None:
    seen = Counter[str]()
    cases = drawn(moving_cases(), 7, FLOWS)
    for number in sorted({BOTH, *flows}):
        check(cases[number], tmp_path / str(number), seen)
    for number in sorted({*range(FLOWS)} - {BOTH, *flows}):  # until state was taken and left
        if min(seen["taken"], seen["left"], seen["killed"]):
            break
        check(cases[number], tmp_path / str(number), seen)
    assert min(seen["taken"], seen["left"], seen["killed"]), seen
    if len(flows) == FLOWS:
        assert min(seen["taken"], seen["left"]) > FLOWS // 4, seen
        assert seen["killed"] > FLOWS // 2, seen


def _not_given_back(patches: pytest.MonkeyPatch) -> None:
    right = claims.Giving._settle
    patches.setattr(claims.Giving, "_settle", lambda giving, said: said.says == HAS and right(giving, said))


def _kept_by_both(patches: pytest.MonkeyPatch) -> None:
    right = BucketState.save

    def save(saved: BucketState, changes: dict[Any, Any]) -> None:
        gives = any(step.startswith("_aside") and cell for (step, _), cell in changes.items())
        right(saved, {at: cell for at, cell in changes.items() if cell or not gives})

    patches.setattr(BucketState, "save", save)


def _order_not_emptied(patches: pytest.MonkeyPatch) -> None:
    right = moving.brought_up
    patches.setattr(claims, "brought_up", lambda *args: right(*args[:4]))


def _owners_not_known(patches: pytest.MonkeyPatch) -> None:
    patches.setattr(claims.Claimed, "owners", lambda *_: iter(()))
    patches.setattr(claims.Giving, "_unknown", lambda *_: "")


FOUND_BY: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    _not_given_back: 6,
    _kept_by_both: 11,
    _order_not_emptied: 10,
    _owners_not_known: 12,
}
"""The flow that shows a fault: tried first. Where it no longer does, all flows are tried."""


@pytest.mark.parametrize("plant", FOUND_BY)
def test_a_planted_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    flows = drawn(moving_cases(), 7, FAULTY_FLOWS)
    with pytest.raises((AssertionError, GeartrainError)):  # noqa: PT012 - by one of the flows
        for number, case in enumerate([flows[FOUND_BY[plant]], *flows]):
            check(case, tmp_path / str(number), Counter())
