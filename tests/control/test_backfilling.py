"""History for an app over REST: files in pieces, which way it takes, what the control store then wants."""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from geartrain_cloud.control.backfilling import Backfills
from geartrain_cloud.control.checking import Answer, Question
from geartrain_cloud.control.history_files import HistoryFiles, given
from geartrain_cloud.control.hosting import HostReport
from geartrain_cloud.control.loading import Loader
from geartrain_cloud.control.reconciler import Reconciler
from geartrain_cloud.control.trust import Trust
from geartrain_cloud.control.updating import Updates
from geartrain_cloud.control_store.model import Instance, Mode, State, Submission
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.rest.answering import sentences
from geartrain_cloud.rest.openapi import ROOT
from geartrain_cloud.rest.requests import BODY_BYTES_MAX
from geartrain_cloud.rest.routes import add_routes

FLOW = """
from geartrain import Flow, Record, Table
from geartrain.sinks import ConsoleSink
from geartrain_devices.csv_replay import CsvReplay


class Reading(Record):
    sensor: str
    celsius: float


def flow_of(name, sink):
    flow = Flow(name)
    readings = flow.source("readings", CsvReplay(time_column="time"), out=Reading)
    other = flow.source("other", CsvReplay(time_column="time"), out=Reading)
    readings.sink("out", sink)
    other.sink("others", Table("others"))
    return flow


flow, said = flow_of("heat", Table("readings")), flow_of("said", ConsoleSink("said"))
"""
CSV = b"time,sensor,celsius\n2026-01-01T00:00:00Z,a,1.5\n"


def encoded(*heads: str) -> list[str]:
    """The first lines of files as REST has them."""
    return [b64encode(head.encode()).decode() for head in heads]


def named(content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()}.csv"


class World:
    """A control store with an app of no device, and REST over it."""

    def __init__(self, folder: Path, *, flow: str = "flow", is_open: bool = False) -> None:
        ticks = iter(range(1, 10**9))
        (folder / "backfilled_heat.py").write_text(FLOW, encoding="utf-8")
        self.store = ControlStore(folder / "control.sqlite", lambda: next(ticks))
        self.files = HistoryFiles(folder / "histories")
        trust = Trust(PlatformPlaces(folder).bundles, self.store)
        updates = Updates(self.store, Loader(), trust, lambda: None, lambda _: HostReport(), lambda: 0, None)
        self.backfills = Backfills(self.store, updates, self.files, lambda: None, is_open=is_open)
        name = f"backfilled_heat:{flow}"

        async def load() -> Answer:
            return await updates.load(Question(name, "cloud", {}))

        outline = asyncio.run(load()).outline
        assert outline is not None
        self.store.apps.submit(Submission("heat", name, "cloud", "kind=room"), outline)
        self.store.apps.enter("heat.1", State.RUNNING)

    def ask(self, method: str, path: str, json: Any = None, data: bytes | None = None) -> tuple[int, Any]:
        async def story() -> tuple[int, Any]:
            app = web.Application(
                middlewares=[sentences(ROOT, BODY_BYTES_MAX)], client_max_size=BODY_BYTES_MAX
            )
            add_routes(app, ROOT, [self.backfills])
            async with TestClient(TestServer(app)) as client:
                answer = await client.request(method, ROOT + path, json=json, data=data)
                return answer.status, await answer.json()

        return asyncio.run(story())

    def put(self, content: bytes, name: str, begin: int = 0, size: int = 0) -> Any:
        path = f"/apps/heat/history/{name}?begin={begin}&size={size or len(content)}"
        return self.ask("PUT", path, data=content)

    def backfill(self, *files: str, device: str = "d1", **more: Any) -> tuple[int, Any]:
        body = {"source": "readings", "device": device, "files": list(files), **more}
        return self.ask("POST", "/apps/heat/backfill", json=body)

    def refusal(self, *files: str, **more: Any) -> str:
        status, answer = self.backfill(*files, **more)
        assert status in (400, 409, 422), answer
        return str(answer["error"]["sentence"])

    def app(self, name: str = "heat") -> Instance:
        return self.store.apps.newest(name)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return World(tmp_path)


def test_a_file_comes_in_pieces_and_is_whole_by_its_digest(world: World) -> None:
    name = named(CSV)
    path = f"/apps/heat/history/{name}"
    assert world.ask("GET", path) == (200, {"bytes": 0, "whole": False})
    assert world.put(CSV[:10], name, size=len(CSV))[1] == {"bytes": 10, "whole": False}
    assert world.put(CSV[:10], name, size=len(CSV))[1] == {"bytes": 10, "whole": False}, "it is there"
    assert world.put(CSV[20:], name, begin=20, size=len(CSV))[1] == {"bytes": 10, "whole": False}, (
        "not in its turn"
    )
    assert world.put(CSV[10:], name, begin=10, size=len(CSV))[1] == {"bytes": len(CSV), "whole": True}
    assert world.put(CSV, name)[1] == {"bytes": len(CSV), "whole": True}
    kept = world.files.whole(name)
    assert kept.read_bytes() == CSV
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_file_that_changed_on_its_way_begins_anew(world: World) -> None:
    name = named(CSV)
    status, answer = world.put(b"other", name)
    assert (status, answer["error"]["sentence"][:21]) == (409, "the file was changed ")
    assert world.ask("GET", f"/apps/heat/history/{name}")[1] == {"bytes": 0, "whole": False}
    assert world.put(CSV, "..%2Fcontrol.sqlite")[0] == 400
    assert world.put(b"x" * ((2 << 20) + 1), name)[0] == 400


def test_a_device_that_never_had_the_app_begins_with_its_history(world: World) -> None:
    name = named(CSV)
    assert "has not come as a whole" in world.refusal(name)
    world.put(CSV, name)
    assert world.backfill(name, dry_run=True)[1]["way"] == "before"
    assert world.app().device_options == {}
    status, answer = world.backfill(name)
    assert (status, answer["way"], answer["is_new"], answer["app"]) == (202, "before", True, "heat")
    own = {"readings": {"history": {"files": [str(world.files.path(name))], "time": "time"}}}
    assert world.app().device_options == {"d1": own}
    assert world.backfill(name)[1]["is_new"] is False
    more = CSV + b"2026-01-02T00:00:00Z,a,2\n"
    world.put(more, named(more))
    assert world.backfill(named(more))[1]["is_new"] is True
    assert len(world.app().device_options["d1"]["readings"]["history"]["files"]) == 2
    assert "has its times in time" in world.refusal(name, named(CSV + b"\n"), time="at")
    assert {device for device, _ in given(world.app())} == {"d1"}
    world.put(CSV[:9], f"{'0' * 64}.csv", size=10)
    world.files.keep([path for _, path in given(world.app())])
    assert sorted(path.name for path in world.files.path(name).parent.iterdir()) == sorted(
        (name, named(more))
    )
    world.store.devices.add("d1", {"kind": "room"}, local=True)
    assert [one.device_options["d1"] for one, _ in world.store.desired.wanted_on("d1")]
    assert world.backfill(name, dry_run=True)[1]["way"] == "apart", "it has the app now"


def parquet(columns: dict[str, Any]) -> tuple[str, bytes]:
    """A Parquet file, and its name as history."""
    out = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), out)
    content = out.getvalue().to_pybytes()
    return f"{hashlib.sha256(content).hexdigest()}.parquet", content


def test_a_parquet_file_is_read_as_lines_with_the_same_rows(world: World) -> None:
    begin, ns = datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("ns", "Europe/Vienna")
    times = [begin + timedelta(minutes=minute, microseconds=minute) for minute in range(7_000)]
    rows: dict[str, Any] = {
        "time": pa.array(times, ns),
        "sensor": pa.array([f"ü{n % 3}" for n in range(7_000)]).dictionary_encode(),
        "celsius": [n / 3 for n in range(7_000)],
    }
    name, content = parquet(rows)
    assert world.put(content[:50], name, size=len(content))[1] == {"bytes": 50, "whole": False}
    assert world.put(content[50:], name, 50, len(content))[1] == {"bytes": len(content), "whole": True}
    status, answer = world.backfill(name)
    assert (status, answer["way"], answer["is_new"]) == (202, "before", True)
    (file,) = world.app().device_options["d1"]["readings"]["history"]["files"]
    (kept,) = Path(file).parent.iterdir()
    assert (str(kept), kept.suffix, kept.stat().st_mode & 0o777) == (file, ".jsonl", 0o600)
    lines = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    assert [datetime.fromisoformat(one["time"]) for one in lines] == times
    assert [(one["sensor"], one["celsius"]) for one in lines] == [(f"ü{n % 3}", n / 3) for n in range(7_000)]
    assert world.ask("GET", f"/apps/heat/history/{name}")[1]["whole"]
    assert world.put(content, name)[1]["whole"]
    assert world.backfill(name)[1]["is_new"] is False


def test_a_parquet_file_that_is_none_is_refused_and_changes_nothing(world: World) -> None:
    damaged = b"PAR1 and no more"
    name = f"{hashlib.sha256(damaged).hexdigest()}.parquet"
    world.put(damaged, name)
    assert world.refusal(name).startswith("the file cannot be read as Parquet: ")
    assert "CSV, JSON and lines of text cannot be one history" in world.refusal(name, named(CSV))
    assert world.app().device_options == {}


def test_a_file_goes_with_the_last_app_that_names_it_when_that_is_purged(
    world: World, tmp_path: Path
) -> None:
    more = CSV + b"2026-01-02T00:00:00Z,a,2\n"
    for content in (CSV, more):
        world.put(content, named(content))
    assert world.backfill(named(CSV), named(more))[0] == 202
    outline, other = world.app().outline, {"files": [str(world.files.path(named(more)))], "device": "d9"}
    world.store.apps.submit(
        Submission("other", "m:f", "cloud", "all", options={"readings": {"history": other}}), outline
    )
    waiting = "a" * 64 + ".csv"
    world.put(CSV[:9], waiting, size=10)
    ticks = iter(range(10**9, 2 * 10**9))
    reconciler = Reconciler(world.store, PlatformConfig(tmp_path), lambda: next(ticks))

    def there(app: str) -> set[str]:
        world.store.apps.kill(app, Mode.NOW, purge=True)
        for _ in range(5):
            reconciler.round()
        assert app not in [one.name for one in world.store.apps.every()]
        return {path.name for path in (tmp_path / "histories").iterdir()}

    assert there("heat") == {named(more), f"{waiting}.part"}, "the other app reads it, and one still comes"
    assert there("other") == {f"{waiting}.part"}


def test_other_history_goes_into_a_run_of_its_own(world: World) -> None:
    name = named(CSV)
    world.put(CSV, name)
    world.store.devices.add("d1", {"kind": "room"}, local=True)
    status, answer = world.backfill(name)
    assert (status, answer["way"], answer["is_new"]) == (202, "apart", True)
    assert answer["reason"] == "device d1 has app heat already"
    run = world.app(answer["app"])
    assert {source.id: (source.bounded, source.devices) for source in run.outline.sources} == {
        "readings": (True, "tier=cloud"),
        "other": (True, "tier=cloud"),
    }
    assert list(world.store.desired.assigned(run.instance)) == ["cloud-1"]
    history = run.options["readings"]["history"]
    assert (history["files"], history["device"]) == ([str(world.files.path(name))], "d1")
    assert list(given(run)) == [("d1", str(world.files.path(name)))]
    assert world.app().device_options == {}
    assert world.backfill(name)[1]["is_new"] is False
    assert world.backfill(name, device="d2", dry_run=True)[1]["way"] == "before"
    world.store.apps.kill("heat", Mode.NOW, purge=False)
    assert world.backfill(name, dry_run=True)[1]["reason"] == "app heat takes nothing more"
    mistyped = world.backfill(name, device="d2", dry_run=True)[1]["reason"]
    assert mistyped.startswith("app heat takes nothing more. There is no device d2 here")


OTHERWISE = "time;sensor;celsius\n2026-01-01T00:00:00Z;a;1,5\n".encode("utf-16")
WRITTEN = {"delimiter": ";", "decimal": ",", "skip_lines": "0"}


def test_options_say_how_the_files_are_written_in_both_ways(world: World) -> None:
    name = named(OTHERWISE)
    world.put(OTHERWISE, name)
    assert world.refusal(name).endswith('set delimiter = ";"')
    assert "there is no option 'delimeter'; options of CsvOptions: " in world.refusal(
        name, set={"delimeter": ";"}
    )
    assert "history.options.skip_lines = 'no'" in world.refusal(name, set=WRITTEN | {"skip_lines": "no"})
    heads = [b64encode(OTHERWISE[:50]).decode()]
    assert world.backfill(name, dry_run=True, heads=heads, set=WRITTEN)[0] == 200
    assert world.app().device_options == {}
    assert world.backfill(name, set=WRITTEN)[1]["way"] == "before"
    history = world.app().device_options["d1"]["readings"]["history"]
    assert history["options"] == {"delimiter": ";", "decimal": ",", "skip_lines": 0}
    assert world.backfill(name, set=WRITTEN)[1]["is_new"] is False
    world.put(CSV, named(CSV))
    assert world.refusal(named(CSV)).endswith(
        "has other options (delimiter = ';', decimal = ',', skip_lines = 0) than these files (none): files "
        "of one history are written alike"
    )
    world.store.devices.add("d2", {"kind": "room"}, local=True)
    made = world.backfill(name, device="d2", set=WRITTEN)[1]
    assert made["way"] == "apart"
    options = world.app(made["app"]).options
    assert options["readings"]["history"]["options"] == {"delimiter": ";", "decimal": ",", "skip_lines": 0}
    assert "options" not in options["other"]["history"]
    assert world.backfill(name, device="d2", set=WRITTEN)[1]["is_new"] is False
    assert world.refusal(name, device="d2", set=WRITTEN | {"decimal": ";;"})


def test_a_file_that_is_named_twice_is_read_once(world: World) -> None:
    name = named(CSV)
    world.put(CSV, name)
    twice, once = world.backfill(name, name), world.backfill(name)
    assert (twice[1]["is_new"], once[1]["is_new"]) == (True, False)
    history = world.app().device_options["d1"]["readings"]["history"]
    assert history["files"] == [str(world.files.path(name))]
    world.store.devices.add("d2", {"kind": "room"}, local=True)
    twice, once = world.backfill(name, name, device="d2"), world.backfill(name, device="d2")
    assert (twice[1]["way"], twice[1]["app"]) == ("apart", once[1]["app"])
    run = world.app(twice[1]["app"])
    assert run.options["readings"]["history"]["files"] == [str(world.files.path(name))]


def test_what_cannot_be_is_one_sentence_and_changes_nothing(world: World) -> None:
    name = named(CSV)
    world.put(CSV, name)
    assert "has no source 'readngs'; its sources: readings, other" in world.refusal(name, source="readngs")
    assert "device: " in world.refusal(name, device="a/b")
    assert "is read in the cloud" in world.refusal(name, device="cloud-1")
    assert "cannot be one history" in world.refusal(name, name.replace(".csv", ".jsonl"))
    assert "has no column 'at'" in world.refusal(name, time="at")
    assert "file my/2024.csv has no column 'at'" in world.refusal(name, time="at", called=["my/2024.csv"])
    assert "as many files as there are" in world.refusal(name, called=["a.csv", "b.csv"])
    rows: dict[str, Any] = {"time": [1.0, 2.0], "sensor": ["a", "b"]}
    lacking = json.dumps({name: values[0] for name, values in rows.items()}).encode()
    found = hashlib.sha256(lacking).hexdigest()
    for name, content in (parquet(rows), (f"{found}.jsonl", lacking)):
        world.put(content, name)
        assert "has no 'celsius', which a record needs" in (said := world.refusal(name, called=["my/file"]))
        assert ("my/file" in said, name.partition(".")[0] in said) == (True, False)
    assert "is named by the SHA-256" in world.refusal("history.csv")
    assert world.app().device_options == {}


def test_a_dry_run_looks_into_the_first_lines_and_keeps_nothing(world: World) -> None:
    name, head = named(CSV), CSV.decode()
    for way in ("before", "apart"):
        answer = world.backfill(name, dry_run=True, heads=encoded(head))[1]
        assert (answer["way"], answer["is_new"]) == (way, True)
        wrong = world.refusal(name, dry_run=True, heads=encoded(head.replace("celsius", "celcius")))
        assert f"{name.partition('.')[0]}.csv has no column 'celsius'" in wrong
        assert "has no column 'at'" in world.refusal(name, dry_run=True, heads=encoded(head), time="at")
        zipped, lines = f"{name}.gz", name.replace(".csv", ".jsonl")
        said = world.refusal(zipped, dry_run=True, heads=encoded("time,sensor\n"), called=["my/2024.csv.gz"])
        assert "file my/2024.csv.gz has no column" in said
        said = world.refusal(lines, dry_run=True, heads=encoded('{"time": 1, "sensor": "a"}\n'))
        assert "has no 'celsius', which a record needs" in said
        assert world.backfill(name, named(CSV + CSV), dry_run=True, heads=encoded("", head))[0] == 200
        if way == "before":
            world.store.devices.add("d1", {"kind": "room"}, local=True)
    for more in ({"heads": encoded(head)}, {"heads": encoded(head, head), "dry_run": True}):
        assert "as many as there are files" in world.refusal(name, **more)
    assert world.app().device_options == {}
    assert [one.name for one in world.store.apps.page(10, "", "")[0]] == ["heat"]
    assert not world.files.path(name).parent.exists()
    assert world.ask("GET", f"/apps/heat/history/{name}")[1] == {"bytes": 0, "whole": False}


def test_a_run_apart_writes_nothing_that_live_records_write_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    world = World(tmp_path, flow="said", is_open=True)
    world.put(CSV, named(CSV))
    assert world.backfill(named(CSV), dry_run=True)[1]["reason"].startswith("device d1 may be on another")
    assert "out would send history to where live records go" in world.refusal(named(CSV))
    assert world.store.apps.page(10, "")[0] == [world.app()]
