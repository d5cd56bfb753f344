"""`gear-down --config FILE.toml`: the sender of one flow's outbox as a process.

Runs the sender on the production ports and turns its end into an exit code. Guarantees: each outbox has at
most one sender. A mistake in the configuration gives one sentence on stderr and code 2. An outbox that
cannot be used gives one sentence and code 1. SIGTERM and Ctrl-C end the process with code 0 and 130, and
what is not acked stays.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from geartrain.adapters.files import write_private
from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.plain_log import log_to_stderr
from geartrain.adapters.signals import EXIT_INTERRUPTED, EndSignals
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.concurrency.groups import first_of
from geartrain.errors import ConfigError, GeartrainError
from geartrain.printable import printable
from geartrain_cloud.downlink.config import DownConfig, read_config
from geartrain_cloud.downlink.errors import OutboxError
from geartrain_cloud.downlink.outbox import SqliteOutbox
from geartrain_cloud.downlink.sender import OutboxSender, opened

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
STATUS_INTERVAL_S = 0.5

_LOG = logging.getLogger("geartrain.down")


def main(arguments: Sequence[str] | None = None) -> int:
    """Send until a signal ends it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="gear-down", description="Send a flow's outbox to its devices.")
    parser.add_argument(
        "--config", required=True, metavar="FILE.toml", type=Path, help="flow, outbox, broker"
    )
    options = parser.parse_args(arguments)
    log_to_stderr()
    os.umask(0o077)
    try:
        config = read_config(options.config)
        with _alone(config.outbox):
            was_interrupted = asyncio.run(_run(config))
    except ConfigError as error:
        return _said(error, EXIT_CONFIG)
    except GeartrainError as error:
        return _said(error, EXIT_FAILED)
    return EXIT_INTERRUPTED if was_interrupted else EXIT_OK


def _said(error: BaseException, code: int) -> int:
    sys.stderr.write(f"gear-down: {printable(str(error))}\n")
    return code


@contextmanager
def _alone(outbox: Path) -> Iterator[None]:
    """Hold the lock of an outbox; raises `OutboxError` where another sender has it."""
    outbox.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(outbox.with_name(f"{outbox.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutboxError(
                f"another sender sends the outbox {outbox}: one is enough, end that one"
            ) from None
        yield
    finally:
        os.close(lock)


async def _run(config: DownConfig) -> bool:
    """Send until a signal; returns whether it was Ctrl-C."""
    store = SqliteOutbox(config.outbox, config.flow)
    async with opened(store):
        broker, clock = config.broker, SystemClock()
        puback_s = config.puback_ms / 1_000
        net = AiomqttNet(broker.host, broker.port, tls_context=broker.tls_context, puback_timeout_s=puback_s)
        totals = await store.totals()
        sender = OutboxSender(config.flow, store, net, clock, SystemRandomness(), config.settings, totals)
        signals = EndSignals(sender.stop)
        _LOG.info("sending the outbox %s of flow %s", config.outbox, config.flow)
        reports = asyncio.create_task(_report(config, sender, net))
        try:
            await sender.run()
        except* GeartrainError as group:
            raise first_of(group) from None
        finally:
            reports.cancel()
    return signals.was_interrupted


async def _report(config: DownConfig, sender: OutboxSender, net: AiomqttNet) -> None:
    clock, path = SystemClock(), config.state / "status.json"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    while True:
        status = {
            "flow": config.flow,
            "pid": os.getpid(),
            "connected": sender.connected,
            "waiting": sender.waiting,
            "counters": sender.counters | net.counters,
            "written_at_us": clock.now_us(),
        }
        try:
            write_private(path, json.dumps(status, indent=1) + "\n")
        except OSError as error:  # a status is a courtesy: the batches go on without it
            _LOG.warning("the status file %s cannot be written: %s", path, error.strerror)
        await clock.sleep(STATUS_INTERVAL_S)


if __name__ == "__main__":
    sys.exit(main())
