"""The traffic demo as a user runs it: agents, broker, ingest, Spark and page as processes, two killed.

The files that it writes are those that pandas finds, byte for byte.
"""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Literal

import pytest

from geartrain_cloud.platform.places import PlatformPlaces
from tests.demo.path_run import hops, kill_9, run_gear, started_gear, wait_until
from tests.demo.traffic_reference import TABLES
from tests.demo.traffic_world import expected_of
from tests.waiting import WAIT_S


def answer(address: str, path: str) -> Any:
    try:
        with urllib.request.urlopen(f"{address}api/{path}", timeout=WAIT_S) as found:  # noqa: S310
            return json.load(found)
    except (urllib.error.URLError, ConnectionError):
        return None


@pytest.mark.slow
def test_a_city_dealt_cut_killed_and_shown(
    tmp_path: Path, broker_kind: Literal["mosquitto", "amqtt"]
) -> None:
    places, output = PlatformPlaces(tmp_path / "state"), tmp_path / "out"
    options = ["--city", "3", "--vehicles", "40", "--fake-share", "0.1", "--devices", "3", "--speed", "400"]
    options += ["--state", str(places.folder), "--output", str(output), "--broker", broker_kind]
    with started_gear("demo", "traffic", *options) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.endswith("(it fills while the demo runs)\n")
        wait_until("rows are logged", lambda: hops(places, "traffic.1").logged > 20, process)
        for name in ("agent device-2", "ingest"):
            kill_9(places, name, process, "traffic.1")
        wait_until("the page has a map", lambda: answer(first.split()[1], "map") is not None, process)
        address = next(line for line in process.stdout if line.startswith("page: ")).split()[1]
        fakes = answer(address, "fakes")
        plate = answer(address, "trace/GT-00000")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=WAIT_S)[1]
        assert process.returncode == 0, said
    folder = places.folder / "input"
    wanted = expected_of({name: folder / f"{name}.csv" for name in ("passes", "loops", "checkpoints")})
    for name in TABLES:
        assert (output / f"{name}.json").read_bytes() == wanted[name], name
        assert (places.folder / f"{name}.json").read_bytes() == wanted[name], name
    assert re.search(r"throughput: [\d,]+ records in [\d.]+ s", said)
    assert re.search(r"link: [\d,]+ bytes in [\d,]+ batches; .* by the cut cloud \(\d+ %\)", said)
    assert {row["vehicle"] for row in json.loads(wanted["fake_plates"])} == {f"GT-{n:05}" for n in range(4)}
    assert json.dumps(fakes).count("GT-0000") >= 4
    assert plate is not None
    again = run_gear("demo", "traffic", "--state", str(places.folder), "--limit-mps", "10", "--no-page")
    assert again.returncode == 2
    assert "was begun with --limit-mps 13.89, and this run asks for --limit-mps 10.0" in again.stderr
