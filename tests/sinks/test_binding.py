"""Whether a store and a checkpoint belong together, and which micro-batch is next: for every store."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain.records.record import Record
from geartrain.schema import derive
from geartrain.sinks import ParquetTable
from geartrain_cloud.downlink.errors import OutboxError
from geartrain_cloud.sinks.binding import NOTHING, Binding, Mark
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.parquet import ParquetTables

BINDING = Binding("query 'q'", "the place", "file")
HELD = Mark("c", 4, {"a": 10, "b": 7})


@pytest.mark.parametrize(
    ("held", "checkpoint", "has_run", "expected"),
    [
        (None, "c", False, True),
        (Mark("other", -1, {}), "c", False, True),
        (Mark("c", -1, {}), "c", False, False),
        (HELD, "c", True, False),
        (HELD, "c", False, False),
        (
            HELD,
            "other",
            False,
            "the place holds what query 'q' wrote up to micro-batch 4, but its checkpoint",
        ),
        (None, "c", True, "the checkpoint of query 'q' goes on from an earlier run, but the place holds not"),
        (
            Mark("other", -1, {}),
            "c",
            True,
            "goes on from an earlier run, .*: bring the file back, or have gear replay",
        ),
    ],
)
def test_store_and_checkpoint_belong_together_or_are_refused(
    held: Mark | None, checkpoint: str, has_run: bool, expected: bool | str
) -> None:
    if isinstance(expected, bool):
        assert BINDING.check_checkpoint(held, checkpoint, has_run=has_run) is expected
        return
    with pytest.raises(TableError, match=expected):
        BINDING.check_checkpoint(held, checkpoint, has_run=has_run)


@pytest.mark.parametrize(
    ("batch_id", "positions", "expected"),
    [
        (5, {"a": 10, "b": 7}, False),
        (5, {"a": 11, "b": 7, "new": 1}, False),
        (4, {"a": 10, "b": 7}, True),
        (2, {"a": 1, "b": 1}, True),
        (4, {"a": 9, "b": 7}, "repeats micro-batch 4 with other positions than the place holds"),
        (6, {"a": 12, "b": 7}, "brings micro-batch 6, but the place holds them only up to 4"),
        (5, {"a": 12, "b": 6}, "channel 'b': micro-batch 5 ends at position 6, .* is already at 7"),
        (5, {"a": 12}, "channel 'b': micro-batch 5 ends at position None"),
    ],
)
def test_micro_batch_is_held_or_the_next_or_refused(
    batch_id: int, positions: dict[str, int], expected: bool | str
) -> None:
    if isinstance(expected, bool):
        assert BINDING.holds(HELD, batch_id, positions) is expected
        return
    with pytest.raises(TableError, match=expected):
        BINDING.holds(HELD, batch_id, positions)


def test_a_store_that_holds_nothing_takes_the_first_micro_batch_only() -> None:
    assert BINDING.holds(NOTHING, 0, {"a": 1}) is False
    with pytest.raises(OutboxError, match="holds them only up to -1"):
        Binding("query 'q'", "the outbox", "file", OutboxError).holds(NOTHING, 1, {"a": 1})


class Trade(Record):
    """A row."""

    price: int


def parquet(folder: Path) -> ParquetTables:
    store = ParquetTables(folder)
    store.declare("sink", ParquetTable("trades"), derive(Trade))
    return store


def test_a_micro_batch_that_was_planned_anew_is_refused_by_parquet_too(tmp_path: Path) -> None:
    store = parquet(tmp_path)
    store.attach("q", "c", has_run=False)
    store.write("q", 0, {"a": 3}, {})
    with pytest.raises(TableError, match="repeats micro-batch 0 with other positions"):
        store.write("q", 0, {"a": 2}, {})
