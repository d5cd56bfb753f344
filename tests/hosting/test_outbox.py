"""A hosted flow's outbox, whose rows are named where its code runs, equals one that runs the code itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from geartrain.operators.deal import Deal
from geartrain.planning import Plan
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.testing import SeededRandomness
from geartrain_cloud.downlink.writer import DownChannel, NamedChannel, OutboxWriter
from geartrain_cloud.hosting.dealing import Dealing
from geartrain_cloud.hosting.outbox import SilentOutbox
from geartrain_cloud.hosting.prepared import SinkSaid
from geartrain_cloud.log.pack import pack, unpack
from geartrain_cloud.sinks.opening import OutgoingSink, SinkPlace, open_places, sink_places
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.tables import rows
from geartrain_cloud.spark.compile import HOSTED, hosted_query
from tests.down.world import columns, plan_of

COMMANDS = [("d1", 1), ("d2", 2), ("unknown", 3), ("d1", 4), ("d2", 5)]


def outbox(path: Path, channel: DownChannel | NamedChannel, stream: str) -> OutboxWriter:
    return OutboxWriter(
        path,
        "loop",
        {stream: channel},
        lambda: ["d1", "d2"],
        lambda query, at: 9_000_000,
        SeededRandomness(3),
    )


def filled(folder: Path, plan: Plan, channel: DownChannel | NamedChannel, batch: ColumnBatch) -> list[Any]:
    """All that lies in the outbox, and the dead letters, after two micro-batches."""
    (down,) = plan.down
    place = SinkPlace(down.id, OutgoingSink(down.id), down.schema)
    opened = open_places(
        "loop",
        [place],
        SqliteTables(folder / "t.sqlite"),
        folder,
        lambda: outbox(folder / "o.sqlite", channel, down.id),
    )
    opened.attach(HOSTED, "identity", has_run=False)
    for count in range(2):
        opened.write(HOSTED, count, {"0": count + 1}, {down.id: [batch] if not count else []})
    opened.close()
    with closing(sqlite3.connect(folder / "o.sqlite")) as database:
        held = [database.execute(f"SELECT * FROM {table}").fetchall() for table in _TABLES]
    return [*held, rows(folder / "t.sqlite", "dead_letters")]


_TABLES = ("lanes", "batches", "returned", "watermarks")


def test_rows_that_were_named_before_lie_in_the_outbox_as_others(tmp_path: Path) -> None:
    plan = plan_of()
    (down,) = plan.down
    deal = plan.graph[down.id].operator
    assert isinstance(deal, Deal)
    query, batch = hosted_query(plan), columns(COMMANDS)
    dealing = Dealing(query)
    assert dealing.streams == {down.id}
    packed = pack(batch)
    assert dealing.named(1, down.id, packed) == packed  # on its way to a stage, not to the outbox
    named = unpack(dealing.named(0, down.id, packed))
    assert named.fields[-1] == [device for device, _ in COMMANDS]
    own = DownChannel(deal, RowCodec(down.kind), HOSTED, is_timed=False)
    with_code = filled(tmp_path / "with", plan, own, batch)
    without = filled(tmp_path / "without", plan, NamedChannel(down.schema, HOSTED, is_timed=False), named)
    assert without == with_code
    assert len(with_code[1]) >= 2
    (letter,) = without[-1]
    assert letter["step"] == down.id
    assert "no device 'unknown' is assigned" in letter["reason"]


def test_a_row_that_names_no_device_is_a_letter_of_its_own_columns(tmp_path: Path) -> None:
    plan = plan_of()
    (down,) = plan.down
    batch = columns([("d1", 1), ("d2", 2)])
    batch.fields = [*batch.fields, ["d1", ""]]
    found = filled(tmp_path, plan, NamedChannel(down.schema, HOSTED, is_timed=False), batch)
    (letter,) = found[-1]
    assert "the record names no device" in letter["reason"]
    assert "tank" in bytes.fromhex(letter["raw"]).decode()


def test_a_run_whose_rows_were_sent_refuses_the_same_and_sends_nothing(tmp_path: Path) -> None:
    plan = plan_of()
    (down,) = plan.down
    batch = columns([("d1", 1), ("d2", 2), ("d1", 3)])
    batch.fields = [*batch.fields, ["d1", "", "d1"]]
    channel = NamedChannel(down.schema, HOSTED, is_timed=False)
    sent = filled(tmp_path / "sent", plan, channel, batch)
    place = SinkPlace(down.id, OutgoingSink(down.id), down.schema)
    own = SqliteTables(tmp_path / "t.sqlite")
    silent = open_places("loop", [place], own, tmp_path, lambda: SilentOutbox({down.id: channel}))
    silent.attach(HOSTED, "another", has_run=False)
    assert silent.write(HOSTED, 0, {"0": 1}, {down.id: [batch]})
    silent.close()
    assert rows(tmp_path / "t.sqlite", "dead_letters") == sent[-1]
    assert len(sent[-1]) == 1


def test_sinks_as_data_are_the_sinks(tmp_path: Path) -> None:
    places: Sequence[SinkPlace] = [one for one in sink_places(plan_of().graph) if one.id == "readings_table"]
    assert [SinkSaid.of(one).place() for one in places] == list(places)
