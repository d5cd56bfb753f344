"""The state of steps that come to devices: from the shards that keep it to the device that claims it.

It stands at two places. Where the log is read, claims go to all shards of their step. Each key of a partition
domain goes to its shard there, with the device from which its record or its cell came. At the end of a
micro-batch a shard gives the cells of that device, and keeps them aside until the device says that it has
them.

A micro-batch ends with a claim, so that all before it was run. The device says nothing of its sources until
it has the cells or goes on without them. So the cells are brought up to how far its sources are, and what
comes out of that is below no clock.

Guarantees: a cell is in the shard, aside or dropped, and goes from one to the other with the rest of the
shard's state. Where the device of a key is not known, the shard gives nothing and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
import pyarrow as pa

from geartrain.errors import USER_ERRORS
from geartrain.graph.graph import CLAIMS, GIVEN, Graph
from geartrain.operators.process import forms_of
from geartrain.planning.mixed import claimable
from geartrain.planning.properties import derive_properties
from geartrain.records.event_time import START_OF_TIME
from geartrain.records.keys import encode_key
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.moving import brought_up, of_steps
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.state.claims import ASKS, BACK, HAS, LOST, Claim, GivenCell, given_cells, lost
from geartrain.state.keyed import NEVER, saved_cell
from geartrain.state.moving import Cells, StateCell, said_of
from geartrain_cloud.log.arrow import to_table
from geartrain_cloud.log.pack import pack
from geartrain_cloud.ports import Entry, EntryKind
from geartrain_cloud.spark.buckets import ASIDE, BucketState
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.rows import Routed
from geartrain_cloud.spark.shards import shard_of
from geartrain_cloud.spark.stages import Stage

OWNERS = "_owners"
"""The stream of a row that tells a shard from which device keys came; nothing reads it as records."""
_OWNER, _ASIDE = "_owner:{}", ASIDE + "{}"
"""Under which step a shard keeps the device of each key of a domain, and the cells that it has given."""
_KNOWS_NONE = (EntryKind.CROSSING, EntryKind.LOSS)
"""Entries of the channel of claims by which the spool of a device knows of none."""
_DUE_BYTES = 8
_STEP, _KEY = (
    [field.name for field in RowCodec(StateCell).schema.fields].index(name) for name in ("step", "key")
)


class _Keys(msgspec.Struct, array_like=True):
    """Keys of a domain, and the device of each."""

    domain: str
    keys: list[bytes]
    devices: list[str]


class _Said(msgspec.Struct, array_like=True):
    """A claim and who makes it."""

    device: str
    number: int
    step: str
    says: str
    mark: int


class _Aside(msgspec.Struct, array_like=True):
    """A cell that a device was given."""

    device: str
    number: int
    cell: bytes


_encode = msgspec.msgpack.Encoder().encode
_keys, _said = msgspec.msgpack.Decoder(_Keys).decode, msgspec.msgpack.Decoder(_Said).decode
_aside = msgspec.msgpack.Decoder(_Aside).decode


def noted_domains(graph: Graph, entries: Mapping[str, str], domains: Collection[str]) -> Mapping[str, str]:
    """By channel, the field whose values are keys of steps that devices may claim, where it has one.

    entries: by channel, the stream as which its rows are fed; domains: those of the steps.
    """
    known = derive_properties(graph) if domains else {}
    found = {c: known[entry].domain for c, entry in entries.items() if entry in known}
    return {channel: domain for channel, domain in found.items() if domain is not None and domain in domains}


def key_of(value: object) -> bytes | None:
    """The key that a value of a domain is; None for a value that is no key, which has no cell."""
    try:
        return encode_key(value)
    except USER_ERRORS:
        return None


def owners_told(domain: str, owners: Mapping[bytes, str]) -> bytes:
    """Keys of a domain with the device of each, as a shard is told."""
    return _encode(_Keys(domain, list(owners), list(owners.values())))


def owned_cells(rows: ColumnBatch, devices: Iterable[str]) -> Iterator[tuple[str, bytes, str]]:
    """The step, the key and the device of each cell that devices have left; rows: of `STATE`."""
    for called, key, device in zip(rows.fields[_STEP], rows.fields[_KEY], devices, strict=True):
        yield said_of(called)[0], key, device


def claim_told(claim: Claim, device: str, step: str) -> bytes:
    """A claim and who makes it, as a shard is told; step: of those that it is of."""
    return _encode(_Said(device, claim.number, step, claim.says, claim.mark))


def remakers(step: str, remake: Callable[[str, bytes], bytes]) -> dict[str, Callable[[str, bytes], bytes]]:
    """By the names under which a shard has cells of a step, what makes them of another form; remake: does so
    for a cell of the step. Those aside come back where the device goes on without the step.
    """

    def remade(former: str, cell: bytes) -> bytes:
        lent = _aside(cell[_DUE_BYTES:])
        return saved_cell(NEVER, _encode(_Aside(lent.device, lent.number, remake(former, lent.cell))))

    return {step: remake, _ASIDE.format(step): remade}


class Claimed:
    """Where the log is read: what goes to shards beside the records."""

    def __init__(self, query: Query, shards: int) -> None:
        self._shards = shards
        stage_of = {step: stage.number for stage in query.stages[1:] for step in stage.steps}
        domains = claimable(query.graph) if CLAIMS in query.channels else {}
        self._stages = {step: stage_of[step] for step in domains if step in stage_of}
        of_domain: dict[str, set[int]] = {}
        for step, number in self._stages.items():
            of_domain.setdefault(domains[step], set()).add(number)
        entries = {channel: query.entry(channel) for channel in query.channels}
        noted = noted_domains(query.graph, entries, of_domain)
        self._noted = {channel: (domain, sorted(of_domain[domain])) for channel, domain in noted.items()}
        self._domains = {step: domains[step] for step in self._stages}

    def owners(self, channel: str, table: pa.Table) -> Iterator[Routed]:
        """The keys of a channel's rows with their devices, to the shards that keep state of them."""
        if channel not in self._noted:
            return
        domain, stages = self._noted[channel]
        pairs = table.select([domain, "_device"]).group_by([domain, "_device"]).aggregate([])
        dealt: dict[int, dict[bytes, str]] = {}
        for value, device in zip(*(column.to_pylist() for column in pairs.columns), strict=True):
            if (key := key_of(value)) is not None:
                dealt.setdefault(shard_of(key, self._shards), {})[key] = str(device)
        for shard, found in sorted(dealt.items()):
            for stage in stages:
                yield Routed(shard, stage, OWNERS, owners_told(domain, found))

    def owners_of_cells(self, rows: ColumnBatch, table: pa.Table) -> Iterator[Routed]:
        """The keys of cells that devices have left, to the shards that take the cells in; rows: of `STATE`,
        which the log has as `table`.
        """
        devices = map(str, table.column("_device").to_pylist())
        dealt: dict[tuple[int, int, str], dict[bytes, str]] = {}
        for step, key, device in owned_cells(rows, devices):
            if (domain := self._domains.get(step)) is not None:
                place = shard_of(key, self._shards), self._stages[step], domain
                dealt.setdefault(place, {})[key] = device
        for (shard, stage, domain), found in sorted(dealt.items()):
            yield Routed(shard, stage, OWNERS, owners_told(domain, found))

    def said(self, claims: Sequence[Claim], table: pa.Table) -> Iterator[Routed]:
        """Claims, to every shard of their steps; those of a step that keeps nothing here go nowhere."""
        for claim, device in zip(claims, table.column("_device").to_pylist(), strict=True):
            for step in self._stages if claim.says == LOST else (claim.step,):
                stage = self._stages.get(step)
                if stage is not None:
                    said = claim_told(claim, str(device), step)
                    for shard in range(self._shards):
                        yield Routed(shard, stage, CLAIMS, said)


def claims_lost(entries: Iterable[Entry]) -> pa.Table | None:
    """What entries without rows say of claims, as rows: that the device knows of none, whose spool is fresh
    or was set back to before its first one. None for nothing.
    """
    devices = [one.device for one in entries if one.kind in _KNOWS_NONE and one.channel == CLAIMS]
    if not devices:
        return None
    codec, count = RowCodec(Claim), len(devices)
    fields = codec.to_columns([lost()] * count)
    columns = ColumnBatch(fields, [START_OF_TIME] * count, [CLAIMS] * count, list(range(count)))
    return to_table(codec.schema, columns, devices, [0] * count, [False] * count, [False] * count)


class Giving:
    """One shard of a stage at the end of a micro-batch."""

    def __init__(self, stage: Stage, fragment: Fragment, saved: BucketState, shard: int, shards: int) -> None:
        self._stage, self._fragment, self._saved = stage, fragment, saved
        self._shard, self._shards = shard, shards
        self._given: list[tuple[str, GivenCell]] = []

    @cached_property
    def _domains(self) -> dict[str, str]:
        """Worked out for a claim alone: few micro-batches have one."""
        return claimable(self._stage.graph)

    def note(self, packed: Iterable[bytes]) -> dict[tuple[str, bytes], bytes | None]:
        """The devices of keys, as `BucketState.save` takes them, where they are not known as such."""
        found: dict[tuple[str, bytes], bytes | None] = {}
        for one in packed:
            told = _keys(one)
            step = _OWNER.format(told.domain)
            for key, device in zip(told.keys, told.devices, strict=True):
                cell = saved_cell(NEVER, device.encode())
                if self._saved.load(step, key) != cell:
                    found[step, key] = cell
        return found

    def answer(self, packed: Iterable[bytes]) -> Iterator[None]:
        """Do as claims say, after all rows of the micro-batch were run and saved; yields whenever something
        may have left the fragment.
        """
        said = [_said(one) for one in packed]
        place = {step.id: number for number, step in enumerate(self._stage.graph.steps)}
        of_device: dict[tuple[str, int], Cells] = {}
        wanted: dict[tuple[str, int], list[str]] = {}
        refused: dict[tuple[str, int], str] = {}
        for one in sorted(said, key=lambda one: (one.number, place[one.step])):
            at = one.device, one.number
            if one.says == ASKS:
                self._settle(one)
                cells = of_device.setdefault(at, Cells())
                wanted.setdefault(at, []).append(one.step)
                if not refused.setdefault(at, self._unknown(one.step)):
                    cells |= self._lend(one)
                    yield
            elif one.says in (HAS, BACK, LOST):
                self._settle(one)
        for (device, number), cells in sorted(of_device.items()):
            why = refused[device, number]
            steps = {step for step, _ in cells}
            forms = forms_of(self._stage.graph, steps)
            asked = wanted[device, number]
            began = {step: self._saved.began(step) for step in asked}
            given = given_cells(number, self._shard, self._shards, asked, cells, why, forms, began)
            self._given += [(device, one) for one in given]

    def rows(self) -> Iterator[bytes]:
        """What goes down: records as `GIVEN` has them, with the device in one column more, packed."""
        if not self._given:
            return
        codec = RowCodec(GivenCell)
        names, values = (list(column) for column in zip(*self._given, strict=True))
        numbers = list(range(len(values)))
        fields = [*codec.to_columns(values), names]
        yield pack(ColumnBatch(fields, [START_OF_TIME] * len(values), [GIVEN] * len(values), numbers, None))

    def _unknown(self, step: str) -> str:
        """Why nothing of a step can be given, "" where it can."""
        owner = _OWNER.format(self._domains[step])
        lost = sum(self._saved.load(owner, key) is None for key, _ in self._saved.cells(step))
        if not lost:
            return ""
        return (
            f"step {step} keeps {lost:,} keys of an unknown device, as no record of theirs came since "
            "the revision by which the step may stand on devices: the state comes once each has had one"
        )

    def _lend(self, claim: _Said) -> Cells:
        """The cells that a device gets of a step, which are aside from now on; what was due of them by the
        device's watermark goes on from here.
        """
        step, graph = claim.step, self._stage.graph
        mine = saved_cell(NEVER, claim.device.encode())
        owner = _OWNER.format(self._domains[step])
        orders = [
            one.step
            for one in graph[step].inputs
            if graph[one.step].operator.kind == "order" and one.step in self._stage.steps
        ]
        cells = Cells()
        for name in (step, *orders):
            for key, cell in self._saved.cells(name):
                if self._saved.load(owner, key) == mine:
                    cells[name, key] = cell
        streams = {i.step for name in (step, *orders) for i in graph[name].inputs}
        left = brought_up(graph, [step, *orders], cells, dict.fromkeys(streams, claim.mark), orders)
        self._fragment.hand_on(left.output)
        changes: dict[tuple[str, bytes], bytes | None] = dict.fromkeys(cells)
        for (name, key), cell in of_steps(left.cells, [step]).items():
            lent = _Aside(claim.device, claim.number, cell)
            changes[_ASIDE.format(name), key] = saved_cell(NEVER, _encode(lent))
        self._saved.save(changes)
        return of_steps(left.cells, [step])

    def _settle(self, claim: _Said) -> None:
        """Forget what a device has by now, or go on with what it had been given: by whatever claim, where it
        makes another, and by others than the one that it knows of.
        """
        aside, changes = _ASIDE.format(claim.step), dict[tuple[str, bytes], bytes | None]()
        for key, cell in self._saved.cells(aside):
            lent = _aside(cell[_DUE_BYTES:])
            if lent.device == claim.device and _is_meant(claim, lent):
                changes[aside, key] = None
                if claim.says != HAS:
                    changes[claim.step, key] = lent.cell
        if changes:
            self._saved.save(changes)


def _is_meant(claim: _Said, lent: _Aside) -> bool:
    """Whether a device says something of what it was given."""
    if claim.says == LOST:
        return lent.number != claim.number
    return claim.says == ASKS or lent.number == claim.number
