"""Hosted flows whose code comes from bundles: nothing of it is installed, and it is exchanged as they run."""

from __future__ import annotations

import importlib
import io
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from geartrain.adapters.files import write_tree
from geartrain.bundle import Archive, pack
from geartrain.revision import contents_of
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.sinks.tables import rows
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.mill_log import FACTORS, MillLog

OLD, NEW = "* self.factor + value", "* self.factor + 3.0 * value"


def unpacked(wanted: Wanted, monkeypatch: pytest.MonkeyPatch, changed: str) -> Path:
    """The unpacked bundle of `mill` with another line, whose source is gone afterwards."""
    source = wanted.package / "mill" / "flows.py"
    text = source.read_text()
    assert OLD in text
    source.write_text(text.replace(OLD, changed))
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(wanted.package))
        importlib.invalidate_caches()
        manifest, raw = pack(contents_of("mill.flows:flow0"))
    source.write_text(text)
    place = wanted.folder / "code" / manifest.code
    write_tree(place, Archive(io.BytesIO(raw)).files())
    return place


def sums(log: MillLog, spans: list[tuple[int, float]]) -> list[tuple[str, int, float]]:
    """The rows of `each_sum` by plain Python; spans: so many records, whose values count so many times."""
    state: dict[str, tuple[int, float]] = {}
    found, begin = [], 0
    for count, times in spans:
        for reading, *_ in log.records[begin : begin + count]:
            if reading.value > log.number % 3:
                number, total = state.get(reading.sensor, (0, 0.0))
                total = total * FACTORS[log.number] + times * reading.value
                state[reading.sensor] = (number + 1, total)
                found.append((reading.sensor, number + 1, total))
        begin += count
    return found


@pytest.mark.proof
def test_a_flow_goes_on_with_the_code_of_another_bundle_from_its_state(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    old, new = (unpacked(wanted, monkeypatch, line) for line in (OLD, NEW))
    monkeypatch.setenv("PYTHONPATH", "")
    assert old != new
    log = wanted.add("stone.1", 0, bundle=str(old))
    beside = wanted.add("wheel.1", 1, bundle=str(old))
    log.append(300)
    beside.append(100)
    wanted.write()
    hosting = Hosting(spark, wanted)
    try:
        hosting.through("stone.1", "wheel.1")

        def exchange(bundle: Path, attempt: int) -> None:
            before = hosting.host.groups.hosted(("stone.1", 1))
            wanted.flows["stone.1"] |= {"bundle": str(bundle), "attempt": attempt}
            wanted.write()
            hosting.until(lambda: hosting.host.groups.hosted(("stone.1", 1)) not in (None, before))
            hosting.until(lambda: wanted.status("stone.1")["state"] == "running")

        exchange(new, 2)
        log.append(200)
        beside.append(50)
        hosting.through("stone.1", "wheel.1")
        hosting.close()
        hosting = Hosting(spark, wanted)  # a start runs what was exchanged
        log.append(80)
        hosting.through("stone.1", "wheel.1")
        exchange(old, 3)
        log.append(120)
        hosting.through("stone.1", "wheel.1")
        found = [tuple(row.values()) for row in rows(wanted.tables("stone.1"), "each_sum", canonical=True)]
        assert found == sums(log, [(300, 1.0), (280, 3.0), (120, 1.0)])
        beside.assert_tables(wanted.tables("wheel.1"))
        assert list(HostPlaces(wanted.state).code.iterdir())
    finally:
        hosting.close()
        wanted.close()
