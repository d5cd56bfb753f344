"""A query of Spark's run stage by stage without Spark: shuffles as dictionaries, rows dealt as Spark may.

Between the log and the sinks of a simulated world, and of tests that need no Spark. What a host runs in the
workers of Spark runs in it: the chains of stage 0, and the fragment of each later one over its saved state.
Guarantees: what a micro-batch gives is a function of its rows, its clocks and the state before it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import Row

from geartrain.schema import ColumnBatch
from geartrain_cloud.log.pack import unpack
from geartrain_cloud.spark.buckets import BUCKETS, join_state, split_state
from geartrain_cloud.spark.chains import Chains
from geartrain_cloud.spark.clocks import encode_clocks
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.embedded import EmbeddedFragment
from geartrain_cloud.spark.rows import CLOCKS, Routed

LABELS = (10, 11, 12)
LogRow = tuple[str, int, pa.Table] | tuple[str, int, pa.Table, str]
"""Channel, position, rows, and the partition, which is 0 where none is named."""


class StateMap:
    """Spark's MapState as a dictionary, with a count of the calls."""

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}
        self.reads: list[int] = []
        self.writes: list[int] = []
        self.scans = 0

    def getValue(self, key: tuple[int]) -> tuple[bytes] | None:  # noqa: N802
        """The value of `key`, None where there is none."""
        self.reads.append(key[0])
        found = self.values.get(key[0])
        return None if found is None else (found,)

    def iterator(self) -> Iterator[tuple[tuple[int], tuple[bytes]]]:
        """All keys with their values."""
        self.scans += 1
        return iter([((key,), (value,)) for key, value in self.values.items()])

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None:  # noqa: N802
        """Set the value of `key`."""
        self.writes.append(key[0])
        self.values[key[0]] = value[0]


def all_at(query: Query, clock: int) -> dict[str, int]:
    """The clocks of a query whose sources all stand at `clock`."""
    return dict.fromkeys((step.id for step in query.graph.sources()), clock)


class StageRun:
    """One query, its state kept from micro-batch to micro-batch."""

    def __init__(self, query: Query, rng: random.Random) -> None:
        self.query, self._rng = query, rng
        self.labels: tuple[int, ...] = LABELS
        self.states = {(s.number, label): StateMap() for s in query.stages[1:] for label in LABELS}

    def deal(self, labels: tuple[int, ...], broadcasts: Collection[str]) -> None:
        """Deal the keys over other shards between two micro-batches; broadcasts: the steps whose table each
        of them has whole.
        """
        former, self.states = self.states, {}
        for stage in self.query.stages[1:]:
            own = [former[stage.number, label] for label in self.labels]
            parts = [split_state(state, len(labels), BUCKETS, broadcasts) for state in own]
            for at, label in enumerate(labels):
                state = self.states[stage.number, label] = StateMap()
                join_state(state, [several[at] for several in parts])
        self.labels = labels

    def micro_batch(
        self, rows: Iterable[LogRow], clock: int | Mapping[str, int]
    ) -> dict[str, list[ColumnBatch]]:
        """What the micro-batch gives to each sink; clock: of all sources, or of each."""
        clocks = all_at(self.query, clock) if isinstance(clock, int) else clock
        found: dict[str, list[ColumnBatch]] = {}
        for sink, packed in self._packed(list(rows), clocks):
            found.setdefault(sink, []).append(unpack(packed))
        return found

    def routed(self, rows: Iterable[LogRow], clocks: Mapping[str, int]) -> list[Row]:
        """What stage 0 makes of rows of the log, with the clocks that each shard of each stage gets."""
        brought = {"stream": CLOCKS, "sender": "", "position": 0, "sequence": 0}
        found = [
            Row(shard=label, stage=stage.number, **brought, packed=encode_clocks(clocks))
            for stage in self.query.stages[1:]
            for label in self.labels
        ]
        chains = Chains(self.query, len(self.labels))
        chains.clocks = dict(clocks)
        for channel, position, table, *partition in rows:
            found += self._placed(chains.run(channel, table), partition[0] if partition else "0", position)
        return [*found, *self._placed(chains.finish(), "0/clocks", 0)]

    def _placed(self, rows: list[Routed], sender: str, position: int) -> Iterator[Row]:
        for sequence, row in enumerate(rows):
            place = {"shard": self.labels[row.shard], "stage": row.stage, "stream": row.stream}
            yield Row(**place, sender=sender, position=position, sequence=sequence, packed=row.packed)

    def _packed(self, rows: list[LogRow], clocks: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
        waiting = self.routed(rows, clocks)
        for stage in self.query.stages[1:]:
            fragment = EmbeddedFragment(self.query, stage.number, self.labels)
            self._rng.shuffle(waiting)
            mine = [row for row in waiting if row.stage == stage.number]
            waiting = [row for row in waiting if row.stage != stage.number]
            dealt = {label: [row for row in mine if row.shard == label] for label in self.labels}
            assert sum(map(len, dealt.values())) == len(mine)
            for label in self._rng.sample(self.labels, len(self.labels)):
                waiting += fragment.run(self.states[stage.number, label], iter(dealt[label]))
        assert {row.stage for row in waiting} <= {0}
        yield from ((row.stream, row.packed) for row in waiting)
