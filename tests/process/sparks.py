"""The cloud part dies and comes back: how long until the tables hold all that was in the log by then.

Among the recoveries. One device delivers numbers at a steady pace, the host keeps a running count of each
lane on Spark, with its state there. Guarantees: a run ends only when everything that was in the log at the
kill is in the tables; at the end the tables are compared with the log, row by row.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from geartrain.errors import LedgerError
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.spark.compile import HOSTED
from tests.hosting.hosted import HostFolder
from tests.hosting.hosted_run import put_bundle
from tests.process.flows import flow
from tests.process.oracle import Account, account
from tests.process.programs import ROOT, Program
from tests.process.repairs import still
from tests.process.timings import Runs, recovery
from tests.process.world import ScenarioError, World

WORKER_BAR_S = 3.0
PER_SECOND = 50.0
_DAEMONS = (b"-m\0pyspark.daemon", b"-m\0geartrain_cloud.spark.worker_daemon")
_FLOW = "numbers"


@recovery("Python worker killed", WORKER_BAR_S, spark=True)
async def worker_killed(world: World, runs: Runs) -> Account:
    """All workers that Spark has at a moment, in the middle of a micro-batch or between two."""
    host = await _flowing(world)
    for _ in range(runs.wanted):
        await asyncio.sleep(world.random.uniform(0.5, 2))
        wanted, began_s = _logged(world), asyncio.get_running_loop().time()
        await _until(world, "Spark has a worker", lambda: bool(_workers(host.pid)))
        for pid in _workers(host.pid):
            with suppress(ProcessLookupError):  # it has ended by itself meanwhile
                os.kill(pid, signal.SIGKILL)
        await _until(world, "the tables have it", lambda upto=wanted: _written(world) >= upto)
        runs.seconds.append(asyncio.get_running_loop().time() - began_s)
    return await _settled(world, host)


@recovery("Spark host killed and started again", None, spark=True)
async def host_killed(world: World, runs: Runs) -> Account:
    """With kill -9, and Spark with it: a new one starts Java, a session and its queries from nothing."""
    host = await _flowing(world)
    for _ in range(runs.wanted):
        await asyncio.sleep(world.random.uniform(0.5, 2))
        wanted, began_s = _logged(world), asyncio.get_running_loop().time()
        host.kill()
        host.start()
        await _until(world, "the tables have it", lambda upto=wanted: _written(world) >= upto)
        runs.seconds.append(asyncio.get_running_loop().time() - began_s)
    return await _settled(world, host)


async def _flowing(world: World) -> Program:
    """Device, ingest and host at work, and the first micro-batches written."""
    world.channels["numbers"] = ("numbers",)
    world.records = 1 << 40
    world.prepare("d1", gate=1 << 60, source={"per_second": PER_SECOND})
    config = world.agents["d1"].config
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace('cut = "edge"', 'cut = "cloud"'), encoding="utf-8")
    await world.launch()
    folder = HostFolder(world.folder)
    folder.flows[_FLOW] = {
        "flow": "given:flow",
        "bundle": str(put_bundle(world.folder / "bundle", flow.graph())),
        "cut": "cloud",
        "tables": str(folder.tables(_FLOW)),
        "letters_percent": 100,
    }
    folder.write()
    config, said = world.folder / "platform.toml", world.folder / "host.log"
    config.write_text('state = "."\n', encoding="utf-8")
    host = Program("host", "geartrain_cloud.hosting.main", config, said)
    host.environment["PYTHONPATH"] = str(ROOT)
    world.agents["host"] = host  # so that it is watched and ended with the others
    host.start()
    for _ in range(2):  # the first micro-batches of a session are slow
        wanted = _logged(world) + 1
        await _until(world, "Spark has begun", lambda upto=wanted: _written(world) >= upto)
    return host


async def _until(world: World, what: str, condition: object) -> None:
    assert callable(condition)
    await world.until(what, condition)
    if (code := world.agents["host"].code) is not None and code != -signal.SIGKILL:
        raise ScenarioError(f"the host ended with {code}\n{world.agents['host'].words()[-2_000:]}")


def _logged(world: World) -> int:
    """The newest position of the log."""
    try:
        return LogReader(world.log).positions("numbers").get("0", 0)
    except LedgerError:
        return 0


def _written(world: World) -> int:
    """The position up to which the tables hold the numbers."""
    tables = HostFolder(world.folder).tables(_FLOW)
    if not tables.exists():
        return 0
    with closing(sqlite3.connect(tables, timeout=60)) as db, suppress(sqlite3.OperationalError):
        found = db.execute("SELECT positions FROM _queries WHERE query = ?", (HOSTED,)).fetchone()
        return int(msgspec.json.decode(found[0]).get("0", 0)) if found else 0
    return 0  # the host has yet to make that table


def _workers(pid: int) -> list[int]:
    """Spark's Python workers below a host: what its daemons have forked."""
    parents = {int(one.name): _parent(one) for one in Path("/proc").iterdir() if one.name.isdecimal()}
    below, fresh = set[int](), {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        below |= fresh
    daemons = {one for one in below if any(name in _command(one) for name in _DAEMONS)}
    return sorted(one for one in daemons if parents[one] in daemons)


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
    except OSError:
        return -1


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def _settled(world: World, host: Program) -> Account:
    """Let no more in, wait until tables and log hold all of it, and count."""
    world.open_gate(0)
    await still(lambda: world.alive("d1").get("records_read"))
    await world.until("all is acked", lambda: world.is_idle("d1"))
    await _until(world, "the tables have all", lambda: _written(world) >= _logged(world))
    await asyncio.to_thread(host.terminate)
    del world.agents["host"]
    await asyncio.to_thread(world.agents["d1"].terminate)
    await world.end_ingest()
    counters = world.status("d1")["counters"]
    rows = {k.removeprefix("rows."): v for k, v in counters.items() if k.startswith("rows.")}
    found, numbers = account(world.seen(), rows), rows["numbers"]
    with closing(sqlite3.connect(HostFolder(world.folder).tables(_FLOW))) as db:
        kept, different = db.execute("SELECT count(*), count(DISTINCT number) FROM kept").fetchone()
        (counted,) = db.execute("SELECT sum(count) FROM sums").fetchone()
    if not found.is_exact or not kept == different == counted == numbers:
        raise ScenarioError(
            f"of {numbers} rows {different} are in the table, in {kept} rows, {counted} were counted: {found}"
        )
    return found
