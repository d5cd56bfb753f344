"""`gear-agent --device FILE.toml`: the parent of a device's agents.

It follows the device's control lane and has a process for each app. It imports no code of a user. Guarantees:
a mistake in the file gives one sentence on stderr and exit code 2. SIGTERM and Ctrl-C end all agents after
their commits at hand, with exit codes 0 and 130. Two parents never share a device's folder.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

import geartrain
from geartrain.adapters.file_lock import locked
from geartrain.adapters.machine import machine
from geartrain.adapters.plain_log import log_to_stderr
from geartrain.adapters.service_notes import noted_service
from geartrain.adapters.signals import EXIT_INTERRUPTED, EndSignals
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.concurrency.groups import first_of
from geartrain.control.states import CAN, SECRETS, RunningProgram
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
from geartrain_edge.parent.secrets import PlatformSecrets
from geartrain_edge.parent.upgrading import Upgrade
from geartrain_edge.programs.choice import INSTALLED, noted
from geartrain_edge.programs.launch import LOCK_FILE, PROGRAM_VARIABLE, Alarm, relaunch
from geartrain_edge.programs.store import FOLDER as PROGRAMS_FOLDER
from geartrain_edge.programs.store import ProgramStore
from geartrain_edge.settings import CLAIMS_FILE, SECRETS_FOLDER, SHARED_FOLDER

EXIT_OK, EXIT_FAILED, EXIT_CONFIG = 0, 1, 2
RESERVED = frozenset(
    (
        *(BUNDLES_FOLDER, CLAIMS_FILE, IDENTITY_FOLDER, PROGRAMS_FOLDER, SECRETS_FOLDER, SHARED_FOLDER),
        *(KEPT_FILE, f".{KEPT_FILE}.new", LOCK_FILE),
    )
)

_LOG = logging.getLogger("geartrain.parent")


def main(arguments: Sequence[str]) -> int:
    """Run until a signal; returns the exit code."""
    file = _device_file(arguments)
    log_to_stderr()
    os.umask(0o077)
    config = None
    try:
        config = read_device(file)
        in_use = f"{config.state} is in use by another gear-agent: stop that one first"
        unusable = f"{config.state} cannot be written"
        with locked(config.state / LOCK_FILE, DiskError, unusable=unusable, taken=in_use):
            ended = asyncio.run(_run(config))
        if isinstance(ended, int):
            return ended
        _begin_anew(file, ended)
    except* GeartrainError as errors:
        error = first_of(errors)
    sentence = printable(" ".join(str(error).split("\n")))
    sys.stderr.write(f"gear-agent: {sentence}\n")
    if config is not None:
        _note(config, sentence)
    return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED


def _begin_anew(file: str, taken: Mapping[str, str]) -> NoReturn:
    """Start the program that is chosen now, in this process; raises `DiskError`."""
    try:
        relaunch(["--device", file], taken)
    except OSError as error:
        raise DiskError(f"{sys.executable} cannot be started again: {error.strerror or error}") from None
    raise AssertionError("exec returns only with an error")


def _note(config: DeviceConfig, sentence: str) -> None:
    """Have it known, if this program is on trial, why it ended."""
    store, running = ProgramStore(config.programs), _running()
    before = store.load()
    if (after := noted(before, running, sentence)) != before:
        with suppress(OSError):  # it goes back without a sentence
            store.save(after)


def _running() -> str:
    """The hash of this program, or `INSTALLED`."""
    return os.environ.get(PROGRAM_VARIABLE, INSTALLED)


def _device_file(arguments: Sequence[str]) -> str:
    """What `--device` names; ends the process with a usage where it is not so plain."""
    if len(arguments) == 2 and arguments[0] == "--device" and not arguments[1].startswith("-"):
        return arguments[1]
    import argparse  # which no service needs that calls this as above

    parser = argparse.ArgumentParser(prog="gear-agent", description="Run what a platform wants of a device.")
    parser.add_argument("--device", required=True, metavar="FILE.toml", help="the device's file")
    return str(parser.parse_args(arguments).device)


async def _run(config: DeviceConfig) -> int | Mapping[str, str]:
    """Follow the lane until a signal, or until another program takes this one's place.

    Returns the exit code; for another program what it needs in its environment.
    """
    from geartrain.adapters.mqtt import AiomqttNet  # once the file is read, whose mistakes are said sooner

    clock, randomness, ended = SystemClock(), SystemRandomness(), asyncio.Event()
    net = AiomqttNet(config.broker.host, config.broker.port, tls_context=config.broker.tls_context)
    turn = asyncio.Lock()
    apps = _apps(config, turn, clock, randomness)
    upgrade = _upgrade(config, turn, apps, clock, randomness) if config.platform else None
    code = "" if _running() == INSTALLED else _running()
    can = tuple(one for one in CAN if one != SECRETS or config.platform) + config.waits
    program = RunningProgram(geartrain.__version__, code, machine(), can)
    kept = KeptFile(config.state)
    secrets = PlatformSecrets(config, turn, apps.changed, clock) if config.platform else None
    lane = DeviceLane(
        config.device, net, kept, apps, clock, randomness, program, programs=upgrade, secrets=secrets
    )
    _LOG.info("device %s: broker %s", config.device, net)
    async with noted_service(lambda: _status(apps)) as notes, asyncio.TaskGroup() as group:
        signals = EndSignals(ended.set, notes.stopping)
        works = [group.create_task(apps.run()), group.create_task(lane.run())]
        if config.platform:
            works.append(group.create_task(Renewal(config, clock, randomness).run()))
        if secrets is not None:
            works.append(group.create_task(secrets.run()))
        changes = None if upgrade is None else group.create_task(_until_replaced(upgrade, ended))
        await ended.wait()
        taken = notes.hand_on() if changes and changes.done() and not signals.was_heard else None
        for work in (*works, *filter(None, [changes])):
            work.cancel()
    if taken is not None and not signals.was_heard:
        return taken
    if upgrade is not None:
        upgrade.spare()
    return EXIT_INTERRUPTED if signals.was_interrupted else EXIT_OK


async def _until_replaced(upgrade: Upgrade, ended: asyncio.Event) -> None:
    """Have `ended` set when another program takes this one's place."""
    await upgrade.run()
    ended.set()


def _upgrade(
    config: DeviceConfig, turn: asyncio.Lock, apps: Apps | BundledApps, clock: Clock, randomness: Randomness
) -> Upgrade:
    """What has another program take this one's place."""
    shelf, store = FetchProcesses(config, turn, programs=True), ProgramStore(config.programs)
    time = Alarm(config.program_trial)
    return Upgrade(_running(), shelf, store, time, apps.reports, apps.changed, clock, randomness)


def _apps(
    config: DeviceConfig, turn: asyncio.Lock, clock: Clock, randomness: Randomness
) -> Apps | BundledApps:
    """The apps: from bundles on a device that has joined a platform, installed ones otherwise."""
    agents = AgentProcesses(config, RESERVED)
    if not config.platform:
        return Apps(agents, clock, randomness)
    bundles, choices = FetchProcesses(config, turn), KeptChoices(config.bundles)
    return BundledApps(agents, bundles, choices, clock, randomness, config.trial)


def _status(apps: Apps | BundledApps) -> str:
    """How many apps there are in each state, as a line for people."""
    counts = Counter(report.state.value for report in apps.reports())
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no apps"
