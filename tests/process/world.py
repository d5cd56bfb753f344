"""One world of the fault suite: mosquitto, a fault proxy on either side of it, ingest, agents, their files.

Every scenario runs in one of its own. Guarantees: agents and ingest are the programs that users start; each
wait is bounded by minutes and says what it waited for; at the end nothing is left running; what a scenario
asserts of its records is counted by the oracle from the log.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from geartrain.adapters.toml_text import to_toml
from geartrain.errors import LedgerError
from geartrain_cloud.log.reader import LogReader
from tests.process.brokers import HOST, Mosquitto
from tests.process.flows import is_poison
from tests.process.oracle import LETTERS, Account, Seen, account, missing_numbers, read_log, tallies_breach
from tests.process.programs import Program, status_of
from tests.process.proxy import FaultProxy
from tests.rosters import document, put_flow
from tests.waiting import Wait

_POLL_S = 0.05
UPLINK = {
    "window": 16,
    "resend_ms": 300,
    "resend_ms_max": 2_000,
    "backoff_ms": 50,
    "backoff_ms_max": 1_000,
    "silence_ms": 5_000,
}
COMMIT = {"records_max": 20, "interval_ms": 50}
CHANNELS = {"numbers": ("numbers", "tallies"), "plain": ("numbers",), "pulses": ("pulses",)}
SOURCES = {"numbers": "numbers", "plain": "numbers", "pulses": "pulses"}
FLOWS = {"numbers": "tests.process.flows:flow", "plain": "tests.process.flows:plain"}


class ScenarioError(AssertionError):
    """What a scenario expected did not come."""


class World:
    """Made by `opened`; `small`: the form that takes seconds; `records`: of each device, unless said else."""

    def __init__(self, folder: Path, seed: int, *, small: bool) -> None:
        folder.mkdir(parents=True)
        self.folder, self.seed, self.small = folder, seed, small
        self.random = random.Random(seed)
        self.records = 600 if small else 3_000
        self.log = folder / "log"
        self.broker = Mosquitto(folder)
        self.near = FaultProxy(self.broker.port, seed, "near")
        self.far = FaultProxy(self.broker.port, seed, "far")
        self.agents: dict[str, Program] = {}
        self.devices: list[str] = []
        self.ingest_keys: dict[str, Any] = {}
        self.flows: tuple[str, ...] = ("numbers",)
        self.channels = dict(CHANNELS)
        self.mounts: list[Path] = []
        self.notes: dict[str, Any] = {}
        self.recovery_s: list[float] = []
        self.gate = folder / "gate"
        self._sources: dict[str, dict[str, Any]] = {}
        self._watch: asyncio.Task[None] | None = None
        self.ingest = Program(
            "ingest", "geartrain_cloud.ingest.main", folder / "ingest.toml", folder / "ingest.log"
        )

    # Setting up

    async def begin(self, *devices: str, gate: int | None = None, **config: Any) -> None:
        """`prepare`, and `launch`."""
        self.prepare(*devices, gate=gate, **config)
        await self.launch()

    def prepare(self, *devices: str, gate: int | None = None, **config: Any) -> None:
        """Devices each of which replays `records` numbers, up to the gate; config: see `add_agent`."""
        self.prepare_gate(gate)
        for device in devices or ("d1",):
            self.add_agent(device, **config)

    def prepare_gate(self, gate: int | None) -> None:
        """Close the gate at a number, None for that of all records."""
        self.open_gate(self.records if gate is None else gate)

    async def launch(self) -> None:
        """Start all of it."""
        await self.broker.start()
        await self.near.start()
        await self.far.start()
        for agent in self.agents.values():
            self.set_address(agent)
        self.write_ingest()
        for flow in self.flows:
            above = dict.fromkeys(self.channels[flow], (SOURCES[flow],))
            put_flow(self.log, flow, document({SOURCES[flow]: self.devices}, above))
        self.ingest.start()
        for agent in self.agents.values():
            agent.start()

    def add_agent(
        self,
        name: str,
        device: str = "",
        *,
        source: Mapping[str, Any] | None = None,
        spool: Mapping[str, Any] | None = None,
        commit: Mapping[str, Any] | None = None,
        uplink: Mapping[str, Any] | None = None,
        state: Path | None = None,
    ) -> Program:
        """An agent, of the device of its name unless another is named; it is not started."""
        device = device or name
        if device not in self.devices:
            self.devices.append(device)
        home = self.folder / name
        home.mkdir()
        options = {"records": self.records, "gate": str(self.gate), **(source or {})}
        self._sources[name] = options
        content = {
            "device": device,
            "flow": FLOWS[self.flows[0]],
            "cut": "edge",
            "state": str(state or home / "state"),
            "broker": "BROKER",
            "spool": {"free_floor": "0B"} | dict(spool or {}),
            "commit": COMMIT | dict(commit or {}),
            "uplink": UPLINK | dict(uplink or {}),
            "sources": {"numbers": options},
        }
        (home / "agent.toml").write_text(to_toml(content), encoding="utf-8")
        agent = Program(
            name, "geartrain_edge.agent.process", home / "agent.toml", self.folder / f"{name}.log"
        )
        self.agents[name] = agent
        if self.near.port:
            self.set_address(agent)
        return agent

    def set_address(self, agent: Program) -> None:
        """Have an agent speak to the proxy on its side."""
        text = agent.config.read_text(encoding="utf-8")
        agent.config.write_text(text.replace("BROKER", f"{HOST}:{self.near.port}"), encoding="utf-8")

    def write_ingest(self) -> None:
        """The configuration of ingest, for its next life."""
        content = {
            "log": {"folder": str(self.log), "merge": False},
            "broker": f"{HOST}:{self.far.port or 1}",
            "status_interval_ms": 100,
            **self.ingest_keys,
        }
        self.ingest.config.write_text(to_toml(content), encoding="utf-8")

    def state_of(self, name: str) -> Path:
        """The folder of an agent's spool."""
        return self.folder / name / "state"

    # Going on

    def open_gate(self, upto: int) -> None:
        """Let the sources read the numbers below `upto`."""
        set_gate(self.gate, upto)

    async def pause(self, full_s: float, small_s: float) -> None:
        """Let time pass: what is given for the form at hand."""
        await asyncio.sleep(small_s if self.small else full_s)

    async def until(self, what: str, condition: Callable[[], bool], *, ends: bool = False) -> None:
        """Wait for `condition`; fails when a program ends meanwhile unless `ends`."""
        wait = Wait(what)
        while not condition():
            wait.check()
            if not ends:
                for program in (self.ingest, *self.agents.values()):
                    if program.code not in (None, 0, -9):
                        raise ScenarioError(
                            f"{program.name} ended with {program.code} before this: {what}\n{self.words()}"
                        )
            await asyncio.sleep(_POLL_S)

    def words(self) -> str:
        """The last of what every program said."""
        programs = (self.ingest, *self.agents.values())
        return "\n".join(f"--- {program.name}\n{program.words()[-2_000:]}" for program in programs[:6])

    def logged(self) -> int:
        """Rows in the log."""
        try:
            return LogReader(self.log).counters().get("records_logged", 0)
        except LedgerError:
            return 0

    def count(self, counter: str) -> int:
        """A total of ingest's: what it has refused without a commit is in its status only."""
        said = int(status_of(self.log / "status.json").get("counters", {}).get(counter, 0))
        try:
            return max(said, LogReader(self.log).counters().get(counter, 0))
        except LedgerError:
            return said

    async def until_logged(self, rows: int) -> None:
        """Wait until the log has so many rows."""
        await self.until(f"{rows} rows are in the log", lambda: self.logged() >= rows)

    async def until_numbers(self, upto: int) -> None:
        """Wait until the log has the rows of the numbers below `upto`, of every device."""
        await self.until_logged(rows_of(upto) * len(self.devices))

    def status(self, name: str) -> Mapping[str, Any]:
        """What an agent says of itself."""
        return status_of(self.state_of(name) / "status.json")

    def alive(self, name: str) -> Mapping[str, Any]:
        """What an agent's present life says of itself, nothing before its spool is open: until then all of
        its figures are 0, and before that they are those of its former life.
        """
        said = self.status(name)
        return said if said.get("epoch") and said["pid"] == self.agents[name].pid else {}

    def is_idle(self, name: str) -> bool:
        """Whether all that an agent has spooled is acked."""
        said = self.alive(name)
        return bool(said) and said["spooled_seq"] == said["acked_seq"]

    def spooled(self, name: str) -> int:
        """Rows of numbers that an agent's spool has taken."""
        return int(self.status(name).get("counters", {}).get("rows.numbers", 0))

    def heal(self) -> None:
        """End every fault of the network, and take the time until rows come again."""
        self.near.heal()
        self.far.heal()
        self.healed()

    def healed(self) -> None:
        """Take the time from now until the next rows are in the log."""
        before, loop = self.logged(), asyncio.get_running_loop()
        began_s = loop.time()

        async def watch() -> None:
            while self.logged() <= before:  # noqa: ASYNC110 - what is waited for is in another process
                await asyncio.sleep(_POLL_S)
            self.recovery_s.append(loop.time() - began_s)

        if self._watch is not None:
            self._watch.cancel()
        self._watch = asyncio.create_task(watch())

    async def ended(self, program: Program, code: int, says: str) -> None:
        """Wait until a program has ended by itself, with this exit code and with these words."""
        await self.until(f"{program.name} ends", lambda: program.code is not None, ends=True)
        if program.code != code or says not in program.words():
            raise ScenarioError(
                f"{program.name} ended with {program.code}, not with {code} and {says!r}\n{self.words()}"
            )

    # Ending

    async def drained(self, *names: str, ends: bool = False) -> None:
        """Open the gate and wait until these agents (none: all) have finished, then end ingest."""
        self.open_gate(1 << 60)
        waited = [self.agents[name] for name in names or self.agents]
        await self.until("the agents have finished", lambda: all(one.code == 0 for one in waited), ends=ends)
        await self.end_ingest()

    async def end_ingest(self) -> None:
        """End ingest in good order."""
        code = await asyncio.to_thread(self.ingest.terminate)
        if code != 0:
            raise ScenarioError(f"ingest ended with {code}\n{self.words()}")

    def seen(self, flow: str = "numbers") -> dict[str, Seen]:
        """What the log holds."""
        return read_log(self.log, flow)

    def by_spools(self) -> Account:
        """The account where each spool lived through it all: it says itself what it accepted."""
        accepted: dict[str, int] = {}
        for name in self.agents:
            for counter, count in self.status(name).get("counters", {}).items():
                if counter.startswith("rows."):
                    channel = counter.removeprefix("rows.")
                    accepted[channel] = accepted.get(channel, 0) + count
        return account(self.seen(), accepted)

    def source_of(self, name: str) -> dict[str, Any]:
        """The options of an agent's numbers."""
        return dict(self._sources[name])

    def account_of(self, accepted: Mapping[str, int]) -> Account:
        """The account where so many rows were accepted, by channel."""
        return account(self.seen(), accepted)

    def by_sources(self) -> Account:
        """The account where a spool was lost or set back: accepted is what the sources hold."""
        good = sum(not is_poison(number) for number in range(self.records)) * len(self.devices)
        bad = self.records * len(self.devices) - good
        return account(self.seen(), {"numbers": good, "tallies": good, LETTERS: bad})

    def exact(self) -> Account:
        """The account, of which every record was delivered once and in order; fails where one was not."""
        found = self.by_spools()
        if not found.is_exact:
            raise ScenarioError(f"not each record once and in order: {found}")
        if breach := tallies_breach(self.log, "numbers"):
            raise ScenarioError(breach)
        self.check_numbers()
        return found

    def once_at_least(self) -> Account:
        """The account where a spool was lost, copied or set back: nothing may be lost that can be read again,
        nothing out of order; what came twice is counted and allowed.
        """
        found = self.by_sources()
        if not found.balances or found.reordered:
            raise ScenarioError(f"records are lost, or out of order: {found}")
        self.check_numbers()
        return found

    def declared(self) -> Account:
        """The account where spools were full: what is not there was declared as dropped, to the unit."""
        found = self.by_spools()
        if not found.balances or found.duplicated or found.reordered:
            raise ScenarioError(f"what was declared is not what is missing: {found}")
        return found

    def check_numbers(self) -> None:
        """Fail where a record of a source is nowhere in the log."""
        seen = self.seen()
        for device in self.devices:
            if missing := missing_numbers(seen, f"numbers/{device}", self.records):
                raise ScenarioError(f"records {sorted(missing)[:10]} of {device} are nowhere")

    def check_words(self) -> None:
        """Fail where a program showed a stack trace."""
        for program in (self.ingest, *self.agents.values()):
            if program.has_trace():
                raise ScenarioError(f"{program.name} showed a stack trace\n{program.words()[-4_000:]}")

    async def close(self) -> None:
        """End everything."""
        if self._watch is not None:
            self._watch.cancel()
        for program in (*self.agents.values(), self.ingest):
            program.kill()
        await self.near.stop()
        await self.far.stop()
        self.broker.kill()
        self._unmount()

    def _unmount(self) -> None:
        for mount in self.mounts:
            subprocess.run(["umount", "-l", str(mount)], check=False, capture_output=True)


def set_gate(gate: Path, upto: int) -> None:
    """Write the number before which a source stops, in one step: it is read meanwhile."""
    fresh = gate.with_suffix(".new")
    fresh.write_text(str(upto), encoding="ascii")
    fresh.replace(gate)


def rows_of(upto: int) -> int:
    """Rows of all channels that the numbers below `upto` of one device make."""
    return sum(1 if is_poison(number) else 2 for number in range(upto))


@asynccontextmanager
async def opened(folder: Path, seed: int, *, small: bool) -> AsyncIterator[World]:
    """A world in a fresh `folder`, ended with the block and then removed, unless it failed."""
    world = World(folder, seed, small=small)
    try:
        yield world
        world.check_words()
    finally:
        await world.close()
    # A failed world keeps its files until its suite ends.
    shutil.rmtree(folder, ignore_errors=True)
