"""What ingest refuses: it is counted, kept raw within bounds, and never reaches the log."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from geartrain.ports import SplitProgress
from geartrain.schema import Field, FieldType, Schema
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.codec import decode_header, encode_envelope, encode_gap, encode_header
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import VERSION, BatchKind, Envelope, NackReason
from geartrain.wire.limits import LIMITS
from geartrain.wire.topics import up_topic
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.log.reader import LogReader
from tests.cloud.fleet import FLOW, PATIENCE_S, QUOTE, Running, TestDevice, make_config, prices, running
from tests.rosters import document, put_flow

OTHER = Schema("Quote", (Field("symbol", FieldType.STR),))
Scenario = Callable[[Running, TestDevice], Awaitable[None]]


def play(folder: Path, scenario: Scenario, **settings: Any) -> LogReader:
    """Run a scenario with device-1, whose schema batch was acked; a last quote proves that all goes on."""

    async def run() -> LogReader:
        async with running(make_config(folder, **settings)) as world:
            device = TestDevice()
            world.net.deliver(device.topic, device.schemas())
            await world.net.acked(device)
            await scenario(world, device)
            world.net.deliver(device.topic, device.quotes(99.0))
            await world.net.acked(device)
        return world.reader

    return asyncio.run(run())


def quarantine(folder: Path) -> list[Any]:
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        query = "SELECT device, flow, epoch, seq, count, reason, payload FROM quarantine ORDER BY number"
        return ledger.execute(query).fetchall()


def test_what_a_device_sends_that_is_not_assigned_stays_with_it_and_is_counted(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        stranger = TestDevice("stranger")
        world.net.deliver(stranger.topic, stranger.schemas(), b"\xff not protobuf at all")
        await world.counted(Counter.UNASSIGNED_BATCHES, 2)
        assert world.net.controls(stranger) == []

    reader = play(tmp_path, scenario)
    assert prices(reader) == [99.0]
    assert reader.counters()["unassigned_batches"] == 2
    assert "malformed_batches" not in reader.counters()
    assert quarantine(tmp_path) == []


@pytest.mark.parametrize("name", ["device-2", "device-1"])
def test_header_of_another_device_or_flow_than_the_topic(tmp_path: Path, name: str) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        other = TestDevice(name, flow=FLOW if name == "device-2" else "weather")
        world.net.deliver(device.topic, other.schemas())

    reader = play(tmp_path, scenario)
    assert reader.counters()["identity_mismatches"] == 1
    assert prices(reader) == [99.0]
    assert len(quarantine(tmp_path)) == 1


def test_a_device_that_uses_up_its_seqs_stands_alone(tmp_path: Path) -> None:
    """What it would have to be asked for does not fit the wire; the others are answered as before."""
    wild = TestDevice("device-2")

    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(wild.topic, wild.schemas())
        await world.net.acked(wild)
        gap = replace(wild.header(BatchKind.GAP), first_seq=2, seq=2**63 - 1, digest_after=bytes(16))
        header, body = encode_header(gap), encode_gap([])
        envelope = Envelope(header, body, next_digest(FIRST_DIGEST, header, body), 2)
        world.net.deliver(wild.topic, encode_envelope(envelope), b"\x0a\xff")
        await world.counted(Counter.ANSWERS_UNSENT, 1)

    reader = play(tmp_path, scenario, devices=("device-1", "device-2"))
    assert reader.counters()["answers_unsent"] == 1
    assert prices(reader) == [99.0]


def test_what_a_device_says_that_it_dropped_stays_a_number_of_the_ledger(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        for _ in range(3):
            header = replace(device.header(), dropped={"quotes": 2**63 - 1})
            world.net.deliver(device.topic, device.batch(header, b""))
        await world.net.acked(device)

    counters = play(tmp_path, scenario).counters()
    assert counters["records_dropped"] == counters["dropped:stocks/quotes"] == 2**63 - 1


def test_a_device_cannot_fill_the_memory_with_names_of_splits(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        for batch in range(3):
            names = {("quotes", f"{batch}/{n}"): SplitProgress(n, n) for n in range(600)}
            world.net.deliver(device.topic, device.batch(replace(device.header(), positions=names), b""))
        await world.net.acked(device)
        world.net.deliver(device.topic, device.hello())
        await world.net.until(lambda: bool(world.net.welcomes(device)))
        assert len(world.net.welcomes(device)[0].positions) == 1_024

    # The 776 of the three batches above, and all that the last quote moved.
    assert play(tmp_path, scenario).counters()["positions_unkept"] == 777


def test_malformed_payload_is_quarantined_and_the_next_batch_asked_for(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, b"\x0a\xff")
        await world.net.until(lambda: bool(world.net.nacks(device)))
        assert world.net.nacks(device)[0].seq == 2

    reader = play(tmp_path, scenario)
    assert reader.counters()["malformed_batches"] == 1
    assert quarantine(tmp_path)[0][6] == b"\x0a\xff"


def test_a_batch_of_another_wire_version_is_left_with_its_device(tmp_path: Path) -> None:
    """It is not logged, acked or quarantined, so the spool holds it until its agent is upgraded."""

    async def scenario(world: Running, device: TestDevice) -> None:
        acked = len(world.net.acks(device))
        for version in (1, VERSION + 1):
            raw = pb.Envelope.FromString(device.payload(1))
            header = pb.Header.FromString(raw.header)
            header.version = version
            raw.header = header.SerializeToString()
            world.net.deliver(device.topic, raw.SerializeToString())
        await world.counted(Counter.OTHER_WIRE_VERSION, 2)
        assert (len(world.net.acks(device)), world.net.nacks(device)) == (acked, [])

    reader = play(tmp_path, scenario)
    assert reader.counters()["other_wire_version"] == 2
    assert reader.counters().get("malformed_batches", 0) == 0
    assert quarantine(tmp_path) == []


def test_payload_above_the_cap_and_foreign_topics_are_dropped(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, bytes(LIMITS.payload_bytes_max + 1))
        world.net.deliver("geartrain/v1/zz/device-1/stocks/up", device.payload(1))
        world.net.deliver("elsewhere", b"")

    reader = play(tmp_path, scenario)
    assert reader.counters()["oversized_payloads"] == 1
    assert reader.counters()["foreign_topics"] == 2
    assert quarantine(tmp_path) == []


def test_rows_without_a_known_schema_are_quarantined_in_their_turn_and_acked(tmp_path: Path) -> None:
    async def run() -> LogReader:
        async with running(make_config(tmp_path, nack_interval_ms=1)) as world, asyncio.timeout(PATIENCE_S):
            device = TestDevice()
            device.quotes(1.0, 2.0)
            device.schemas()
            device.quotes(3.0)
            await world.net.insist(device)
        return world.reader

    reader = asyncio.run(run())
    assert prices(reader) == [3.0]
    counters = reader.counters()
    assert counters["unknown_schema_batches"] == 1
    assert counters["schemas_asked"] == 3
    assert counters["quarantined_records"] == 2
    assert quarantine(tmp_path)[0][:5] == ("device-1", FLOW, b"epoch--1", 1, 2)
    assert reader.clocks(FLOW, "0", reader.positions(FLOW)["0"])["quotes"] == 30


def test_body_that_cannot_be_decoded_is_quarantined_with_its_count_and_acked(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        device.quotes(1.0, 2.0, 3.0)
        device.seq -= 1
        device.digest = device.batches[1].digest
        good = device.batches.pop(2)
        world.net.deliver(device.topic, device.batch(decode_header(good.header), b"\x0a\xff"))
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [99.0]
    counters = reader.counters()
    assert (counters["undecodable_batches"], counters["quarantined_records"]) == (1, 3)
    assert quarantine(tmp_path)[0][4] == 3


def test_schemas_that_cannot_be_decoded_are_quarantined_and_acked(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.batch(device.header(BatchKind.SCHEMA), b"\x0a\xff"))
        await world.net.acked(device)

    assert play(tmp_path, scenario).counters()["undecodable_batches"] == 1


def test_rows_of_a_channel_that_the_flow_lacks_stay_with_their_device_until_it_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    device = TestDevice()
    lacking = make_config(tmp_path, status_interval_ms=5, nack_interval_ms=1)
    whole = {"quotes": (device.name,), "elsewhere": (device.name,)}
    status = dict[str, Any]()

    def is_said() -> bool:
        if not (tmp_path / "status.json").exists():
            return False
        status.update(json.loads((tmp_path / "status.json").read_text())["flows"][FLOW]["devices"])
        return "held" in status[device.name]

    async def run() -> LogReader:
        async with running(lacking) as world:
            device.schemas()
            device.quotes(1.0)
            device.quotes(2.0, 3.0, channel="elsewhere")
            device.quotes(4.0)
            device.quotes(5.0)
            world.net.deliver(device.topic, *(device.payload(seq) for seq in (1, 2, 3, 4, 5, 3)))
            await world.counted(Counter.HELD_BATCHES, 2)
            await world.net.until(lambda: bool(world.net.nacks(device)))
            async with asyncio.timeout(PATIENCE_S):
                while not is_said():  # noqa: ASYNC110 - a file tells nobody
                    await asyncio.sleep(0.01)
            # Whatever comes behind it, the device is never asked to send all again.
            assert {(nack.reason, nack.seq) for nack in world.net.nacks(device)} == {(NackReason.HOLD, 3)}
            assert {ack.seq for ack in world.net.acks(device)} <= {1, 2}
        put_flow(tmp_path, FLOW, document(whole))
        async with running(lacking) as world:
            world.net.deliver(device.topic, device.answer_schemas({"elsewhere": QUOTE.schema}))
            world.net.deliver(device.topic, *(device.payload(seq) for seq in (3, 4, 5)))
            await world.net.acked(device)
        return world.reader

    reader = asyncio.run(run())
    assert prices(reader) == [1.0, 4.0, 5.0]
    assert prices(reader, "elsewhere") == [2.0, 3.0]
    held = status[device.name]["held"]
    assert (held["channel"], held["seq"], held["rows"]) == ("elsewhere", 3, 2)
    assert "flow stocks has no channel elsewhere as ingest was told of it" in held["why"]
    counters = reader.counters()
    assert (counters["held_batches"], counters.get("quarantined_records", 0)) == (2, 0)
    said = next(one.getMessage() for one in caplog.records if "stays with the device" in one.getMessage())
    assert (
        "device-1/stocks: batch 3 with 2 rows stays with the device, and all behind it: flow stocks has"
        in said
    )


@pytest.mark.parametrize(
    ("schemas", "channel", "why"),
    [
        (
            {"quotes": OTHER},
            "quotes",
            f"channel quotes has the schema {QUOTE.schema.schema_id} in flow stocks",
        ),
        ({"none": QUOTE.schema, "quotes": QUOTE.schema}, "none", "flow stocks has no channel none"),
    ],
)
def test_what_announces_another_flow_stays_with_its_device(
    schemas: dict[str, Schema], channel: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    right, wrong = TestDevice(), TestDevice("device-2", b"epoch--2")
    config = make_config(tmp_path, (right.name, wrong.name), status_interval_ms=5, nack_interval_ms=1)

    def held() -> dict[str, Any]:
        if not (tmp_path / "status.json").exists():
            return {}
        found = json.loads((tmp_path / "status.json").read_text())["flows"][FLOW]["devices"][wrong.name]
        return dict(found.get("held", {}))

    async def run() -> LogReader:
        async with running(config) as world:
            world.net.deliver(right.topic, right.schemas(), right.quotes(1.0))
            await world.net.acked(right)
            world.net.deliver(wrong.topic, wrong.schemas(schemas), wrong.quotes(2.0))
            await world.counted(Counter.HELD_BATCHES, 1)
            async with asyncio.timeout(PATIENCE_S):
                while not held():  # noqa: ASYNC110 - a file tells nobody
                    await asyncio.sleep(0.01)
            world.net.deliver(wrong.topic, wrong.payload(2))
            await world.net.until(lambda: bool(world.net.nacks(wrong)))
            assert {(nack.reason, nack.seq) for nack in world.net.nacks(wrong)} == {(NackReason.HOLD, 1)}
            assert world.net.acks(wrong) == []
            assert (held()["channel"], held()["seq"], held()["rows"]) == (channel, 1, 0)
            assert why in held()["why"]
        return world.reader

    reader = asyncio.run(run())
    assert prices(reader) == [1.0]
    assert reader.schema(FLOW, "quotes") == QUOTE.schema
    assert reader.counters().get("quarantined_batches", 0) == 0
    assert any(why in record.getMessage() for record in caplog.records)


def test_an_answer_does_not_change_the_schema_of_a_channel(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(
            device.topic, device.answer_schemas({"quotes": OTHER, "_late": OTHER, "none": OTHER})
        )
        await world.counted(Counter.QUARANTINED_BATCHES, 1)

    reader = play(tmp_path, scenario)
    assert reader.schema(FLOW, "quotes") == QUOTE.schema
    assert reader.schema(FLOW, "_late") == OTHER
    assert prices(reader) == [99.0]
    counters = reader.counters()
    assert counters["schema_conflicts"] == counters["unknown_channel_batches"] == 1


def test_quarantine_is_bounded_and_keeps_room_for_what_was_acked(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, *(bytes([n]) for n in range(10)))
        for _ in range(5):
            header = replace(device.header(), channel="quotes", schema_id=QUOTE.schema.schema_id, count=1)
            world.net.deliver(device.topic, device.batch(header, b"\x0a\xff"))
        await world.net.acked(device)

    counters = play(tmp_path, scenario, quarantine_batches_max=6).counters()
    rows = quarantine(tmp_path)
    assert [len(row[6]) == 1 for row in rows] == [True] * 3 + [False] * 3
    assert counters["quarantined_batches"] == 6
    assert counters["quarantine_dropped"] == 9
    assert counters["quarantined_records"] == 5
    assert counters["quarantine_bytes"] == sum(len(row[6]) for row in rows)


def test_watermark_that_goes_back_moves_nothing(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.advance(500), device.advance(400))
        await world.net.acked(device)
        device.time = 500

    reader = play(tmp_path, scenario)
    entries = reader.entries(FLOW, "0", 0, 99)
    assert [entry.clock(["quotes"]) for entry in entries][-2:] == [500, 510]
    assert reader.counters()["watermarks_back"] == 4


def test_text_of_a_device_is_escaped_wherever_it_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver("up\x1b[2J\nforged line", b"")
        body = b"\x0a\x06quotes\x12\x04\x1b[2J"
        world.net.deliver(device.topic, device.batch(device.header(BatchKind.SCHEMA), body))
        await world.net.acked(device)

    with caplog.at_level(logging.INFO, "geartrain.ingest"):
        play(tmp_path, scenario)
    texts = [record.getMessage() for record in caplog.records] + [row[5] for row in quarantine(tmp_path)]
    assert any("forged line" in text for text in texts)
    assert all(text.isprintable() for text in texts)


def test_same_warning_is_not_repeated_for_each_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        stranger = up_topic("stranger", FLOW)
        world.net.deliver(stranger, *(b"x" for _ in range(200)))

    with caplog.at_level(logging.WARNING, "geartrain.ingest"):
        reader = play(tmp_path, scenario)
    assert reader.counters()["unassigned_batches"] == 200
    assert sum("stranger" in record.getMessage() for record in caplog.records) == 1
