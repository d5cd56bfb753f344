"""`gear-spark` as a process: killed with -9 in mid-run, it goes on exactly. Each folder has one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain_cloud.spark.lock import StateLock
from tests.hosting.host_process import HostProcess
from tests.hosting.hosted import Wanted
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostProcess[Wanted]]:
    running = HostProcess(Wanted(tmp_path, monkeypatch))
    yield running
    running.end()
    running.wanted.close()


def test_it_goes_on_exactly_after_kill_9(process: HostProcess[Wanted]) -> None:
    wanted = process.wanted
    logs = [
        wanted.add(f"mill{number}.1", number, rows_max=100, isolation=isolation)
        for number, isolation in enumerate(("shared", "own", "own"))
    ]
    for log in logs:
        log.append(1_000)
    wanted.write()
    first = process.start()
    process.until(lambda: all(wanted.status(log.instance).get("rows") for log in logs[:2]))
    assert not all(wanted.is_through(log.instance) for log in logs)
    first.kill()
    first.wait()
    second = process.start()
    process.refuse_another()
    fourth = wanted.add("mill3.1", 3)
    fourth.append(100)
    del wanted.flows["mill2.1"]  # asked while nobody runs
    wanted.write()
    process.until(lambda: all(wanted.is_through(f"mill{number}.1") for number in (0, 1, 3)))
    second.terminate()
    assert second.wait(WAIT_S) == 0
    StateLock(wanted.state).release()  # Spark's JVM is gone, too
    for log in (*logs[:2], fourth):
        log.assert_tables(wanted.tables(log.instance))
    assert {path.name for path in (wanted.state / "groups").iterdir()} == {"all", "own-mill1.1"}
