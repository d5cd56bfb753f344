"""What no agent sends: 64 MiB at once, a zip bomb, bytes that are no protobuf, schemas that nobody announced.

A rogue device makes its batches by hand, with good digests and in their order, so that they come as far as a
batch can. It is assigned: what it has no right to say is another part's to test.
"""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path

import aiomqtt
from msgspec.structs import replace

from geartrain.schema import ColumnBatch, RowCodec
from geartrain.wire.envelope import DEFLATED
from geartrain.wire.topics import up_topic
from tests.cloud.fleet import TestDevice
from tests.process.brokers import HOST
from tests.process.flows import Numbered, Pulse, numbered
from tests.process.oracle import Account, account
from tests.process.registry import scenario
from tests.process.world import ScenarioError, World
from tests.waiting import WAIT_S

NUMBERS, PULSES = RowCodec(Numbered), RowCodec(Pulse)
ROGUE = "rogue"
ROWS = 20
BOMB_BYTES = 128 << 20
RSS_GROWTH_MAX = 400 << 20


def peak_bytes(pid: int) -> int:
    """The most memory in RAM that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def _good(rogue: TestDevice) -> bytes:
    """A batch as it should be."""
    numbers = list(range(rogue.number, rogue.number + ROWS))
    rogue.number += ROWS
    values = [numbered(ROGUE, number) for number in numbers]
    times = [number + 1 for number in numbers]
    rows = ColumnBatch(NUMBERS.to_columns(values), times, [f"{ROGUE}/numbers"] * ROWS, numbers)
    return rogue.rows("numbers", NUMBERS.schema, rows)


def _changed(rogue: TestDevice, body: bytes, **header: object) -> bytes:
    """A batch in its turn whose digest fits, with such a body and header."""
    made = replace(rogue.header(), channel="numbers", schema_id=NUMBERS.schema.schema_id, count=ROWS)
    return rogue.batch(replace(made, **header), body)


def _bomb() -> bytes:
    """An eighth of a mebibyte that inflates to an eighth of a gibibyte."""
    deflate, piece = zlib.compressobj(9), bytes(1 << 20)
    return b"".join([deflate.compress(piece) for _ in range(BOMB_BYTES >> 20)]) + deflate.flush()


def _batches(rogue: TestDevice) -> list[bytes]:
    """What the rogue sends in one epoch: three batches to be quarantined, and at the end one to be held."""
    foreign = PULSES.schema.schema_id
    return [
        rogue.schemas({"numbers": NUMBERS.schema}),
        _good(rogue),
        _changed(rogue, _bomb(), flags=DEFLATED),
        _good(rogue),
        _changed(rogue, b"\xff" * 1_000),
        _changed(rogue, b"", schema_id=foreign),
        _good(rogue),
        _changed(rogue, b"", channel="nowhere"),
    ]


JUNK = (b"", b"\x00", b"\xff" * 5_000, b"\x0a\xff\xff\xff\xff\x0f", b"{}", bytes(1 << 19))


@scenario("64 MiB, zip bomb, malformed, unknown schema", small=True)
async def hostile(world: World) -> Account:
    """Each is counted and kept or dropped; the others' records go on, and memory stays as it was."""
    world.broker.rewrite(packet_bytes_max=128 << 20)
    world.prepare("d1", gate=world.records // 2)
    world.devices.append(ROGUE)
    await world.launch()
    await world.until("d1 is under way", lambda: world.logged() >= 20)
    before = peak_bytes(world.ingest.pid)
    rogue = TestDevice(ROGUE, b"rogue..1", "numbers")
    batches = await asyncio.to_thread(_batches, rogue)
    topic = up_topic(ROGUE, "numbers")
    async with aiomqtt.Client(HOST, world.broker.port, timeout=WAIT_S) as mouth:
        await mouth.publish(topic, rogue.hello(), qos=1)
        await world.until("the rogue's epoch is open", lambda: world.count("epochs_opened") >= 2)
        for payload in batches:
            await mouth.publish(topic, payload, qos=1)
        for payload in JUNK:
            await mouth.publish(topic, payload, qos=1)
        wanted = {"quarantined_records": 3 * ROWS, "malformed_batches": len(JUNK), "held_batches": 1}
        await world.until("all of it was refused", lambda: {k: world.count(k) for k in wanted} == wanted)
        # While this one waits in ingest's inbox, what comes besides is dropped there, and sent again.
        await mouth.publish(topic, bytes(64 << 20), qos=1)
        await world.until("so was this", lambda: world.count("oversized_payloads") == 1)
    grown = peak_bytes(world.ingest.pid) - before
    world.notes["peak_grown_mib"] = grown >> 20
    if grown > RSS_GROWTH_MAX:
        raise ScenarioError(f"ingest grew by {grown >> 20} MiB")
    await world.drained()
    return _judged(world)


def _judged(world: World) -> Account:
    spool = world.status("d1")["counters"]
    accepted = {key.removeprefix("rows."): count for key, count in spool.items() if key.startswith("rows.")}
    accepted["numbers"] += 6 * ROWS  # three good batches, and three of the channel that were kept raw
    found = account(world.seen(), accepted)
    if not found.is_exact or found.quarantined != 3 * ROWS:
        raise ScenarioError(f"the account does not balance: {found}")
    return found
