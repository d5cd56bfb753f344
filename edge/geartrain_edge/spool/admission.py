"""Admission to the spool: what happens to rows when it is full, by the policy that the user chose.

Between the fragment's output and the sealing. Guarantees: every row that is not admitted is counted under its
channel and declared in the next batch. A declaration that is not sealed yet survives a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from geartrain.errors import ConfigError
from geartrain.operators.source import SourceOperator
from geartrain.planning import Plan
from geartrain.ports.spool import SpooledBatch
from geartrain.records.batch import Batch
from geartrain.runtime.fragment import Output
from geartrain_edge.settings import AgentSettings, Policy
from geartrain_edge.spool.backlog import Backlog, Counters
from geartrain_edge.spool.sealing import Part
from geartrain_edge.spool.shedding import Shedder

DECLARED = ("_agent", b"dropped")
"""Where the spool keeps rows that were dropped and stand in no batch yet: JSON, by channel."""

_RESERVE_BYTES_MIN = 4_096


class Admitted(msgspec.Struct, frozen=True):
    """What one commit may write: the parts to seal, and the gaps that made room for them."""

    parts: list[Part]
    gaps: list[SpooledBatch]
    freed_bytes: int


class Admission:
    """The policy of one spool."""

    def __init__(
        self,
        settings: AgentSettings,
        backlog: Backlog,
        counters: Counters,
        shedder: Shedder,
        stored: bytes | None,
    ) -> None:
        """`stored`: what a former life kept under `DECLARED`."""
        self._settings, self._backlog, self._counters, self._shedder = settings, backlog, counters, shedder
        self._seen: dict[str, int] = {}
        self._kept = stored
        self.dropped: dict[str, int] = (
            {} if stored is None else msgspec.json.decode(stored, type=dict[str, int])
        )
        """Rows by channel that no batch has declared yet."""

    @property
    def is_closed(self) -> bool:
        """Whether not even a batch without rows has room: the small reserve above the cap is used up too."""
        cap = self._backlog.bytes_max
        if self._settings.policy is Policy.BLOCK:
            return False
        return self._backlog.bytes >= cap + max(cap // 16, _RESERVE_BYTES_MIN)

    def thin(self, output: Output) -> Output:
        """Policy `downsample`, above its mark: every n-th row of each channel."""
        settings = self._settings
        mark = settings.downsample_above * self._backlog.bytes_max
        if settings.policy is not Policy.DOWNSAMPLE or self._backlog.bytes < mark:
            return output
        thinned = Output()
        for channel, batches in output.batches.items():
            for batch in batches:
                thinned.add(channel, self._thinned(channel, batch))
        return thinned

    def _thinned(self, channel: str, batch: Batch) -> Batch:
        seen, keep = self._seen.get(channel, 0), self._settings.downsample_keep
        self._seen[channel] = (seen + len(batch)) % keep
        rows = range(-seen % keep, len(batch), keep)
        self._counters.add(f"rows.{channel}", len(batch) - len(rows))
        self._drop(channel, len(batch) - len(rows))
        return batch.take(rows)

    async def admit(self, parts: Sequence[Part], header_bytes: int) -> Admitted:
        """What of `parts` fits below the cap, each with a header of about so many bytes; the rest is dropped.

        Policy `drop_oldest` makes room first; policy `block` takes everything, because its sources wait.
        """
        if self._settings.policy is Policy.BLOCK:
            return Admitted(list(parts), [], 0)
        room = self._backlog.bytes_max - self._backlog.bytes
        need = sum(part.size + header_bytes for part in parts) - room
        gaps: list[SpooledBatch] = []
        freed_bytes = 0
        if self._settings.policy is Policy.DROP_OLDEST and parts and need > 0:
            gaps, freed_bytes = await self._shedder.shed(need)
            room += freed_bytes
        admitted = []
        for part in parts:
            if part.size + header_bytes <= room:
                room -= part.size + header_bytes
                admitted.append(part)
            else:
                self._drop(part.channel, part.count)
        return Admitted(admitted, gaps, freed_bytes)

    def _drop(self, channel: str, count: int) -> None:
        if count:
            self.dropped[channel] = self.dropped.get(channel, 0) + count
            self._counters.add(f"dropped.{channel}", count)

    def declared(self) -> None:
        """Note that a batch of this commit declares all that was dropped."""
        self.dropped = {}

    def state(self) -> Mapping[tuple[str, bytes], bytes | None]:
        """What this commit has to keep of what is not declared yet."""
        stored = msgspec.json.encode(self.dropped) if self.dropped else None
        if stored == self._kept:
            return {}
        self._kept = stored
        return {DECLARED: stored}


def check_policy(plan: Plan, policy: Policy | None) -> None:
    """Raise `ConfigError` where the user has sources wait for room and one of them cannot."""
    restless = sources_that_cannot_wait(plan)
    if policy is Policy.BLOCK and restless:
        raise ConfigError(
            f"spool.policy: source {restless[0]} cannot wait while the spool is full, as 'block' asks: leave "
            "spool.policy out, or choose 'drop_oldest', 'drop_newest' or 'downsample'"
        )


def settled_policy(plan: Plan, policy: Policy | None) -> Policy:
    """The policy that the user chose, or the one that the sources allow."""
    if policy is not None:
        return policy
    return Policy.DROP_OLDEST if sources_that_cannot_wait(plan) else Policy.BLOCK


def sources_that_cannot_wait(plan: Plan) -> list[str]:
    """The sources that lose what nobody reads, as a sensor does."""
    return [
        step.id
        for step in plan.graph.sources()
        if isinstance(step.operator, SourceOperator)
        and step.operator.enabled
        and not step.operator.source.pausable
    ]
