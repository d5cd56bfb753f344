"""Where new steps may begin in the log of before: what control asks for, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from geartrain.errors import PlacementError
from geartrain.planning.mixed import make_mixed_plan
from geartrain.planning.past import past_of
from geartrain_cloud.control import updating
from geartrain_cloud.control.checking import Answer as Checked
from geartrain_cloud.control.checking import PastFound, Question, check
from geartrain_cloud.control.hosting import HostReport
from geartrain_cloud.control.past import PastLog
from geartrain_cloud.control.server import Api
from geartrain_cloud.control.trust import Trust
from geartrain_cloud.control.updating import Updates
from geartrain_cloud.control_store.model import Instance, Outline, Planned, State, Submission
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.log import queries
from geartrain_cloud.log.retention import Retention, retain
from geartrain_cloud.rest.answering import sentences
from geartrain_cloud.rest.openapi import ROOT
from geartrain_cloud.rest.requests import BODY_BYTES_MAX
from geartrain_cloud.rest.routes import add_routes
from tests.hosting.mill import revisions as mill
from tests.hosting.mill_log import MillLog

river = mill.one
ONE = f"{__name__}:river"
NEW = ("by_count_too", "by_name", "level_too", "levels_too", "levels_too_order", "per_second", "second")


class Asked:
    """An app that runs the first of the flows of `mill.revisions`, and may become another of them."""

    def __init__(self, folder: Path) -> None:
        self.store = ControlStore(folder / "control.sqlite", lambda: 1)
        self.becomes = "one"
        first = self.checked(Question(ONE, "cloud", {})).outline
        assert first is not None
        self.first = replace(first, code="a" * 64)
        self.store.apps.submit(Submission("heat", ONE, "cloud", "all"), self.first)
        self.store.apps.enter("heat.1", State.RUNNING)
        self.becomes = "with_more"
        trust, log = Trust(folder / "bundles", self.store), folder / "log"
        host = HostReport(state="running", revision=1, prepared=1)
        self.updates = Updates(
            self.store, self.load, trust, lambda: None, lambda _: host, lambda: 7, None, log
        )

    def checked(self, question: Question) -> Checked:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(globals(), "river", getattr(mill, self.becomes))
            found = check(question)
        assert found.outline is not None
        return replace(found, outline=replace(found.outline, bundled=True, code="b" * 64))

    async def load(self, question: Question) -> Checked:
        return self.checked(question)

    @property
    def instance(self) -> Instance:
        return self.store.apps.newest("heat")

    def update(self, **more: Any) -> tuple[int, Any]:
        return self.ask("update", {"flow": ONE, "code": "b" * 64} | more)

    def replay(self) -> tuple[int, Any]:
        return self.ask("replay", {"from": "beginning"})

    def ask(self, verb: str, body: dict[str, Any]) -> tuple[int, Any]:
        observer: Any = None  # which neither of the two asks
        api = Api(self.store, self.load, observer, lambda: None, self.updates)

        async def posted() -> tuple[int, Any]:
            app = web.Application(middlewares=[sentences(ROOT, BODY_BYTES_MAX)])
            add_routes(app, ROOT, [self.updates, api])
            async with TestClient(TestServer(app)) as client:
                answer = await client.post(f"{ROOT}/apps/heat/{verb}", json=body)
                return answer.status, await answer.json()

        return asyncio.run(posted())


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    one = Asked(tmp_path)
    yield one
    one.store.close()


def test_a_revision_says_where_its_new_steps_begin(asked: Asked) -> None:
    for begin, kept in (("earliest", "earliest"), ("1970-01-01T00:00:05Z", "5000000")):
        status, answer = asked.update(**{"from": begin})
        assert status == 202, answer
        planned = asked.store.revisions.next_of(asked.instance)
        assert planned is not None
        assert (planned.outline.begin, tuple(sorted(planned.outline.attached))) == (kept, NEW)
    assert asked.update()[0] == 202
    planned = asked.store.revisions.next_of(asked.instance)
    assert planned is not None
    assert (planned.outline.begin, planned.outline.attached) == ("", ())


def test_what_cannot_begin_before_is_refused_in_a_sentence(asked: Asked) -> None:
    status, answer = asked.update(**{"from": "soon"})
    assert (status, answer["error"]["sentence"].partition(":")[0]) == (400, "from soon")
    asked.becomes = "both"  # the sink of sums reads a step more
    status, answer = asked.update(**{"from": "earliest"})
    assert status == 409
    assert "from earliest: step 'each' is not new and would read new steps" in answer["error"]["sentence"]
    asked.becomes = "one"
    status, answer = asked.update(**{"from": "earliest"})
    assert (status, "this flow has no step that is new" in answer["error"]["sentence"]) == (409, True)


def test_steps_on_devices_have_no_past() -> None:
    plan = make_mixed_plan(mill.with_more.graph(), "edge")
    with pytest.raises(PlacementError, match="runs on devices, which have not kept the records of before"):
        past_of(plan, plan.edge[1:])


def test_a_log_that_has_lost_its_beginning_is_refused(asked: Asked, tmp_path: Path) -> None:
    log = MillLog(tmp_path / "log", "heat.1", 0, sealed=True)
    for _ in range(3):
        log.append(100)
    log.writer.close()
    past, found = PastLog(tmp_path / "log"), PastFound({"readings": "readings"}, (), ("readings",))
    begin = str(log.records[150][1])
    assert past.lacks(asked.instance, [], "earliest", found) == []
    assert asked.replay() == (202, {"run": 2})
    queries.commit(tmp_path / "log", "all", "heat.1", {"0": 2})
    assert retain(tmp_path / "log", Retention(bytes_max=0), 0).segments == 1
    said = past.lacks(asked.instance, [], "earliest", found)
    assert len(said) == 1
    assert said[0].startswith("from earliest: retention has removed 2 entries of the log behind that place: ")
    assert past.lacks(asked.instance, [], begin, found) == []
    keeps = replace(found, keeps=("adding",))  # which would have to run from the beginning on
    assert len(past.lacks(asked.instance, [], begin, keeps)) == 1
    status, answer = asked.replay()
    assert (status, answer["error"]["code"]) == (409, "conflict")
    assert answer["error"]["sentence"].startswith(
        "retention has removed the beginning of the log of app heat"
    )
    assert asked.instance.run == 2


def test_an_app_whose_sink_two_runs_cannot_share_is_not_replayed(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updating, "other_sinks", lambda _: [("hook", "WebhookSink")])
    status, answer = asked.replay()
    assert status == 409
    assert "app heat cannot be replayed: sink 'hook' is a WebhookSink" in answer["error"]["sentence"]
    assert asked.instance.run == 1


def test_what_former_revisions_did_not_have_is_refused(asked: Asked) -> None:
    past, log = PastLog(None), PastFound({"readings": "readings"}, ("adding",), ("readings",))
    now = replace(asked.instance, revision=2)

    def said(former: Outline, found: PastFound = log, **more: Any) -> list[str]:
        era = Planned("heat.1", 1, ONE, "cloud", {}, {}, former, (), 1)
        return past.lacks(replace(now, **more), [era], "earliest", found)

    assert said(asked.first) == []
    assert (
        "step 'adding', which is above, has begun anew with revision 2"
        in said(asked.first, drops=("adding",))[0]
    )
    bare = replace(asked.first, channels=[], document="")
    assert "the records of 'readings' were not in the log before revision 2" in said(bare)[0]
    silent = replace(asked.first, document="")
    assert "step 'adding', which is above, keeps something only since revision 2" in said(silent)[0]
    read_all = replace(now.outline, begin="earliest", attached=("adding",))
    assert said(silent, outline=read_all) == []  # it has read all of the log itself
