"""Faults of Spark: its host, workers, executors, checkpoint, stores and log; `tests/spark/faults` has them.

Each is played in a process of its own, which starts Spark, and tells what became of each row of its tables.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress

from tests.process.oracle import Account
from tests.process.programs import ROOT
from tests.process.registry import Play, scenario
from tests.process.world import ScenarioError, World

STORIES = (
    "host killed, before the offset log",
    "host killed, after the offset log",
    "host killed, in the sink",
    "host killed, after the sink",
    "host killed, between",
    "Python workers killed",
    "executors of a cluster killed",
    "two hosts on one state folder",
    "checkpoint lost",
    "checkpoint torn",
    "segment of the log missing",
    "stores that fail before, within and after",
    "PostgreSQL restarted in a transaction",
)
"""Named here, because pyspark takes a second to import and most scenarios do without it."""

_END_S = 20.0


def _play(story: str) -> Play:
    async def play(world: World) -> Account:
        folder = world.folder / "spark-fault"
        folder.mkdir()
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.spark.faults.play", story, str(folder)),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            said, trace = await program.communicate()
        finally:
            await _end(program)
        if program.returncode:
            raise ScenarioError(_reason(trace.decode(errors="replace")))
        told = json.loads(said.splitlines()[-1])
        world.recovery_s += told["recovery_s"]
        found = Account(**told["account"])
        if not found.is_exact:
            raise ScenarioError(f"not each row once: {found}")
        return found

    return play


async def _end(program: asyncio.subprocess.Process) -> None:
    """It ends the hosts that it started, which are in groups of their own; then what is left of its own."""
    with suppress(ProcessLookupError, TimeoutError):
        program.terminate()
        async with asyncio.timeout(_END_S):
            await program.wait()
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)


def _reason(trace: str) -> str:
    """The last line of a trace, and then all of it."""
    lines = trace.strip().splitlines() or ["it ended without a word"]
    return "\n".join([lines[-1], *lines])


for _story in STORIES:
    scenario(f"Spark: {_story}")(_play(_story))
