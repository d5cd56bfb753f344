"""The log of a random flow whose devices send records of former types.

Each entry of rows is of one of three types, by chance. Of some rows no record of the present type can be
made, and these are dead letters.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import msgspec
from msgspec.structs import replace

from geartrain import Record
from geartrain.schema import ColumnBatch, Schema, derive
from tests.hosting.in_process import RevisedLog
from tests.reference.records import Brief, Named, Reading
from tests.reference.revised_flows import Revised
from tests.reference.revisions import Earlier
from tests.reference.two_tiers import World
from tests.spark.case_log import Logged


class Lost(Record):
    """What some devices send still, and no function takes."""

    name: str
    weight: int


COUNTED = Counter[Any]()
"""By type, how many rows came in it."""


@dataclass(frozen=True)
class Former(Logged):
    """An entry of rows of a type."""

    kind: Any = Reading

    def is_broken(self, row: int) -> bool:
        """Whether no record can be made of a row."""
        assert self.rows is not None
        return self.kind is Lost or (
            self.kind is Brief and crc32(f"{self.rows.names[row]}{self.rows.numbers[row]}".encode()) % 4 == 0
        )


class FormerLog(RevisedLog):
    """Its rows of sources are of former types by chance."""

    kinds: ClassVar[tuple[type[Record], ...]] = (Reading, Reading, Named, Brief)

    def __init__(self, folder: Path, flow: Revised, rng: random.Random) -> None:
        self._broken = Counter[Any]()
        super().__init__(folder, flow, rng)
        read = set[tuple[str, str, int]]().union(
            *({one for one in records if one[0] in stage.sources} for stage, records in self.by_stage())
        )
        heard = {one: n for one, n in self._broken.items() if (one[0], one[2], one[3]) in read}
        self.letters += Counter(heard)
        self._gone = {(step, name, number) for step, _, name, number, _ in self._broken}
        self.records = [records - self._gone for records in self.records]

    def earlier(self, number: int) -> Earlier | None:
        """What new steps read of the log of before, without rows that no step can be given."""
        found = super().earlier(number)
        if found is None:
            return None
        records, before = set(found.records) - self._gone, set(found.before) - self._gone
        return dataclasses.replace(found, records=records, before=before)

    def sent(self, world: World, rng: random.Random) -> Iterator[Logged]:
        """What some of the devices send."""
        for one in super().sent(world, rng):
            if one.rows is None or one.channel.startswith("_"):
                yield one
                continue
            kind = rng.choice(self.kinds)
            former = Former(one.channel, one.rows, one.clocks, one.device, kind)
            COUNTED[kind] += len(one.rows)
            for row, (time, name, number) in enumerate(
                zip(one.rows.times, one.rows.names, one.rows.numbers, strict=True)
            ):
                if former.is_broken(row):
                    self._broken[one.channel, time, name, number, b""] += 1
            yield former

    def segment(self, one: Logged) -> str:
        """The rows as their device sends them, whose class has the name of the present one."""
        if not isinstance(one, Former) or one.kind is Reading or one.rows is None:
            return super().segment(one)
        return self.written(one, _schema_of(one.kind), replace(one.rows, fields=self._columns(one, one.rows)))

    def _columns(self, one: Former, rows: ColumnBatch) -> list[list[Any]]:
        if one.kind is Named:
            return rows.fields
        keys, *others = rows.fields
        if one.kind is Lost:
            return [keys, list(range(len(rows)))]
        rest = [msgspec.msgpack.encode(list(values)) for values in zip(*others, strict=True)]
        return [keys, [b"\xc1" if one.is_broken(row) else packed for row, packed in enumerate(rest)]]


class GivenUpLog(FormerLog):
    """Some of its rows are of a type that the flow has given up."""

    kinds = (*FormerLog.kinds, Lost)

    @property
    def given_up(self) -> dict[str, tuple[str, ...]]:
        """By channel the layouts of what is given up; of one that `upgrade` names, too, which wins."""
        layouts = tuple(_schema_of(kind).layout for kind in (Lost, Named))
        return dict.fromkeys((one for one in self._codecs if not one.startswith("_")), layouts)


def _schema_of(kind: type[Record]) -> Schema:
    """The schema of a former type, whose class had the name of the present one."""
    return replace(derive(kind), name="Reading")
