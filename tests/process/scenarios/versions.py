"""Programs of different age: an agent of the past and today's ingest, and the reverse, by what they sent."""

from __future__ import annotations

import asyncio
import shutil

import aiomqtt

from geartrain.wire.codec import decode_control, decode_envelope, decode_header
from geartrain.wire.envelope import Ack, BatchKind
from tests.process.brokers import HOST
from tests.process.golden_session import DEVICE, DOWN, RECORDS, SPOOL, UP, kept
from tests.process.oracle import Account
from tests.process.registry import scenario
from tests.process.world import ScenarioError, World


@scenario("agent of the past, ingest of today", small=True)
async def old_agent(world: World) -> Account:
    """What it sent then is taken now, and the digest in the last ack is the one that it was given then."""
    session = kept()
    world.records = RECORDS
    world.devices = [DEVICE]
    await world.launch()
    heard: list[bytes] = []
    async with (
        aiomqtt.Client(HOST, world.broker.port) as ear,
        aiomqtt.Client(HOST, world.broker.port) as mouth,
    ):
        await ear.subscribe(DOWN, qos=1)
        listening = asyncio.create_task(_listen(ear, heard))
        # ingest may not listen yet: an agent asks again until it is answered, and so do we.
        while not heard:
            await mouth.publish(UP, session.up[0], qos=1)
            await asyncio.sleep(0.2)
        for payload in session.up[1:]:
            await mouth.publish(UP, payload, qos=1)
        wanted = decode_control(session.down[-1])
        await world.until("the last batch is acked", lambda: any(_same(one, wanted) for one in heard))
        listening.cancel()
    await world.end_ingest()
    found = world.account_of(session.accepted)
    if not found.is_exact:
        raise ScenarioError(f"not each record once and in order: {found}")
    world.check_numbers()
    return found


async def _listen(ear: aiomqtt.Client, heard: list[bytes]) -> None:
    async for one in ear.messages:
        heard += [bytes(one.payload)]


def _same(payload: bytes, wanted: object) -> bool:
    control = decode_control(payload)
    if not isinstance(control, Ack) or not isinstance(wanted, Ack):
        return False
    return (control.epoch, control.seq, control.digest) == (wanted.epoch, wanted.seq, wanted.digest)


@scenario("agent of today, ingest of the past", small=True)
async def old_ingest(world: World) -> Account:
    """It takes up a spool of then, sends the same bytes, and trims by the ack of then."""
    session = kept()
    world.records = RECORDS
    agent = world.add_agent(DEVICE, uplink={"window": 64})
    world.state_of(DEVICE).mkdir()
    shutil.copyfile(SPOOL, world.state_of(DEVICE) / "spool.sqlite")
    world.prepare_gate(RECORDS)
    sent: dict[int, bytes] = {}
    await world.broker.start()
    await world.near.start()
    world.set_address(agent)
    async with aiomqtt.Client(HOST, world.broker.port) as past:
        await past.subscribe(UP, qos=1)
        answering = asyncio.create_task(_answer(past, session.down[-1], sent))
        agent.start()
        await world.until("the agent has finished", lambda: agent.code == 0)
        answering.cancel()
    status = world.status(DEVICE)
    last = len(session.up) - 1
    if (status["acked_seq"], status["spool_bytes"]) != (last, 0):
        raise ScenarioError(f"the spool was not trimmed: {status}")
    for seq, payload in sent.items():
        now, then = decode_envelope(payload), decode_envelope(session.up[seq])
        if (now.header, now.body, now.digest) != (then.header, then.body, then.digest):
            raise ScenarioError(f"batch {seq} is not what it was")
    if set(sent) not in ({*range(1, last + 1)}, {*range(2, last + 1)}):  # the first may be acked and trimmed
        raise ScenarioError(f"of {last} batches {sorted(sent)} were sent")
    letters = session.accepted.get("_dead_letters", 0)
    accepted = sum(session.accepted.values())
    return Account(accepted, accepted - letters, dead_lettered=letters)


async def _answer(past: aiomqtt.Client, ack: bytes, sent: dict[int, bytes]) -> None:
    """Ack all once the last batch has come, as an ingest does that commits in large groups."""
    last = decode_control(ack)
    assert isinstance(last, Ack)
    async for one in past.messages:
        payload = bytes(one.payload)
        header = decode_header(decode_envelope(payload).header)
        if header.kind is not BatchKind.HELLO and header.seq:
            sent[header.seq] = payload
        if last.seq in sent:
            await past.publish(DOWN, ack, qos=1)
