"""`python -m tests.bench.acking PORT`: acks every batch as soon as it is there, and keeps none.

What stands in the place of ingest where the uplink alone is measured: a process of its own, so that its time
is not the agent's. Ends with its standard input.
"""

from __future__ import annotations

import asyncio
import os
import sys

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.wire.codec import decode_envelope, decode_header, encode_control
from geartrain.wire.envelope import Ack, BatchKind, Welcome
from geartrain.wire.topics import ack_topic, parse_up, up_filter


async def main() -> None:
    """Answer until nobody listens any more."""
    async with AiomqttNet("127.0.0.1", int(sys.argv[1])).connect(f"acking-{os.getpid()}") as connection:
        await connection.subscribe(up_filter())
        print("ready", flush=True)
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), os._exit, 0)
        async for incoming in connection.incoming():
            device, flow = parse_up(incoming.topic)
            envelope = decode_envelope(incoming.payload)
            header = decode_header(envelope.header)
            answer: Ack | Welcome
            if header.kind is BatchKind.HELLO:
                answer = Welcome(flow, header.epoch, {}, {}, 1)
            else:
                answer = Ack(flow, header.epoch, header.seq, envelope.digest, 1)
            await connection.publish(ack_topic(device, flow), encode_control(answer))


if __name__ == "__main__":
    asyncio.run(main())
