"""The data centre's steps over rows of a log in one process, with the state that devices take and leave.

Beside Spark, where a log is read again: by `gear explain`, and by `gear run` over what `gear fetch` has
written. Guarantees: what these steps keep goes to devices and comes back at the same rows, by the same code,
as in the shards of a query. So a record that a device has made is not made here again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from geartrain.adapters.system import SystemRandomness
from geartrain.graph.graph import CLAIMS
from geartrain.planning import Plan
from geartrain.planning.mixed import claimable
from geartrain.ports import Clock
from geartrain.records.batch import Batch
from geartrain.records.event_time import START_OF_TIME
from geartrain.runtime.fragment import Fragment, Output
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.state.claims import LOST, Claim
from geartrain_cloud.log.pack import pack, take
from geartrain_cloud.spark.buckets import BucketState
from geartrain_cloud.spark.claims import Giving, claim_told, key_of, noted_domains, owned_cells, owners_told
from geartrain_cloud.spark.clocks import Clocks, least_clock, sources_of
from geartrain_cloud.spark.moved_state import MovedState
from geartrain_cloud.spark.stages import Stage


class Followed:
    """Some of the cloud's steps of a plan, all of their state in one place."""

    def __init__(
        self,
        plan: Plan,
        steps: Collection[str],
        clock: Clock,
        open_fragment: Callable[..., Fragment] = Fragment,
    ) -> None:
        """clock: for tasks that say they are not replayable; open_fragment: makes the fragment, from what
        `Fragment` takes.
        """
        self._plan, self.steps, self._clock = plan, frozenset(steps), clock
        self._open_fragment = open_fragment
        self._stage = Stage(1, plan.graph, self.steps)
        self._entries = {channel.id: channel.entry for channel in plan.channels}
        self._fields = {channel.id: RowCodec(channel.kind).schema.fields for channel in plan.channels}
        domains = claimable(plan.graph) if CLAIMS in self._entries else {}
        self._domains = {step: domain for step, domain in domains.items() if step in self.steps}
        self._noted = noted_domains(plan.graph, self._entries, set(self._domains.values()))
        self._owners: dict[str, dict[bytes, str]] = {}
        self._saved = BucketState(_Buckets(), 1)
        self._output = Output()
        self._fragment = self._opened()

    @property
    def fragment(self) -> Fragment:
        """The steps, until they are told of state the next time."""
        return self._fragment

    def feed(self, channel: str, batch: Batch) -> None:
        """Feed records of a channel."""
        self._fragment.feed(self._entries[channel], batch)

    def note_owners(self, channel: str, rows: ColumnBatch, devices: Sequence[str]) -> None:
        """Learn from rows of a channel on which devices keys live."""
        domain = self._noted.get(channel)
        if domain is None:
            return
        at = next(at for at, field in enumerate(self._fields[channel]) if field.name == domain)
        known = self._owners.setdefault(domain, {})
        for value, device in set(zip(rows.fields[at], devices, strict=True)):
            if (key := key_of(value)) is not None:
                known[key] = device

    def take_in(self, rows: ColumnBatch, devices: Sequence[str]) -> None:
        """Go on with cells that devices have left, rows of `STATE`; those of other steps are passed over."""
        mine = []
        for row, (step, key, device) in enumerate(owned_cells(rows, devices)):
            if step in self.steps:
                mine.append(row)
            if (domain := self._domains.get(step)) is not None:
                self._owners.setdefault(domain, {})[key] = device
        if mine:
            self._keep()
            moved = MovedState(self._stage, self._fragment, self._saved)
            moved.take([pack(take(rows, mine))])
            self._saved.save({**self._fragment.changes(), **moved.changes()})
            self._again()

    def answer(self, rows: ColumnBatch, devices: Sequence[str], end: int | None = None) -> None:
        """Do as devices have claimed, whole batches of rows of `CLAIMS`.

        end: no time goes on beyond it, microseconds.
        """
        claims: Iterator[Claim] = iter(RowCodec(Claim).from_columns(rows.fields))
        told = [
            claim_told(_upto(claim, end), device, step)
            for claim, device in zip(claims, devices, strict=True)
            for step in (self._domains if claim.says == LOST else (claim.step,))
            if step in self._domains
        ]
        if told:
            self._keep()
            giving = Giving(self._stage, self._fragment, self._saved, 0, 1)
            owners = [owners_told(domain, known) for domain, known in self._owners.items()]
            self._saved.save(giving.note(owners))
            for _ in giving.answer(told):
                self._saved.save(self._fragment.changes())
            self._again()

    def advance(self, channels: Collection[str], clocks: Clocks) -> None:
        """Tell the steps of the clocks of the channels that they read."""
        entries = sorted(self._entries[channel] for channel in channels)
        sources = sources_of(self._plan.graph, entries)
        for entry in entries:
            self._fragment.advance(entry, least_clock(clocks, sources[entry]))
        self._saved.clocks = clocks

    def take(self) -> Output:
        """All that left since the last call."""
        self._hold()
        output, self._output = self._output, Output()
        return output

    def close(self) -> None:
        """Stop the tasks."""
        self._fragment.close()

    def _opened(self) -> Fragment:
        chance = SystemRandomness()
        return self._open_fragment(
            self._plan.graph, self.steps, self._saved, clock=self._clock, randomness=chance
        )

    def _keep(self) -> None:
        self._saved.save(self._fragment.changes())

    def _again(self) -> None:
        """Open the steps anew over what is kept, as each micro-batch does."""
        self._hold()
        self._fragment.close()
        self._fragment = self._opened()

    def _hold(self) -> None:
        for stream, batches in self._fragment.take().batches.items():
            for batch in batches:
                self._output.add(stream, batch)


def _upto(claim: Claim, end: int | None) -> Claim:
    if end is None or claim.mark <= end:
        return claim
    return Claim(claim.number, claim.step, claim.says, max(end, START_OF_TIME))


class _Buckets:
    """The buckets of a shard in memory."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[bytes]] = {}

    def getValue(self, key: tuple[int]) -> tuple[Any, ...] | None:  # noqa: N802
        return self._values.get(key[0])

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return iter([((key,), value) for key, value in self._values.items()])

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None:  # noqa: N802
        self._values[key[0]] = value
