"""`gear-downlink`: the outboxes of all apps of a platform, as a process.

`--state DIR` and `--config platform.toml` name the platform: its wanted.json is followed, so that apps come
and go. Guarantees: each outbox has at most one sender. A mistake in the configuration gives one sentence on
stderr and code 2. An outbox that cannot be used is said in the status. SIGTERM and Ctrl-C end the process
with code 0 and 130, and what is not acked stays.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.files import write_private
from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.plain_log import log_to_stderr
from geartrain.adapters.service_notes import ServiceNotes, noted_service
from geartrain.adapters.signals import EXIT_INTERRUPTED, EndSignals
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.concurrency.groups import first_of
from geartrain.errors import ConfigError, GeartrainError
from geartrain.printable import printable
from geartrain_cloud.downlink.downlink import Downlink
from geartrain_cloud.downlink.outbox import SqliteOutbox
from geartrain_cloud.platform.config import PlatformConfig, read_platform
from geartrain_cloud.platform.followed import FollowedFile

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
PUBACK_TIMEOUT_S = 10.0
"""How long the broker may take for the puback of a batch until the connection is made anew."""
STATUS_INTERVAL_S = 0.5
_LOOK_S = 0.2

_LOG = logging.getLogger("geartrain.down")


class WantedOutbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wanted of one app. outbox: the file, by its whole path."""

    outbox: str


class WantedOutboxes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """downlink/wanted.json. flows: by instance."""

    serial: int = 0
    flows: dict[str, WantedOutbox] = {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Send until a signal ends it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="gear-downlink", description="Send devices what the apps of a platform have for them."
    )
    parser.add_argument("--config", metavar="FILE.toml", type=Path, help="platform.toml")
    parser.add_argument("--state", metavar="DIR", type=Path, help="the platform's state folder")
    options = parser.parse_args(arguments)
    log_to_stderr()
    os.umask(0o077)
    try:
        was_interrupted = asyncio.run(_run(read_platform(options.config, options.state)))
    except ConfigError as error:
        return _said(error, EXIT_CONFIG)
    except GeartrainError as error:
        return _said(error, EXIT_FAILED)
    return EXIT_INTERRUPTED if was_interrupted else EXIT_OK


async def _run(config: PlatformConfig) -> bool:
    """Send as a service until a signal; returns whether it was Ctrl-C."""
    async with noted_service() as notes:
        return await _follow(config, notes)


def _said(error: BaseException, code: int) -> int:
    sys.stderr.write(f"gear-downlink: {printable(str(error))}\n")
    return code


async def _follow(config: PlatformConfig, notes: ServiceNotes) -> bool:
    """Send what the platform wants until a signal; returns whether it was Ctrl-C."""
    places, clock, asked = config.places, SystemClock(), asyncio.Event()
    signals, broker = EndSignals(asked.set, notes.stopping), None
    while broker is None and not asked.is_set():
        with suppress(ConfigError):  # gear up has not started one yet
            broker = config.broker_now("down")
        if broker is None:
            await clock.sleep(_LOOK_S)
    if broker is None:
        return signals.was_interrupted
    net = AiomqttNet(
        broker.host, broker.port, tls_context=broker.tls_context, puback_timeout_s=PUBACK_TIMEOUT_S
    )
    downlink = Downlink(net, clock, SystemRandomness(), lambda flow, path: SqliteOutbox(path, flow))
    wanted, serial, complaint = FollowedFile(places.downlink_wanted, WantedOutboxes), 0, ""

    def look() -> None:
        nonlocal serial, complaint
        try:
            if (found := wanted.changed()) is not None:
                downlink.follow({name: Path(one.outbox) for name, one in found.flows.items()})
                serial, complaint = found.serial, ""
        except ConfigError as error:
            complaint = str(error)
            _LOG.error("%s", printable(complaint))

    async def follow() -> None:
        while not asked.is_set():
            look()
            await clock.sleep(_LOOK_S)
        downlink.stop()

    def status() -> dict[str, Any]:
        return {
            "serial": serial,
            "why": complaint,
            "connected": downlink.connected,
            "counters": downlink.counters | net.counters,
            "flows": downlink.status(),
        }

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(follow())
            group.create_task(downlink.run())

    await _reporting(both(), places.downlink_status, status)
    return signals.was_interrupted


async def _reporting(
    work: Coroutine[Any, Any, None], path: Path, status: Callable[[], dict[str, Any]]
) -> None:
    """Do the work, with its status in a file; raises the first error of it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    reports = asyncio.create_task(_report(path, status))
    failure: BaseException | None = None
    try:
        await work
    except* GeartrainError as group:
        failure = first_of(group)
    finally:
        reports.cancel()
    if failure is not None:
        raise failure


async def _report(path: Path, status: Callable[[], dict[str, Any]]) -> None:
    clock = SystemClock()
    while True:
        said = {**status(), "pid": os.getpid(), "written_at_us": clock.now_us()}
        try:
            write_private(path, json.dumps(said, indent=1) + "\n")
        except OSError as error:  # a status is a courtesy: the batches go on without it
            _LOG.warning("the status file %s cannot be written: %s", path, error.strerror)
        await clock.sleep(STATUS_INTERVAL_S)


if __name__ == "__main__":
    sys.exit(main())
