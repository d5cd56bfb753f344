"""Versions of a group's plan: which flows a micro-batch runs, each by its plan, its slots and its positions.

Between the host, which publishes a version, and the source and stages of the group's query, which run by it.
A flow is added, removed or replaced by publishing the next version; the query goes on.

Guarantees: a version is durable and never changes. What it names was durable before. The numbers of versions
follow one another, and a micro-batch names its version in its offsets, so it runs under the same one again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from geartrain.adapters.files import write_durable
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.offsets import generation_name
from geartrain_cloud.spark.shards import shard_labels

Past = Literal["", "above", "new"]
FIRST = 1
"""The number of the version with which a group begins."""
ROWS_MAX = 1_000_000
"""Rows of each key of a flow in one micro-batch at the most, where nobody says less."""


class Hosted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One generation of a flow in a group.

    flow: the instance, as the log names it; plan: the hash of its pickled query; request: the hash of
    what was asked for; code: by top-level name, the hash of the user's files that it imports; stages:
    those behind a shuffle; labels: its slots, each a group of Spark's; buckets: of one slot; keys: the
    partitions of the log; channels: those that it reads; sources: those of the flow; identity: to which
    its tables are bound; begin: its positions before its first micro-batch, begin_count: its own count
    there; stop: where its first micro-batch must end, if anywhere; rows_max: rows of each key in one
    micro-batch at the most; run: which pass over its log. revision: the number of the one that it runs;
    drops: by stage, the steps whose state of the generation before goes when it comes in; drains: those that
    put out what they hold in the micro-batch after `drain_count` of its own, before they leave with the next
    revision. leaves_for: over how many slots its keys are to be dealt, 0 for none; broadcasts: then,
    its steps whose table every slot has whole. Its slots write what
    they keep in the first micro-batch of the version that says so, and it reads no more. comes_from: the
    generation whose slots, `former_slots` of them, have written that; its own take it in its first micro-
    batch. forms: by task, the form of what the generation before has kept, where shards have not noted it;
    unread: by channel, behind which positions no step reads it.

    past: `above` or `new` where it reads the log of before a revision for steps that are new in it, first for
    those above them alone. Then its plan has only these, it keeps its state beside that of the flow, and ends
    at `upto`; the flow goes on at `resumes`. takes: of the generation that does so, the steps whose state it
    takes from there in its first micro-batch, None where there is none beside.
    """

    flow: str
    generation: int
    plan: str
    request: str
    code: dict[str, str]
    stages: int
    labels: tuple[int, ...]
    buckets: int
    keys: tuple[str, ...]
    channels: tuple[str, ...]
    sources: tuple[str, ...]
    identity: str
    begin: dict[str, int] = {}
    begin_count: int = -1
    stop: dict[str, int] = {}
    rows_max: int = ROWS_MAX
    run: int = 1
    revision: int = 1
    drops: dict[int, tuple[str, ...]] = {}
    drains: tuple[str, ...] = ()
    drain_count: int = -1
    leaves_for: int = 0
    broadcasts: tuple[str, ...] = ()
    comes_from: str = ""
    former_slots: int = 0
    forms: dict[str, str] = {}
    unread: dict[str, dict[str, int]] = {}
    past: Past = ""
    upto: dict[str, int] = {}
    resumes: dict[str, int] = {}
    takes: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """How this generation is called in offsets and files."""
        return generation_name(self.flow, self.generation, self.run)

    def drains_after(self, count: int) -> bool:
        """Whether steps put out what they hold in the micro-batch after this one of its own."""
        return bool(self.drains) and count == self.drain_count

    def begin_at(self, key: str) -> int:
        """The position of `key` before its first micro-batch."""
        return self.begin.get(key, 0)


def dealt_anew(hosted: Hosted, positions: dict[str, int], count: int, labels: tuple[int, ...]) -> Hosted:
    """The generation that goes on in the place of one whose slots have written what they keep, there and at
    this count of its micro-batches, with new slots.
    """
    return msgspec.structs.replace(
        hosted,
        generation=hosted.generation + 1,
        labels=labels,
        begin=positions,
        begin_count=count,
        stop={},
        drops={},
        drains=(),
        drain_count=-1,
        leaves_for=0,
        broadcasts=(),
        comes_from=hosted.name,
        former_slots=len(hosted.labels),
        takes=None,
    )


class Version(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a group runs. slots: how many were ever given out; flows: by the name of their generation."""

    number: int
    slots: int = 0
    flows: dict[str, Hosted] = {}

    def of_flow(self, flow: str, run: int = 1) -> Hosted | None:
        """The generation of a flow's run that is here."""
        found = (hosted for hosted in self.flows.values() if (hosted.flow, hosted.run) == (flow, run))
        return next(found, None)


def new_labels(slots: int, count: int, partitions: int) -> tuple[int, ...]:
    """The labels of `count` new slots, where `slots` were given out before; spread evenly by Spark."""
    shared = partitions  # the first ones are those of rows on their way to sinks
    return shard_labels(shared + slots + count, partitions)[shared + slots :]


def sink_labels(partitions: int) -> tuple[int, ...]:
    """The labels under which rows go on to sinks, those of all flows."""
    return shard_labels(partitions, partitions)


class Versions:
    """The folder of a group's versions. Each process has its own, and reads a version once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[int, Version] = {}

    def exists(self, number: int) -> bool:
        """Whether there is a version of that number."""
        return number in self._read or self._path(number).exists()

    def read(self, number: int) -> Version:
        """A version; raises `HostError` where it is missing or damaged."""
        if number not in self._read:
            path = self._path(number)
            try:
                self._read[number] = msgspec.json.decode(path.read_bytes(), type=Version)
            except (OSError, msgspec.DecodeError) as error:
                raise HostError(
                    f"the version {path} of the plan cannot be read ({error}): bring it back from a copy"
                ) from None
        return self._read[number]

    def newest(self) -> Version | None:
        """The version of the highest number, None where there is none; raises `HostError`."""
        found = self._numbers()
        return self.read(max(found)) if found else None

    def oldest(self) -> int:
        """The lowest number of a version, 0 where there is none."""
        return min(self._numbers(), default=0)

    def all(self) -> list[Version]:
        """Those that a micro-batch may still name, by number; raises `HostError`."""
        return [self.read(number) for number in sorted(self._numbers())]

    def publish(self, version: Version) -> None:
        """Make a version known, durably; raises `OSError`."""
        write_durable(self._path(version.number), msgspec.json.encode(version))
        self._read[version.number] = version

    def forget_before(self, number: int) -> None:
        """Remove versions that no micro-batch names any more."""
        for old in self._numbers():
            if old < number:
                self._path(old).unlink(missing_ok=True)
                self._read.pop(old, None)

    def _numbers(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return [int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdecimal()]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.json"
