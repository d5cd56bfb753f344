"""A spool of another version of a flow: the agent ends at once with the code that nobody starts it again for,
and a demo says so before it starts anything.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from geartrain.adapters.system import SystemClock
from geartrain.ports import SpoolImage
from geartrain.revision import Code
from geartrain.testing import SeededRandomness
from geartrain.wire.envelope import EPOCH_BYTES
from geartrain_cloud.cli.demo import DemoOptions, begin, check_resumed
from geartrain_cloud.cli.demo_folder import StateFolder
from geartrain_cloud.cli.demos import load_demo
from geartrain_cloud.errors import StateError
from geartrain_cloud.revision_file import REVISION_FILE, read_revision, write_revision
from geartrain_cloud.supervisor.supervise import CONFIGURATION_ERROR
from geartrain_edge.agent.agent import Agent
from geartrain_edge.agent.config import read_config
from geartrain_edge.agent.histories import changed_histories
from geartrain_edge.errors import ChangedFlowError
from geartrain_edge.spool.spool import SqliteSpool
from tests.edge.agents import run, until
from tests.edge.network import MemoryNet, NaiveIngest
from tests.edge.test_main import greeted, start, write_config
from tests.waiting import WAIT_S

OTHER = """
from geartrain import Flow, Table
from geartrain_examples.stocks.drawdown import Quote
from geartrain_examples.stocks.flow import PriceFile

flow = Flow("stocks")
quotes = flow.source("quotes", PriceFile(), out=Quote, partitioned_by="symbol")
quotes.filter(lambda quote: quote.price > 10, name="high").sink("prices", Table("prices"))
"""


def test_an_agent_that_cannot_go_over_to_another_flow_ends_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = greeted(write_config(tmp_path))
    (tmp_path / "other_stocks.py").write_text(OTHER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config.write_text(config.read_text().replace("geartrain_examples.stocks.flow", "other_stocks"))
    with start(config) as process:
        try:
            _, said = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == CONFIGURATION_ERROR
    (sentence,) = [line for line in said.splitlines() if line.startswith("gear-agent:")]
    assert "was begun with another revision of flow stocks (" in sentence
    assert "or begin anew with a new instance or a new state folder" in sentence


def go_on(config: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run an agent over its spool for a moment, as a new process does; what it says against it."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(config.parent))
        for name in [name for name in sys.modules if name.partition(".")[0] == "changedtest"]:
            del sys.modules[name]
        found = read_config(str(config))
        plan = found.plan()
        net, revision = MemoryNet(NaiveIngest(plan), swallow=lambda header: True), found.revision(plan)
        store, settings = SqliteSpool(found.spool_file), found.settings

    async def story() -> str:
        agent = Agent(
            settings, plan, store, net, SystemClock(), SeededRandomness(1), files=None, revision=revision
        )
        task = asyncio.create_task(agent.run())
        await until(lambda: task.done() or agent.status().state not in ("starting", "greeting"))
        agent.stop()
        try:
            await task
        except ChangedFlowError as error:
            return str(error)
        return ""

    said = run(story())
    assert isinstance(said, str)
    return said


TASKS = "def is_high(quote):\n    return quote.price > 2\n"
FLOW = """
from geartrain import Flow, Record, Table
from geartrain_devices.csv_replay import CsvReplay
from changedtest.tasks import is_high

class Quote(Record):
    symbol: str
    price: float

flow = Flow("quotes")
source = CsvReplay(path="prices.csv", time_column="date")
flow.source("quotes", source, out=Quote).filter(is_high, name="high").sink("table", Table("high"))
"""


def own_flow(tmp_path: Path) -> Path:
    """The file of an agent with a flow of its own beside it."""
    (tmp_path / "changedtest").mkdir()
    for name, text in {"__init__": "", "tasks": TASKS, "flow": FLOW}.items():
        (tmp_path / "changedtest" / f"{name}.py").write_text(text)
    return write_config(tmp_path, flow="changedtest.flow:flow")


AGENT = "_agent"


def state_of(spool: Path) -> dict[bytes, bytes]:
    """What the agent itself keeps in the spool."""
    with closing(sqlite3.connect(spool)) as database:
        return dict(database.execute("SELECT key, value FROM state WHERE step = ?", (AGENT,)))


def test_changed_code_is_refused_by_the_name_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = own_flow(tmp_path)
    tasks = tmp_path / "changedtest" / "tasks.py"
    assert go_on(config, monkeypatch) == ""
    os.utime(tasks, (1, 1))
    tasks.write_bytes(TASKS.replace("\n", "\r\n").encode())
    (tmp_path / "changedtest" / "page.py").write_text("# nothing that the flow imports")
    moved = tmp_path / "prices2.csv"
    (tmp_path / "prices.csv").rename(moved)
    config.write_text(config.read_text().replace("prices.csv", "prices2.csv"))
    assert go_on(config, monkeypatch) == ""  # none of that is another revision
    tasks.write_text(TASKS.replace("> 2", "> 3"))
    said = go_on(config, monkeypatch)
    assert "another revision of flow quotes (file changedtest/tasks.py has changed): " in said
    assert "begin anew with a new instance or a new state folder; or, to go on with the changed" in said
    (line,) = re.findall(r'write (mended = "[0-9a-f]{12}") in its file$', said)
    plain = config.read_text()
    config.write_text(f"{line}\n{plain}".replace('"', '"0', 1))
    assert "file changedtest/tasks.py has changed" in go_on(config, monkeypatch)
    config.write_text(f"{line}\n{plain}")
    assert go_on(config, monkeypatch) == ""  # and from then on this is its code
    config.write_text(plain)
    assert go_on(config, monkeypatch) == ""
    tasks.write_text(TASKS)
    config.write_text(f"{line}\n{plain}")
    assert "file changedtest/tasks.py has changed" in go_on(config, monkeypatch)


def test_other_steps_in_the_cloud_are_other_code_to_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = own_flow(tmp_path)
    flow, plain = tmp_path / "changedtest" / "flow.py", config.read_text()
    assert go_on(config, monkeypatch) == ""
    flow.write_text(
        FLOW.replace("flow.source(", "high = flow.source(").replace('.sink("table", Table("high"))', "")
        + 'high.sink("table", Table("high"))\nhigh.sink("again", Table("again"))\n'
    )
    pinned = f'cut = ["quotes", "high"]\n{plain}'  # as control tells it
    config.write_text(pinned)
    (line,) = re.findall(r'write (mended = "[0-9a-f]{12}") in its file$', go_on(config, monkeypatch))
    config.write_text(f"{line}\n{pinned}")
    assert go_on(config, monkeypatch) == ""
    both = FLOW.replace("flow.source(", "quotes = flow.source(").replace(".filter(", "\nquotes.filter(")
    flow.write_text(both + 'quotes.sink("all", Table("all"))\n')
    assert "channel quotes is new" in go_on(config, monkeypatch)


def test_a_state_folder_of_another_version_is_refused_before_anything_runs(tmp_path: Path) -> None:
    demo, state = load_demo("traffic"), StateFolder(tmp_path / "state", "")
    manifest = begin("traffic", demo, DemoOptions(), state)
    state.close()
    held = read_revision(state.path)
    assert held is not None
    check_resumed("traffic", demo, manifest, DemoOptions(), state.path)
    files = {**held.code.files, "geartrain_examples/traffic/streets.py": "0" * 64}
    write_revision(state.path, msgspec.structs.replace(held, code=Code(held.code.package, files)))
    said = (
        r"begun with another revision of the flow traffic \(file geartrain_examples/traffic/streets\.py has"
    )
    with pytest.raises(StateError, match=said):
        check_resumed("traffic", demo, manifest, DemoOptions(), state.path)
    finished = msgspec.structs.replace(manifest, finished=True)
    check_resumed("traffic", demo, finished, DemoOptions(), state.path)
    (state.path / REVISION_FILE).write_text("{")
    with pytest.raises(StateError, match=r"a revision cannot be read.*name a new state folder"):
        check_resumed("traffic", demo, manifest, DemoOptions(), state.path)
    (state.path / REVISION_FILE).unlink()  # killed before it was noted
    check_resumed("traffic", demo, manifest, DemoOptions(), state.path)
    assert read_revision(state.path) == held


def test_other_lines_of_history_are_refused_once_something_of_the_source_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, spool = own_flow(tmp_path), tmp_path / "state" / "spool.sqlite"
    for name in ("2024", "2025"):
        (tmp_path / f"{name}.csv").write_text("date,symbol,price\n2024-01-01,a,1.0\n")
    plain = config.read_text()

    def history(*files: str) -> str:
        config.write_text(f'{plain}\n[sources.quotes.history]\nfiles = {list(files)}\ntime = "date"\n')
        return go_on(config, monkeypatch)

    one, other = (str(tmp_path / f"{name}.csv") for name in ("2024", "2025"))
    assert history(one) == history(one) == ""
    assert b"2024.csv" in state_of(spool)[b"history quotes"]
    said = history(one, other)
    assert said.startswith(
        "the history of source quotes was (2024.csv, by date) and is (2024.csv, 2025.csv, by date) now"
    )
    config.write_text(plain)
    assert "was (2024.csv, by date) and is none now" in go_on(config, monkeypatch)
    moved = tmp_path / "elsewhere" / "2024.csv"
    moved.parent.mkdir()
    Path(one).rename(moved)
    assert history(str(moved)) == ""
    monkeypatch.syspath_prepend(str(tmp_path))
    found = read_config(str(config))

    async def opened() -> SpoolImage:
        store = SqliteSpool(spool)
        try:
            return await store.open(found.settings.device, "quotes", bytes(EPOCH_BYTES))
        finally:
            await store.close()

    image = run(opened())
    assert isinstance(image, SpoolImage)
    assert changed_histories(image, found.plan()) == {}
    unnoted = msgspec.structs.replace(image, state={})
    with pytest.raises(ChangedFlowError, match=r"was none and is \(2024.csv, by date\) now"):
        changed_histories(unnoted, found.plan())
    unread = msgspec.structs.replace(unnoted, positions={})
    assert changed_histories(unread, found.plan()).keys() == {(AGENT, b"history quotes")}
