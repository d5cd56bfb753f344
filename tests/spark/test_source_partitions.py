"""The reader over a log of several partitions: all of them, each row once, positions and clocks onward."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows

from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain_cloud.log.pack import ipc_to_table
from geartrain_cloud.spark.clocks import decode_clocks
from geartrain_cloud.spark.source import LogStreamReader
from tests.cloud.fleet import FLOW, TestDevice, running
from tests.cloud.test_partitions import config_of, named

PARTITIONS = 3


def make_log(folder: Path) -> None:
    devices = [TestDevice(named(0, PARTITIONS)), TestDevice(named(2, PARTITIONS))]

    async def run() -> None:
        names = (devices[0].name, devices[1].name)
        async with running(config_of(folder, PARTITIONS, names, group_commit_ms=1)) as world:
            for device in devices:
                world.net.deliver(device.topic, device.schemas())
            for turn in range(8):
                device = devices[turn % 2]
                world.net.deliver(device.topic, device.quotes(*(float(turn * 10 + i) for i in range(3))))
                await world.net.acked(device)
            for device in devices:
                world.net.deliver(device.topic, device.end())
                await world.net.acked(device)

    asyncio.run(run())


def test_all_partitions_are_read_in_bounded_micro_batches(tmp_path: Path) -> None:
    make_log(tmp_path)
    options = {"log": str(tmp_path), "flow": FLOW, "channels": json.dumps(["quotes"])}
    source = LogStreamReader(options | {"rows_max": "3", "readers": "2"})
    end = source.initialOffset()
    assert end == {"0": 0, "1": 0, "2": 0}
    prices: list[Any] = []
    clocks: list[int] = []
    while True:
        start, end = end, source.latestOffset(end, ReadMaxRows(3))
        if end == start:
            break
        rows = [
            row
            for span in source.partitions(start, end)
            for batch in source.read(span)
            for row in batch.to_pylist()
        ]
        clocks.append(decode_clocks(rows[0]["clocks"]).get("quotes", START_OF_TIME))
        before = dict(start)
        for row in rows[1:]:
            assert row["channel"] == "quotes"
            assert before[row["partition"]] < row["position"] <= end[row["partition"]]
            before[row["partition"]] = row["position"]
            prices += ipc_to_table(row["packed"]).column("price").to_pylist()
        assert sum(start.values()) < sum(end.values())
    assert sorted(prices) == sorted(float(turn * 10 + i) for turn in range(8) for i in range(3))
    assert clocks == sorted(clocks)
    assert clocks[-1] == END_OF_TIME
