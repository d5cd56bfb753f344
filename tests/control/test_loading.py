"""Flows that are loaded for control: what comes back, and flows that print, raise, exit, hang or flood."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from geartrain.declarations.zone_data import rules_of
from geartrain.declarations.zones import ZoneRules
from geartrain.flow.loading import load_flow
from geartrain.planning import make_plan
from geartrain.revision import Revision, code_of, revision_of
from geartrain_cloud.control import loading
from geartrain_cloud.control.checking import Answer, Question
from geartrain_cloud.control.loading import Loader
from geartrain_cloud.control_store.errors import ConflictError, FlowRefusedError, TooManyError
from geartrain_cloud.short_process import Ended, run_short
from tests.waiting import WAIT_S

STOCKS = "geartrain_examples.stocks.flow:flow"


def load(question: Question, limit_s: float = WAIT_S) -> Answer:
    return asyncio.run(Loader(limit_s)(question))


def test_the_revision_is_that_of_the_client_and_another_one_is_named() -> None:
    graph = load_flow(STOCKS).graph().with_options({"drawdown": {"period": "month"}})
    made = revision_of(STOCKS, make_plan(graph, "auto"), {}, code_of(STOCKS), "0.2.0")
    options = {"drawdown": {"period": "month"}}
    answer = load(Question(STOCKS, "auto", options, {}, made.to_json()))
    assert answer.outline is not None
    ours = Revision.from_json(answer.outline.document)
    assert ours.hash == answer.outline.revision
    assert (ours.steps, ours.channels, ours.code) == (made.steps, made.channels, made.code)
    with pytest.raises(ConflictError, match=r"drawdown.*--unchecked"):
        load(Question(STOCKS, "auto", {}, {}, made.to_json()))
    file = next(iter(made.code.files))
    other = replace(made, code=replace(made.code, files={**made.code.files, file: "0" * 64}))
    with pytest.raises(ConflictError, match=f"file {re.escape(file)} has changed"):
        load(Question(STOCKS, "auto", options, {}, other.to_json()))
    with pytest.raises(FlowRefusedError, match="a revision cannot be read"):
        load(Question(STOCKS, "auto", options, {}, "{}"))


def module(folder: Path, name: str, code: str) -> str:
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    return f"{name}:flow"


BOXES = """
from geartrain import Flow, Record, Table
from geartrain_devices.csv_replay import CsvReplay


class Box(Record):
    camera: str
    xmin: float


flow = Flow("boxes")
flow.source("b", CsvReplay(path="", time_column="time"), out=Box).sink("out", Table("boxes"))
"""


def test_a_table_that_the_platforms_store_will_refuse_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    question = Question(module(tmp_path, "boxes", BOXES), "auto", {}, {})
    assert load(question).outline is not None
    with pytest.raises(FlowRefusedError, match=r"table 'boxes' has a field 'xmin'.*\[tables\] store"):
        asyncio.run(Loader(in_postgres=True)(question))


HOOKED = """
from geartrain import Flow, Record
from geartrain.sinks import WebhookSink
from geartrain_devices.csv_replay import CsvReplay


class Box(Record):
    camera: str


flow = Flow("hooked")
boxes = flow.source("b", CsvReplay(path="", time_column="time"), out=Box)
boxes.sink("hook", WebhookSink("hook", headers={"X-Site": "north"}))
"""


def test_options_that_a_sink_cannot_have_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flow = module(tmp_path, "hooked", HOOKED)
    with pytest.raises(FlowRefusedError, match=r"sink 'hook' has no url: set url .*--set hook\.url=…"):
        load(Question(flow, "auto", {}))
    with pytest.raises(FlowRefusedError, match="sink 'hook': its url is no address"):
        load(Question(flow, "auto", {"hook": {"url": "hooks"}}))
    named = {"hook": {"url": "https://hooks.example", "headers_file": "/no/file"}}
    with pytest.raises(FlowRefusedError, match="headers_file: /no/file cannot be read"):
        load(Question(flow, "auto", named))
    assert load(Question(flow, "auto", {"hook": {"url": "https://hooks.example"}})).outline is not None


def test_a_flow_is_outlined_and_texts_become_values() -> None:
    options = {"quotes": {"path": "p.csv", "select": "AAPL,IBM"}, "drawdown": {"period": "month"}}
    answer = load(Question(STOCKS, "cloud", options, {"d1": {"quotes": {"select": ["FB"]}}}))
    outline = answer.outline
    assert outline is not None
    assert outline.flow == "stocks"
    assert [(source.id, source.bounded) for source in outline.sources] == [("quotes", True)]
    by_id = {channel.id: channel for channel in outline.channels}
    assert by_id["quotes"].sources == ["quotes"]
    assert by_id["quotes"].partitioned_by == "symbol"
    assert {"_dead_letters", "_late"} <= set(by_id)
    assert answer.options == {
        "quotes": {"path": "p.csv", "select": ["AAPL", "IBM"]},
        "drawdown": {"period": "month"},
    }
    assert answer.device_options == {"d1": {"quotes": {"select": ["FB"]}}}
    again = load(Question(STOCKS, "cloud", options, {"d1": {"quotes": {"select": ["FB"]}}})).outline
    assert again == outline


def test_shuffles_one_after_another_are_those_of_the_data_centre() -> None:
    deep = "tests.hosting.mill.flows:flow6"
    outlines = [
        load(Question(flow, "cloud", {})).outline for flow in (deep, "tests.hosting.mill.flows:flow0")
    ]
    assert [outline.shuffles for outline in outlines if outline is not None] == [3, 1]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (
            Question("nowhere:flow", "auto", {}),
            "there is no module 'nowhere' where the platform runs: make keys with",
        ),
        (Question("a b", "auto", {}), "write module:name"),
        (Question(STOCKS, "no_step", {}), "no_step"),
        (Question(STOCKS, "auto", {"none": {"a": "b"}}), "has no step 'none'"),
        (Question(STOCKS, "auto", {"quotes": {"none": "b"}}), "there is no option 'none'"),
        (Question(STOCKS, "auto", {}, {"d1": {"quotes": {"none": "b"}}}), "device d1: --set quotes"),
    ],
)
def test_what_is_refused_is_one_sentence(question: Question, said: str) -> None:
    with pytest.raises(FlowRefusedError, match=said):
        load(question)


def test_a_module_may_print_and_may_not_forge_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    forged = json.dumps({"outline": None, "refused": "forged"})
    flow = module(
        tmp_path,
        "talks",
        f"print({forged!r})\nimport os\nos.system('echo {{}}')\n"
        "from geartrain_examples.stocks.flow import flow\n",
    )
    outline = load(Question(flow, "auto", {})).outline
    assert outline is not None
    assert outline.flow == "stocks"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1/0", "its module raised ZeroDivisionError"),
        (
            "import os, sys\nprint('last\\x1b words', file=sys.stderr, flush=True)\nos._exit(7)",
            "with 7: last",
        ),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "ended its process with -11"),
        ("flow = 3", "not a Flow"),
        ("raise SystemExit(0)", "SystemExit"),
    ],
)
def test_a_module_that_breaks_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FlowRefusedError, match=said) as caught:
        load(Question(module(tmp_path, "breaks", code), "auto", {}))
    assert str(caught.value).isprintable()


def test_an_answer_that_is_too_long_is_refused_once_its_process_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "much.py").write_text("print('x' * 1_000_000)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = asyncio.run(run_short("much", b"", 60.0, 1_000))
    assert (ended.code, ended.answer, ended.is_too_long) == (0, b"", True)

    async def long(*_: object) -> Ended:
        return ended

    monkeypatch.setattr(loading, "run_short", long)
    with pytest.raises(FlowRefusedError, match="more than 4,194,304 bytes"):
        load(Question(STOCKS, "auto", {}))


def test_only_so_many_wait_to_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> list[object]:
        go, loader = asyncio.Event(), Loader()

        async def held(*_: object) -> Ended:
            await go.wait()
            return Ended(1, b"", b"")

        monkeypatch.setattr(loading, "run_short", held)
        question = Question(STOCKS, "auto", {})
        most = loading.AT_ONCE + loading.WAITING_MAX
        tasks = [asyncio.ensure_future(loader(question)) for _ in range(most + 1)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert done == {tasks[most]}
        go.set()
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    *others, last = asyncio.run(story())
    assert isinstance(last, TooManyError)
    assert all(isinstance(one, FlowRefusedError) for one in others)


@pytest.mark.parametrize(
    "code",
    [
        "import threading\nthreading.Event().wait()",
        "import sys\nwhile True: print('x' * 65536, file=sys.stderr)",
        "import subprocess\nsubprocess.run(['sleep', '600'])",
    ],
)
def test_a_module_that_never_ends_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FlowRefusedError, match="took more than 2 s"):
        load(Question(module(tmp_path, "hangs", code), "auto", {}), limit_s=2.0)


DAYS = """
from geartrain import Flow, Record, Table, agg, calendar_day
from geartrain.testing import TestingSource

class Day(Record):
    key: str
    n: int

flow = Flow("days")
words = flow.source("words", TestingSource[str](), out=str).key_by(str, name="word")
days = words.window(calendar_day("Europe/Berlin"))
days.aggregate("days", out=Day, n=agg.count()).sink("all", Table("all"))
"""


def test_the_platform_gives_a_flow_the_rules_of_its_zones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = module(tmp_path, "berlin_days", DAYS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    made = revision_of(spec, make_plan(load_flow(spec).graph(), "edge"), {}, code_of(spec), "0.2.0")
    answer = load(Question(spec, "edge", {}, {}, made.to_json()))  # who submits has no rules in it
    assert answer.options == {"days": {"zone_rules": rules_of("Europe/Berlin")}}
    assert answer.outline is not None
    document = Revision.from_json(answer.outline.document)
    assert document.hash != made.hash

    # An app that runs keeps the rules that it began with: its windows do not change under it.
    first = ZoneRules("Europe/Berlin", "1999a", (0,), (0, 0)).to_text()
    kept = load(Question(spec, "edge", {"days": {"zone_rules": first}}))
    assert kept.options == {"days": {"zone_rules": first}}
    again = load(Question(spec, "edge", kept.options, running=kept.outline.document if kept.outline else ""))
    assert again.options == kept.options
    assert again.is_same
