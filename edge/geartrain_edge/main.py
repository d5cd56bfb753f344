"""`gear-agent --config FILE.toml`: one agent as a process.

Puts the production ports under the agent, writes its status beside it, and turns its end into an exit
code. Guarantees: a mistake in file, flow or option is one sentence on stderr and code 2; SIGTERM and
SIGINT end it cleanly after the commit at hand, with code 0.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.errors import ConfigError, FlowError, GeartrainError, PlacementError, SchemaError, SourceError
from geartrain.placement import Plan
from geartrain.ports import Clock
from geartrain_edge.agent import Agent
from geartrain_edge.config import AgentConfig, read_config
from geartrain_edge.errors import AlarmError
from geartrain_edge.spool import SqliteSpool
from geartrain_edge.status import write_status

EXIT_OK = 0
EXIT_FAILED = 1
"""Something broke that a new start may heal."""
EXIT_CONFIG = 2
"""The user's file, flow or source is wrong: a new start does not help."""
EXIT_ALARM = 3
"""The data centre refuses this spool: a new start must not be tried."""

STATUS_INTERVAL_S = 0.5

_LOG = logging.getLogger("geartrain.agent")
_MISTAKES = (ConfigError, FlowError, PlacementError, SchemaError, SourceError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an agent until its end; returns the exit code."""
    parser = argparse.ArgumentParser(prog="gear-agent", description="Run one device's part of a flow.")
    parser.add_argument("--config", required=True, metavar="FILE.toml", help="the agent's configuration")
    options = parser.parse_args(arguments)
    _log_to_stderr()
    os.umask(0o077)
    try:
        config = read_config(options.config)
        plan = config.plan()
        return asyncio.run(_run(config, plan))
    except AlarmError as error:
        return _said(error, EXIT_ALARM)
    except _MISTAKES as error:
        return _said(error, EXIT_CONFIG)
    except GeartrainError as error:
        return _said(error, EXIT_FAILED)


class _PlainFormatter(logging.Formatter):
    """What devices, files and brokers wrote into a line cannot steer the terminal that shows it."""

    def format(self, record: logging.LogRecord) -> str:
        return _plain(super().format(record))


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def _said(error: GeartrainError, code: int) -> int:
    sentence = _plain(" ".join(str(error).split("\n")))
    sys.stderr.write(f"gear-agent: {sentence}\n")
    return code


async def _run(config: AgentConfig, plan: Plan) -> int:
    clock = SystemClock()
    net = AiomqttNet(config.host, config.port)
    agent = Agent(config.settings, plan, SqliteSpool(config.spool_file), net, clock, SystemRandomness())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop)
    _LOG.info(
        "device %s: flow %s, broker %s:%d", config.settings.device, config.flow, config.host, config.port
    )
    try:
        async with asyncio.TaskGroup() as group:
            reports = group.create_task(_report(agent, clock, config.status_file))
            finished = await agent.run()
            reports.cancel()
    except* GeartrainError as errors:
        raise errors.exceptions[0] from None
    finally:
        _write(agent, config.status_file)
    _LOG.info("device %s: %s", config.settings.device, "finished" if finished else "stopped")
    return EXIT_OK


async def _report(agent: Agent, clock: Clock, path: Path) -> None:
    while True:
        _write(agent, path)
        await clock.sleep(STATUS_INTERVAL_S)


def _write(agent: Agent, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_status(path, replace(agent.status(), pid=os.getpid()))
    except OSError as error:  # a status is a courtesy: the records go on without it
        _LOG.warning("the status file %s cannot be written: %s", path, error.strerror)


if __name__ == "__main__":
    sys.exit(main())
