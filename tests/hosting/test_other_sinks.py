"""Webhook and Delta sinks of a hosted flow on the tests' session; the webhook's token is a secret."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pytest
from pyspark.sql import SparkSession

from geartrain.adapters.secret_shelf import SecretShelf
from tests.hosting.hosted import Hosting, Wanted
from tests.sinks.hooked import receiving

VALUE = "planted-6Hy1-value"
FLOW = """
from geartrain import Flow, Table
from geartrain.sinks import DeltaTable, WebhookSink
from geartrain.testing import TestingSource
from mill.flows import FACTORS, Above, Adding, Reading

flow = Flow("hooked")
readings = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
kept = readings.filter(Above(0), name="above")
kept.sink("kept", Table("kept"))
sums = kept.key_by("sensor", name="by_sensor").process("adding", Adding(FACTORS[0]))
sums.sink("each", Table("each_sum"))
sums.sink("last", Table("last_sum", key=("sensor",)))
sums.sink("hook", WebhookSink("hook", url="{url}", rows_max=50, headers={{"Authorization": "secret:token"}}))
sums.sink("delta", DeltaTable("sums"))
"""


def test_a_webhook_waits_for_its_secret_and_each_sink_has_each_row_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    with receiving() as hooks:
        (wanted.package / "mill" / "hooked.py").write_text(FLOW.format(url=hooks.url))
        log = wanted.add("hooked.1", 0, flow="mill.hooked:flow")
        log.append(300)
        wanted.write()
        hosting = Hosting(spark, wanted)
        try:
            hosting.until(lambda: "waits for secret token" in wanted.status("hooked.1").get("why", ""))
            assert hooks.asked == []
            shelf = SecretShelf(wanted.state / "secrets")
            assert not shelf.put("hooked", "token", 1, VALUE.encode())
            hosting.through("hooked.1")
            log.append(100)
            hosting.through("hooked.1")
        finally:
            hosting.close()
            wanted.close()
    path = wanted.tables("hooked.1")
    log.assert_tables(path)
    expected = sorted(log.expected())
    sent = [row for body in hooks.held.values() for row in body]
    assert sorted((row["sensor"], row["count"], row["total"]) for row in sent) == expected
    assert {headers["Authorization"] for _, headers, _ in hooks.asked} == {VALUE}
    table = deltalake.DeltaTable(str(path.parent / "sums.delta")).to_pyarrow_table().to_pylist()
    assert sorted((row["sensor"], row["count"], row["total"]) for row in table) == expected
    holding = [one for one in tmp_path.rglob("*") if one.is_file() and VALUE.encode() in one.read_bytes()]
    assert holding == [wanted.state / "secrets" / "hooked" / "token"]
