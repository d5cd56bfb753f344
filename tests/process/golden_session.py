"""One session of an agent with ingest, kept as the bytes that both sent, and the spool before any ack.

`python -m tests.process.golden_session` writes it anew, which only a new version of the wire may ask for:
what was written once is what devices in the field go on sending. Guarantees: it came from the programs.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import aiomqtt

from geartrain.wire.codec import decode_control, decode_envelope, decode_header
from geartrain.wire.envelope import Ack, BatchKind
from geartrain.wire.topics import ack_topic, up_topic
from tests.process.brokers import HOST
from tests.process.link import Direction
from tests.process.world import World, opened

FOLDER = Path(__file__).with_name("golden")
SPOOL = FOLDER / "spool.sqlite"
SESSION = FOLDER / "session.json"
DEVICE, RECORDS = "veteran", 120
UP, DOWN = up_topic(DEVICE, "numbers"), ack_topic(DEVICE, "numbers")


@dataclass(frozen=True, slots=True)
class Session:
    """up: the hello and every batch in seq order; down: the answer to the hello, and the last ack; accepted:
    rows by channel.
    """

    up: list[bytes]
    down: list[bytes]
    accepted: dict[str, int]


def kept() -> Session:
    """The session as it was recorded."""
    found = json.loads(SESSION.read_text(encoding="ascii"))
    return Session(
        [bytes.fromhex(one) for one in found["up"]],
        [bytes.fromhex(one) for one in found["down"]],
        found["accepted"],
    )


async def record(world: World) -> Session:
    """Have a real agent and a real ingest talk, and keep the acks from the agent."""
    world.records = RECORDS
    world.prepare(DEVICE, gate=0)
    published: list[tuple[str, bytes]] = []
    await world.launch()
    async with aiomqtt.Client(HOST, world.broker.port) as ear:
        await ear.subscribe("#", qos=1)
        listening = asyncio.create_task(_listen(ear, published))
        # The hello may have been before our ear: that of a second life is the same but for its epoch.
        await world.until("the epoch is open", lambda: world.count("welcomes_sent") >= 1)
        await world.until("the agent reads", lambda: world.status(DEVICE).get("state") == "running")
        world.near.silence(Direction.DOWN)
        world.open_gate(RECORDS)
        await world.until("all is logged", lambda: world.status(DEVICE).get("state") == "draining")
        last = int(world.status(DEVICE)["spooled_seq"])
        await world.until("all is acked", lambda: _last_ack(published) == last)
        await asyncio.to_thread(world.agents[DEVICE].terminate)
        listening.cancel()
    await world.end_ingest()
    status = world.status(DEVICE)
    accepted = {k.removeprefix("rows."): v for k, v in status["counters"].items() if k.startswith("rows.")}
    return Session(*_sorted(published, last), accepted)


async def _listen(ear: aiomqtt.Client, published: list[tuple[str, bytes]]) -> None:
    async for one in ear.messages:
        published += [(str(one.topic), bytes(one.payload))]


def _last_ack(published: list[tuple[str, bytes]]) -> int:
    controls = [decode_control(payload) for topic, payload in published if topic == DOWN]
    return max((one.seq for one in controls if isinstance(one, Ack)), default=0)


def _sorted(published: list[tuple[str, bytes]], last: int) -> tuple[list[bytes], list[bytes]]:
    batches: dict[int, bytes] = {}
    hello = b""
    for topic, payload in published:
        if topic == UP:
            header = decode_header(decode_envelope(payload).header)
            if header.kind is BatchKind.HELLO:
                hello = payload
            elif header.seq:
                batches[header.seq] = payload
    answers = {
        type(decode_control(payload)).__name__: payload for topic, payload in published if topic == DOWN
    }
    assert hello, "the hello was not heard: run this again"
    assert sorted(batches) == list(range(1, last + 1))
    return [hello, *(batches[seq] for seq in sorted(batches))], [answers["Welcome"], answers["Ack"]]


async def _write() -> None:
    folder = Path(tempfile.mkdtemp()) / "world"
    async with opened(folder, 1, small=True) as world:
        found = await record(world)
        FOLDER.mkdir(exist_ok=True)
        shutil.copyfile(world.state_of(DEVICE) / "spool.sqlite", SPOOL)
    content = {
        "up": [one.hex() for one in found.up],
        "down": [one.hex() for one in found.down],
        "accepted": found.accepted,
    }
    SESSION.write_text(json.dumps(content, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    asyncio.run(_write())
