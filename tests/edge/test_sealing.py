"""Batches of a commit: within every cap, chained, with watermarks that never run ahead of their rows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from geartrain import Record
from geartrain.graph.graph import DEAD_LETTERS
from geartrain.planning import Plan
from geartrain.ports import SplitProgress
from geartrain.records.batch import Batch
from geartrain.records.event_time import START_OF_TIME
from geartrain.runtime.fragment import Output
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.wire.body import decode_rows
from geartrain.wire.codec import decode_header, encode_envelope
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import BatchKind, Envelope
from geartrain.wire.limits import LIMITS, Limits
from geartrain_edge.spool.backlog import Counters, Identity
from geartrain_edge.spool.sealing import Progress, Sealer
from tests.edge.flows import plan_of

WHO = Identity("d1", "fleet", b"epoch..8")
BEFORE = Progress(
    {"readings": START_OF_TIME}, {("readings", "x"): SplitProgress(0, START_OF_TIME)}, {"readings": 0}
)
AFTER = Progress({"readings": 100}, {("readings", "x"): SplitProgress(9, 100)}, {"readings": 100})


class Text(Record):
    text: str | None


def text_plan() -> Plan:
    plan = plan_of([])
    channels = tuple(replace(c, kind=Text) if c.id == "readings" else c for c in plan.channels)
    return Plan(plan.graph, plan.cut, channels)


def sealer_of(limits: Limits = LIMITS) -> tuple[Sealer, Counters]:
    counters = Counters({})
    return Sealer(text_plan(), WHO, 7, FIRST_DIGEST, limits, counters), counters


def texts(*values: str | None) -> Batch:
    count = len(values)
    return Batch([Text(value) for value in values], list(range(count)), ["x"] * count, list(range(count)))


def output(*batches: Batch, channel: str = "readings") -> Output:
    return Output({channel: list(batches)})


def read(plan: Plan, batch: Any) -> list[Any]:
    """The records of a sealed batch."""
    header = decode_header(batch.header)
    codec = RowCodec(plan.channel(header.channel).kind)
    rows: ColumnBatch = decode_rows(codec.schema, header, batch.body)
    return codec.from_columns(rows.fields)


def test_batches_are_numbered_and_chained() -> None:
    sealer, counters = sealer_of()
    made = sealer.seal(output(texts("a", "b"), texts("c")), BEFORE, AFTER)
    made += sealer.seal(output(texts("d")), AFTER, AFTER)
    assert [batch.seq for batch in made] == [8, 9]
    digest = FIRST_DIGEST
    for batch in made:
        digest = next_digest(digest, batch.header, batch.body)
        assert batch.digest == digest
    assert [[record.text for record in read(text_plan(), batch)] for batch in made] == [
        ["a", "b", "c"],
        ["d"],
    ]
    sealed = sum(len(batch.header) + len(batch.body) for batch in made)
    assert counters.totals == {"rows.readings": 4, "bytes_sealed": sealed}


def test_only_the_last_batch_of_a_commit_moves_the_watermarks() -> None:
    sealer, _ = sealer_of(Limits(rows_max=2))
    made = sealer.seal(output(texts(*"abcde")), BEFORE, AFTER)
    headers = [decode_header(batch.header) for batch in made]
    assert [header.count for header in headers] == [2, 2, 1]
    assert [header.watermarks for header in headers] == [BEFORE.watermarks] * 2 + [AFTER.watermarks]
    assert [header.source_watermarks for header in headers] == [{"readings": 0}] * 2 + [{"readings": 100}]
    assert [header.positions for header in headers] == [BEFORE.positions] * 2 + [AFTER.positions]


def test_a_watermark_without_rows_is_a_batch_of_its_own_and_nothing_is_none() -> None:
    sealer, _ = sealer_of()
    (alone,) = sealer.seal(Output(), BEFORE, AFTER)
    header = decode_header(alone.header)
    assert (header.kind, header.channel, header.count, alone.body) == (BatchKind.DATA, "", 0, b"")
    assert header.watermarks == AFTER.watermarks
    assert sealer.seal(Output(), AFTER, AFTER) == []


def test_rows_are_cut_by_their_bytes() -> None:
    limits = Limits(payload_bytes_max=(1 << 17) + 3_000, text_bytes_max=10_000)
    sealer, counters = sealer_of(limits)
    values = [chr(97 + n) * 900 for n in range(10)]
    made = sealer.seal(output(texts(*values)), BEFORE, AFTER)
    assert len(made) > 2
    assert [record.text for batch in made for record in read(text_plan(), batch)] == values
    for batch in made:
        envelope = Envelope(batch.header, batch.body, batch.digest, 1)
        assert len(encode_envelope(envelope)) <= limits.payload_bytes_max
    assert "records_too_large" not in counters.totals


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_record_too_large_is_a_dead_letter_and_the_others_go_on(count: int) -> None:
    sealer, counters = sealer_of()
    values: list[str | None] = [None, *map(str, range(count))]
    values.insert(count, "x" * (LIMITS.text_bytes_max + 1))
    made = sealer.seal(output(texts(*values)), BEFORE, AFTER)
    plan = text_plan()
    sent = [r.text for b in made if decode_header(b.header).channel == "readings" for r in read(plan, b)]
    assert sent == [value for value in values if value is None or len(value) < 100]
    assert decode_header(made[-1].header).channel == DEAD_LETTERS
    (letter,) = read(plan, made[-1])
    assert letter.step == "readings"
    assert letter.reason.startswith("this record cannot be sent: ")
    assert "raw cut from" in letter.reason
    assert counters.totals == {
        "records_too_large": 1,
        "rows.readings": len(values) - 1,
        f"rows.{DEAD_LETTERS}": 1,
        "bytes_sealed": sum(len(batch.header) + len(batch.body) for batch in made),
    }


def test_schemas_are_announced_first() -> None:
    sealer, _ = sealer_of()
    announced = sealer.announce(BEFORE)
    header = decode_header(announced.header)
    assert (header.kind, header.seq, header.count) == (BatchKind.SCHEMA, 8, 0)
    assert header.watermarks == BEFORE.watermarks


def test_paths_of_some_batches_are_kept() -> None:
    sealer, _ = sealer_of()
    deep = texts("b")
    deep.paths = [b"\x01"]
    (made,) = sealer.seal(output(texts("a"), deep), BEFORE, AFTER)
    header = decode_header(made.header)
    rows = decode_rows(RowCodec(Text).schema, header, made.body)
    assert rows.paths == [b"", b"\x01"]
