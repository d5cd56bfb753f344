"""The amqtt broker as a process: `python -m geartrain_cloud.broker.amqtt_broker --port N`.

It is the default where there is no mosquitto, so that a fresh machine needs nothing. It serves MQTT 3.1.1 on
loopback only, and keeps nothing on disk. Guarantees: it ends with 0 on SIGTERM, and with 1 and a sentence
when the port is taken.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from typing import Any

from amqtt.broker import Broker
from amqtt.errors import BrokerError

from geartrain_cloud.broker.ready import LOOPBACK, OTHER_PORT

_CONFIG: dict[str, Any] = {
    "listeners": {"default": {"type": "tcp", "bind": ""}},
    "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
}


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code of the process."""
    parser = argparse.ArgumentParser(description="An MQTT broker on the loopback interface.")
    parser.add_argument("--port", type=int, required=True, help="TCP port to listen on")
    port = parser.parse_args(arguments).port
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        asyncio.run(_serve(port))
    except (BrokerError, OSError) as error:
        sys.stderr.write(f"the amqtt broker cannot listen on {LOOPBACK}:{port} ({error}): {OTHER_PORT}\n")
        return 1
    return 0


async def _serve(port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    config = _CONFIG | {"listeners": {"default": {"type": "tcp", "bind": f"{LOOPBACK}:{port}"}}}
    broker = Broker(config)
    log = logging.getLogger("amqtt")
    log.setLevel(logging.CRITICAL)  # it logs a refused start with a stack trace, then raises it as well
    await broker.start()
    log.setLevel(logging.WARNING)
    await stop.wait()
    await broker.shutdown()


if __name__ == "__main__":
    sys.exit(main())
