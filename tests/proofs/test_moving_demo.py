"""The traffic demo moves a step to its devices while it runs, over a slow link, with Spark.

The files that it writes are those that pandas finds, byte for byte; the devices took what Spark had kept.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from geartrain_cloud.cli.hops import agent_status
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from tests.demo.path_run import gear_command
from tests.demo.traffic_reference import TABLES
from tests.demo.traffic_world import expected_of
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.long]


def test_a_step_moves_over_a_slow_link_and_the_tables_are_the_same(tmp_path: Path) -> None:
    places, output = PlatformPlaces(tmp_path / "state"), tmp_path / "out"
    options = ["--city", "3", "--vehicles", "40", "--fake-share", "0.1", "--devices", "2"]
    options += ["--loop-seconds", "1", "--throttle", "400B/s", "--speed", "max", "--no-page"]
    options += ["--state", str(places.folder), "--output", str(output)]
    done = subprocess.run(
        gear_command("demo", "traffic", *options),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    said = done.stderr
    assert done.returncode == 0, said
    assert "Traceback" not in said
    folder = places.folder / "input"
    wanted = expected_of({name: folder / f"{name}.csv" for name in ("passes", "loops", "checkpoints")})
    for name in TABLES:
        assert (output / f"{name}.json").read_bytes() == wanted[name], name
    assert re.search(
        r"link: [\d.]+ kB/s for [\d,]+ records/s, .* of 1 kB/s; the cloud is [\d.]+ s behind", said
    )
    assert "step streets runs on the devices" in said
    before, after = re.findall(r"link in the (?:last|first) .*: [\d.]+ kB/s .*?([\d.]+) bytes each", said)
    assert float(after) < float(before)
    counters = [
        read_report(agent_status(places, f"device-{number}", "traffic.1"))["counters"] for number in (1, 2)
    ]
    assert all(one["cells_taken"] > 0 for one in counters), counters
    logged = LogReader(places.log).counters()
    assert logged["rows:traffic.1/streets"] > 0
