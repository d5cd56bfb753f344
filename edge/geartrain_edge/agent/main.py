"""`gear-agent --config FILE.toml`: a device's agent as a process, with one flow or several.

It runs an `Agent` on the production ports for each flow, each with its own spool, connection and status. It
turns their results into an exit code. Guarantees: a mistake in the file, the flow or an option gives one
sentence on stderr and exit code 2. SIGTERM and Ctrl-C end all flows cleanly after the current commit, with
exit codes 0 and 130. A flow that fails says so in one sentence, and the others go on. The exit code is then
that of the worst flow. A file `drain` in a state folder has that flow end once its spool is empty.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from geartrain.adapters.boot_clock import SystemBootClock
from geartrain.adapters.plain_log import log_to_stderr
from geartrain.adapters.service_notes import noted_service
from geartrain.adapters.signals import EXIT_INTERRUPTED, EndSignals
from geartrain.adapters.stuck import StuckWatch
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.errors import (
    ConfigError,
    DiskError,
    FlowError,
    GeartrainError,
    PlacementError,
    SchemaError,
    SourceError,
)
from geartrain.planning import Plan
from geartrain.ports import SpoolStore
from geartrain.printable import printable
from geartrain.revision import Revision
from geartrain_edge.agent.agent import Agent
from geartrain_edge.agent.config import AgentConfig, load
from geartrain_edge.agent.parentage import is_orphan
from geartrain_edge.agent.status import StatusFile
from geartrain_edge.errors import AlarmError, ChangedFlowError
from geartrain_edge.sources.secrets import FolderSecrets
from geartrain_edge.spool.disk_floor import DiskFloor
from geartrain_edge.spool.spool import SqliteSpool
from geartrain_edge.uplink.device_claims import DeviceClaims
from geartrain_edge.uplink.priority import Priority

if TYPE_CHECKING:
    from geartrain.adapters.mqtt import AiomqttNet
    from geartrain_edge.sinks.delivering import LineFiles

EXIT_OK = 0
EXIT_FAILED = 1
"""Something broke that a new start may heal."""
EXIT_CONFIG = 2
"""The user's file, flow or source is wrong, or not the one that the spool was begun with: a new start does
not help.
"""
EXIT_ALARM = 3
"""The data centre refuses this spool: a new start must not be tried."""

STATUS_INTERVAL_S = 0.5
STILL_S = 5.0
"""A flow that does not come back from one call for so long is named in its status."""

_LOG = logging.getLogger("geartrain.agent")
_WORST_FIRST = (EXIT_ALARM, EXIT_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK)
_MISTAKES = (ConfigError, FlowError, PlacementError, SchemaError, SourceError, ChangedFlowError)


_HELP = """Run the part of flows that is a device's.

  --config FILE.toml   one flow, or several, as the file says, without a platform
  --device FILE.toml   what a platform wants of the device, until Ctrl-C
  join ...             join a platform once: gear-agent join --help
  renew ...            renew the device's certificate now: gear-agent renew --help"""
_EXAMPLES = """examples:
  gear-agent --device truck-1.toml        (the file is of gear device add, or of join)
  gear-agent --config agent.toml"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an agent until its end; returns the exit code."""
    file = _config_file(sys.argv[1:] if arguments is None else arguments)
    log_to_stderr()
    os.umask(0o077)
    try:
        loaded = [(config, plan, config.revision(plan)) for config, plan in load(file, _give_up)]
    except GeartrainError as error:
        return _said(error)
    if loaded[0][0].is_rehearsal:
        return EXIT_OK
    codes = asyncio.run(_run(loaded))
    return next(code for code in _WORST_FIRST if code in codes)


def _give_up(config: AgentConfig) -> None:
    """Leave alone what is not this app's, before code of a user runs; raises `DiskError`."""
    if not config.private:
        return
    from geartrain_edge.landlock import give_up

    try:
        own = [one for one in (config.state, config.claims, config.settings.shared) if one is not None]
        if not give_up(config.private, own, config.read_only):
            _LOG.warning("this kernel has no Landlock: the apps of this device can read each other's files")
    except OSError as error:
        raise DiskError(f"files of other apps cannot be given up: {error.strerror or error}") from None


def _config_file(arguments: Sequence[str]) -> str:
    """What `--config` names; ends the process with a usage where it is not so plain."""
    if len(arguments) == 2 and arguments[0] == "--config" and not arguments[1].startswith("-"):
        return arguments[1]
    import argparse  # which no service needs that calls this as above

    parser = argparse.ArgumentParser(
        prog="gear-agent",
        usage="gear-agent --config FILE.toml | --device FILE.toml | join ... | renew ...",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, metavar="FILE.toml", help="the agent's configuration")
    return str(parser.parse_args(arguments).config)


def _said(error: GeartrainError, flow: str = "") -> int:
    """Say what was wrong, of which of several flows; returns the exit code for it."""
    sentence = printable(" ".join(str(error).split("\n")))
    sys.stderr.write(f"gear-agent: flow {flow}: {sentence}\n" if flow else f"gear-agent: {sentence}\n")
    if isinstance(error, AlarmError):
        return EXIT_ALARM
    return EXIT_CONFIG if isinstance(error, _MISTAKES) else EXIT_FAILED


async def _run(loaded: Sequence[tuple[AgentConfig, Plan, Revision]]) -> set[int]:
    """Run all flows side by side to their ends, and name a step that does not come back; returns their exit
    codes.
    """
    agents: list[Agent] = []
    files = [StatusFile(config.status_file) for config, _, _ in loaded]
    packages = {config.flow.partition(":")[0].partition(".")[0] for config, _, _ in loaded}
    with StuckWatch(packages, partial(_stands_still, files), STILL_S, partial(_step, agents)) as watch:
        return await _run_all(loaded, agents, files, watch)


async def _run_all(
    loaded: Sequence[tuple[AgentConfig, Plan, Revision]],
    agents: list[Agent],
    files: Sequence[StatusFile],
    watch: StuckWatch,
) -> set[int]:
    """Run all flows; returns their exit codes. agents: takes them; files: where each says how it does."""
    from geartrain.adapters.mqtt import AiomqttNet  # once the file is read, whose mistakes are said sooner

    clock = SystemClock()
    priority = Priority(_claims(loaded[0][0]), clock)

    def stop() -> None:
        for agent in agents:
            agent.stop()

    # A defect of one, unlike an error, ends them all.
    async with noted_service(lambda: _line(agents)) as notes, asyncio.TaskGroup() as group:
        signals = EndSignals(stop, notes.stopping)
        tasks = []
        for (config, plan, revision), file in zip(loaded, files, strict=True):
            broker = config.broker
            net = AiomqttNet(broker.host, broker.port, tls_context=broker.tls_context)
            spool = _spool(config)
            lines = _files(config, plan)
            chance = SystemRandomness()
            room = DiskFloor(config.spool_file, config.settings.free_floor_bytes)
            boots = SystemBootClock(config.clock_floor_us, synchronized=config.is_clock_synchronized)
            agent = Agent(
                *(config.settings, plan, spool, net, clock, chance, priority, lines, revision, room, boots),
                answers=True,
                secrets=None if config.settings.secrets is None else FolderSecrets(config.settings.secrets),
            )
            agents.append(agent)
            reports = _Reports(config, agent, net, file, watch, config.left_out(plan))
            tasks.append(group.create_task(_run_one(config, agent, reports)))
    codes = {task.result() for task in tasks}
    return codes | {EXIT_INTERRUPTED} if signals.was_interrupted else codes


def _step(agents: Sequence[Agent]) -> str:
    """The step at work, "" for none."""
    return next(filter(None, (agent.step for agent in agents)), "")


def _stands_still(files: Sequence[StatusFile], why: str) -> None:
    """Say in the status of all flows what keeps them all, for they run side by side."""
    _LOG.warning("%s", why)
    for file in files:
        try:
            file.stands_still(why)
        except OSError:  # a status is a courtesy
            continue


def _line(agents: Sequence[Agent]) -> str:
    """How the flows are, for people."""
    found = [agent.status() for agent in agents]
    return ", ".join(f"{one.flow} {one.state}" for one in found)


def _claims(config: AgentConfig) -> DeviceClaims | None:
    """What this process says to others of the device, None where there are none."""
    if config.claims is None:
        return None
    try:
        return DeviceClaims(config.claims)
    except DiskError as error:  # order among flows is a courtesy: the records go on without it
        _LOG.warning("urgent flows of other apps are not waited for: %s", error)
        return None


def _spool(config: AgentConfig) -> SpoolStore:
    """The spool; with code from a bundle it says when this commits its first records."""
    spool = SqliteSpool(config.spool_file)
    if config.bundle is None:
        return spool
    from geartrain_edge.spool.marking import MarkingSpool

    return MarkingSpool(spool, config.committed_file, config.code)


def _files(config: AgentConfig, plan: Plan) -> LineFiles | None:
    """The files of the sinks on this device, imported only where there are sinks."""
    if not any(step.id in plan.cut.edge for step in plan.graph.sinks()):
        return None
    from geartrain_edge.sinks.line_files import FolderFiles

    return FolderFiles(config.state)


async def _run_one(config: AgentConfig, agent: Agent, reports: _Reports) -> int:
    device, flow = config.settings.device, agent.status().flow
    _LOG.info("device %s: flow %s, broker %s:%d", device, config.flow, config.broker.host, config.broker.port)
    try:
        async with asyncio.TaskGroup() as group:
            reporting = group.create_task(reports.run())
            await agent.run()
            reporting.cancel()
    except* GeartrainError as errors:
        error = errors.exceptions[0]
    else:
        _LOG.info("device %s: flow %s has %s", device, flow, agent.status().state)
        return EXIT_OK
    finally:
        reports.write()
    if not isinstance(error, GeartrainError):
        raise error
    return _said(error, flow if config.where else "")


class _Reports:
    """What one flow says of itself in its status file."""

    def __init__(
        self,
        config: AgentConfig,
        agent: Agent,
        net: AiomqttNet,
        file: StatusFile,
        watch: StuckWatch,
        left_out: tuple[str, ...],
    ) -> None:
        """`left_out`: what of the configuration does not hold, as sentences, which are logged as well."""
        self._config, self._agent, self._net, self._file, self._watch = config, agent, net, file, watch
        self._left_out = left_out
        for one in left_out:
            _LOG.warning("%s", one)

    async def run(self) -> None:
        """Write until cancelled; have the flow drain or stop where that is asked for."""
        clock = SystemClock()
        while True:
            self._watch.beat()
            if self._config.drain_file.exists():
                self._agent.drain()
            if is_orphan():
                self._agent.stop()
            self.write()
            await clock.sleep(STATUS_INTERVAL_S)

    def write(self) -> None:
        """Write how it does now."""
        status = self._agent.status()
        try:
            counters = status.counters | self._net.counters
            self._file.write(replace(status, pid=os.getpid(), counters=counters, left_out=self._left_out))
        except OSError as error:  # a status is a courtesy: the records go on without it
            path = self._config.status_file
            _LOG.warning("the status file %s cannot be written: %s", path, error.strerror)
