"""`gear-agent --device FILE.toml`: the parent of a device's agents.

It follows the device's control lane and has a process for each app. It imports no code of a user. Guarantees:
a mistake in the file gives one sentence on stderr and exit code 2. SIGTERM and Ctrl-C end all agents after
their commits at hand, with exit codes 0 and 130. Two parents never share a device's folder.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import geartrain
from geartrain.adapters.files import make_private_folder
from geartrain.adapters.plain_log import log_to_stderr
from geartrain.adapters.service_notes import noted_service
from geartrain.adapters.signals import EXIT_INTERRUPTED, EndSignals
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.concurrency.groups import first_of
from geartrain.errors import ConfigError, DiskError, GeartrainError
from geartrain.ports import Clock, Randomness
from geartrain.printable import printable
from geartrain_edge.bundles.kept_choices import KeptChoices
from geartrain_edge.identity import FOLDER as IDENTITY_FOLDER
from geartrain_edge.parent.apps import Apps
from geartrain_edge.parent.bundled import BundledApps
from geartrain_edge.parent.config import BUNDLES_FOLDER, DeviceConfig, read_device
from geartrain_edge.parent.fetching import FetchProcesses
from geartrain_edge.parent.kept_file import KEPT_FILE, KeptFile
from geartrain_edge.parent.lane import DeviceLane
from geartrain_edge.parent.processes import AgentProcesses
from geartrain_edge.parent.renewing import Renewal
from geartrain_edge.settings import CLAIMS_FILE, SHARED_FOLDER

EXIT_OK, EXIT_FAILED, EXIT_CONFIG = 0, 1, 2
LOCK_FILE = "parent.lock"
RESERVED = frozenset(
    (BUNDLES_FOLDER, CLAIMS_FILE, KEPT_FILE, f".{KEPT_FILE}.new", LOCK_FILE, IDENTITY_FOLDER, SHARED_FOLDER)
)

_LOG = logging.getLogger("geartrain.parent")


def main(arguments: Sequence[str]) -> int:
    """Run until a signal; returns the exit code."""
    file = _device_file(arguments)
    log_to_stderr()
    os.umask(0o077)
    try:
        config = read_device(file)
        with _locked(config.state):
            return asyncio.run(_run(config))
    except* GeartrainError as errors:
        error = first_of(errors)
    sys.stderr.write(f"gear-agent: {printable(' '.join(str(error).split(chr(10))))}\n")
    return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED


def _device_file(arguments: Sequence[str]) -> str:
    """What `--device` names; ends the process with a usage where it is not so plain."""
    if len(arguments) == 2 and arguments[0] == "--device" and not arguments[1].startswith("-"):
        return arguments[1]
    import argparse  # which no service needs that calls this as above

    parser = argparse.ArgumentParser(prog="gear-agent", description="Run what a platform wants of a device.")
    parser.add_argument("--device", required=True, metavar="FILE.toml", help="the device's file")
    return str(parser.parse_args(arguments).device)


async def _run(config: DeviceConfig) -> int:
    """Follow the lane until a signal; returns the exit code."""
    from geartrain.adapters.mqtt import AiomqttNet  # once the file is read, whose mistakes are said sooner

    clock, randomness, ended = SystemClock(), SystemRandomness(), asyncio.Event()
    net = AiomqttNet(config.broker.host, config.broker.port, tls_context=config.broker.tls_context)
    apps = _apps(config, clock, randomness)
    lane = DeviceLane(
        config.device, net, KeptFile(config.state), apps, clock, randomness, geartrain.__version__
    )
    _LOG.info("device %s: broker %s", config.device, net)
    async with noted_service(lambda: _status(apps)) as notes, asyncio.TaskGroup() as group:
        signals = EndSignals(ended.set, notes.stopping)
        works = [group.create_task(apps.run()), group.create_task(lane.run())]
        if config.platform:
            works.append(group.create_task(Renewal(config, clock, randomness).run()))
        await ended.wait()
        for work in works:
            work.cancel()
    return EXIT_INTERRUPTED if signals.was_interrupted else EXIT_OK


def _apps(config: DeviceConfig, clock: Clock, randomness: Randomness) -> Apps | BundledApps:
    """The apps: from bundles on a device that has joined a platform, installed ones otherwise."""
    agents = AgentProcesses(config, RESERVED)
    if not config.platform:
        return Apps(agents, clock, randomness)
    bundles, choices = FetchProcesses(config), KeptChoices(config.bundles)
    return BundledApps(agents, bundles, choices, clock, randomness, config.trial)


def _status(apps: Apps | BundledApps) -> str:
    """How many apps there are in each state, as a line for people."""
    counts = Counter(report.state.value for report in apps.reports())
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no apps"


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    """Hold the device's folder for this process alone; raises `DiskError`."""
    path = state / LOCK_FILE
    try:
        make_private_folder(state)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DiskError(f"{path} cannot be written: {error.strerror or error}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DiskError(f"{state} is in use by another gear-agent: stop that one first") from None
    finally:
        os.close(handle)
