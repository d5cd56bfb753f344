"""Several flows in one agent: each with its own spool, connection, status and end; urgent ones come first."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from geartrain.adapters.system import SystemClock
from geartrain.errors import ConfigError
from geartrain.planning import Plan, make_plan
from geartrain.ports import SpoolCommit, SpoolStore
from geartrain.testing import SeededRandomness
from geartrain.wire.envelope import Ack, Control, Header
from geartrain_edge.agent import main as agent_main
from geartrain_edge.agent.agent import Agent
from geartrain_edge.agent.config import load
from geartrain_edge.settings import AgentSettings
from geartrain_edge.spool.spool import SqliteSpool
from geartrain_edge.uplink.priority import Priority
from tests.edge import two_flows
from tests.edge.agents import SETTINGS, MortalSpool, agent_of, run, until
from tests.edge.network import MemoryNet, NaiveIngest
from tests.edge.test_main import said_by
from tests.edge.two_flows import BULK_ROWS, RINGS, Bells

FILE = """
device = "d1"
state = "{state}"
[commit]
records_max = 10
[[flows]]
flow = "tests.edge.two_flows:bulk"
[[flows]]
flow = "tests.edge.two_flows:alarms"
urgent = true
[flows.commit]
records_max = 1
"""


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    Bells.rung = 0
    yield
    Bells.rung = 0


def config(tmp_path: Path, text: str = FILE) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(text.format(state=tmp_path / "state"))
    return path


class Noting(MortalSpool):
    """Notes each commit of rows."""

    def __init__(self, path: Path, journal: list[str]) -> None:
        super().__init__(path)
        self._journal = journal

    async def commit(self, change: SpoolCommit) -> None:
        await super().commit(change)
        self._journal += ["committed" for batch in change.batches if batch.count]


def backlog_of(plan: Plan, path: Path) -> int:
    """Have an agent that nobody hears fill a spool; returns its last seq."""
    agent = agent_of(plan, path, MemoryNet(NaiveIngest(plan), swallow=lambda header: True))

    async def story() -> int:
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().ended)
        agent.stop()
        await task
        return agent.status().spooled_seq

    return int(run(story()))


class Inline(Executor):
    """Runs what it is given at once: a thread that the machine lets wait would leave a flow behind the other
    for as long, which says nothing of what they wait for by themselves.
    """

    def __init__(self, *_args: object, **_options: object) -> None:
        """Takes what a pool of threads takes."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **options))
        except Exception as error:  # raised where the future is asked
            future.set_exception(error)
        return future


def delays(tmp_path: Path, *, is_urgent: bool) -> list[int]:
    """Publishes of the backlog between each ring's commit and its publish."""
    bulk, alarms = make_plan(two_flows.bulk.graph(), "edge"), make_plan(two_flows.alarms.graph(), "edge")
    last = backlog_of(bulk, tmp_path / "bulk.sqlite")
    assert last >= BULK_ROWS // SETTINGS.records_max
    journal: list[str] = []

    def note(flow: str) -> Any:
        def swallow(header: Header) -> bool:
            journal.append(flow if header.count else "")
            return False

        return swallow

    nets = [MemoryNet(NaiveIngest(plan), swallow=note(plan.graph.name)) for plan in (bulk, alarms)]
    priority = Priority()
    given: tuple[tuple[Plan, SpoolStore, AgentSettings], ...] = (
        (bulk, SqliteSpool(tmp_path / "bulk.sqlite"), replace(SETTINGS, urgent=False)),
        (alarms, Noting(tmp_path / "alarms.sqlite", journal), replace(SETTINGS, urgent=is_urgent)),
    )
    agents = [
        Agent(settings, plan, store, net, SystemClock(), SeededRandomness(seed), priority)
        for seed, ((plan, store, settings), net) in enumerate(zip(given, nets, strict=True))
    ]

    def is_due() -> bool:
        """Whether the backlog is as far as the next ring, and the one before has arrived."""
        due = journal.count("bulk") >= (Bells.rung + 1) * last // (RINGS + 1)
        return due and len(nets[1].ingest.rows["bell"]) == Bells.rung

    async def ring() -> None:
        while Bells.rung < RINGS:
            await until(is_due)
            Bells.rung += 1

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(agent.run()) for agent in agents]
            group.create_task(ring())
        assert all(task.result() for task in tasks)

    run(story(), 60)
    assert len(nets[0].ingest.rows["samples"]) == BULK_ROWS
    assert len(nets[1].ingest.rows["bell"]) == RINGS
    counts, waits = [], False
    for what in journal:
        if what == "committed":
            waits = True
            counts.append(0)
        elif what == "alarms":
            waits = False
        elif waits and what == "bulk":
            counts[-1] += 1
    return counts


@pytest.fixture
def _without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geartrain_edge.spool.spool.ThreadPoolExecutor", Inline)


@pytest.mark.usefixtures("_without_threads")
def test_an_urgent_flow_waits_for_no_backlog(tmp_path: Path) -> None:
    """At most the one publish that was already on its way, however much waits behind it."""
    counts = delays(tmp_path, is_urgent=True)
    assert len(counts) == RINGS
    assert max(counts) <= 1


@pytest.mark.usefixtures("_without_threads")
def test_flows_side_by_side_wait_for_no_more_than_a_window_of_each_other(tmp_path: Path) -> None:
    counts = delays(tmp_path, is_urgent=False)
    print("publishes of the backlog while a ring waited:", counts)
    assert len(counts) == RINGS
    assert max(counts) <= 2 * SETTINGS.uplink.window


def nets_of(
    path: Path, monkeypatch: pytest.MonkeyPatch, **meddlers: Callable[[bytes, list[Control]], list[Control]]
) -> dict[str, MemoryNet]:
    """Have `gear-agent` work over brokers in memory, one for each flow of the file."""
    nets = {
        plan.graph.name: MemoryNet(NaiveIngest(plan), meddle=meddlers.get(plan.graph.name))
        for _, plan in load(str(path))
    }
    waiting = list(nets.values())
    monkeypatch.setattr("geartrain.adapters.mqtt.AiomqttNet", lambda *_, **__: waiting.pop(0))
    return nets


def status_of(tmp_path: Path, flow: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "state" / flow / "status.json").read_text())
    return found


def test_each_flow_has_a_spool_and_a_status_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config(tmp_path)
    Bells.rung = RINGS
    nets = nets_of(path, monkeypatch)
    nets["alarms"].counters["incoming_dropped"] = 7
    code, said = said_by(capsys, path)
    assert code == agent_main.EXIT_OK, said
    assert status_of(tmp_path, "alarms")["counters"]["incoming_dropped"] == 7
    rows = {"bulk": ("samples", BULK_ROWS), "alarms": ("bell", RINGS)}
    for flow, (channel, count) in rows.items():
        assert len(nets[flow].ingest.rows[channel]) == count
        status = status_of(tmp_path, flow)
        assert (status["flow"], status["state"], status["records_read"]) == (flow, "finished", count)
        assert status["epoch"] == nets[flow].ingest.epoch.hex()
        assert (tmp_path / "state" / flow / "spool.sqlite").exists()
    assert {path.name for path in (tmp_path / "state").iterdir()} == set(rows)
    settings = {plan.graph.name: config.settings for config, plan in load(str(path))}
    assert (settings["bulk"].urgent, settings["bulk"].records_max) == (False, 10)
    assert (settings["alarms"].urgent, settings["alarms"].records_max) == (True, 1)


def test_a_flow_that_fails_says_so_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(payload: bytes, answers: list[Control]) -> list[Control]:
        return [replace(answer, seq=1_000) for answer in answers if isinstance(answer, Ack)]

    path = config(tmp_path)
    Bells.rung = RINGS
    nets = nets_of(path, monkeypatch, alarms=refuse)
    code, said = said_by(capsys, path)
    assert code == agent_main.EXIT_ALARM
    lines = [line for line in said.splitlines() if line.startswith("gear-agent: ")]
    assert len(lines) == 1
    assert lines[0].startswith("gear-agent: flow alarms: ingest acks batch 1000, but this spool ends at ")
    assert status_of(tmp_path, "alarms")["state"] == "failed"
    assert status_of(tmp_path, "bulk")["state"] == "finished"
    assert len(nets["bulk"].ingest.rows["samples"]) == BULK_ROWS


def test_the_code_is_that_of_the_worst_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config(tmp_path)
    Bells.rung = RINGS
    nets_of(path, monkeypatch)
    damaged = tmp_path / "state" / "bulk" / "spool.sqlite"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"no spool at all")
    code, said = said_by(capsys, path)
    assert code == agent_main.EXIT_FAILED
    assert f"gear-agent: flow bulk: spool {damaged} is damaged" in said
    assert status_of(tmp_path, "alarms")["state"] == "finished"


def test_a_signal_stops_every_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config(tmp_path)
    nets = nets_of(path, monkeypatch)
    loaded = [(config, plan, config.revision(plan)) for config, plan in load(str(path))]

    async def story() -> set[int]:
        task = asyncio.create_task(agent_main._run(loaded))
        await until(lambda: len(nets["bulk"].ingest.rows["samples"]) > 0)
        os.kill(os.getpid(), signal.SIGTERM)
        return await task

    assert run(story()) == {agent_main.EXIT_OK}
    assert status_of(tmp_path, "alarms")["state"] == "stopped"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("bulk", "alarms", "flows[1].flow: flow alarms is here twice; a device runs it once"),
        ("urgent = true", "urgnt = true", "flows[1].urgnt is not a key of this file"),
        ("urgent = true", "urgent = 3", "flows[1].urgent: expected `bool`, got `int`"),
        ('flow = "tests.edge.two_flows:alarms"', "", "flows[1].flow is missing"),
        ("two_flows:bulk", "two_flows:other", "flows[0].flow: flow 'tests.edge.two_flows:other'"),
        ("[commit]", 'cut = "auto"\nflow = "a:b"\n[commit]', "flow: there are [[flows]]: write it below"),
        ("[commit]", "[sources.bell]\nx = 1\n[commit]", "sources: there are [[flows]]: write it below"),
        ("urgent = true", 'cut = "none"', "flows[1].cut: flow alarms has no step 'none'"),
        (
            "[flows.commit]",
            "[flows.sources.bell]\nx = 1\n[flows.commit]",
            "[flows[1].sources] bell: there is no option 'x'",
        ),
        (
            "[flows.commit]",
            "[flows.uplink]\nresend_ms = 99999\n[flows.commit]",
            "flows[1].uplink.resend_ms is larger than flows[1].uplink.resend_ms_max",
        ),
    ],
)
def test_a_mistake_names_the_flow(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = config(tmp_path, FILE.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
