"""Why an entry of the log was made: data that is read back, and a sentence for each code."""

from __future__ import annotations

from typing import Any

import pytest

from geartrain.errors import LedgerError
from geartrain.errors.reason import NO_REASON, Reason, decode_reason, encode_reason, make_reason
from geartrain.wire.crossing import Crossing
from geartrain_cloud.log.entry_reasons import (
    EntryCode,
    crossing_reason,
    dropped_reason,
    entry_sentence,
    number_of,
    runs_of,
)
from geartrain_cloud.log.tables import read_reason

RUNS = Crossing(("high", "quotes"), ("quotes",), "ab" * 32, 1_234_567_890)
DETAILS: dict[str, dict[str, Any]] = {
    EntryCode.CROSSINGS_LOST: {"first": 3, "last": 4},
    EntryCode.LATER_EPOCH: {"ordinal": 2, "ended_at": 7},
    EntryCode.BATCHES_LOST: {"first": 3, "last": 4},
    EntryCode.DEVICE_DROPPED: {"count": 2, "before": 9},
    EntryCode.RETIRED_DEVICE: {"count": 2},
    EntryCode.SILENT: {"limit_s": 2.5},
    EntryCode.NOT_JOINED: {"limit_s": 2.5},
    EntryCode.REVISION: {"number": 2},
    EntryCode.OTHERS_FOLLOWED: {"sources": ["a", "b"]},
    EntryCode.ROWS_ERASED: {"count": 2, "channel": "sums"},
}


@pytest.mark.parametrize("code", EntryCode)
def test_each_code_has_a_sentence_of_its_own(code: EntryCode) -> None:
    reason = make_reason(code, **DETAILS.get(code, {}))
    assert decode_reason(encode_reason(reason)) == reason
    sentences = {entry_sentence(make_reason(one, **DETAILS.get(one, {}))) for one in EntryCode}
    assert entry_sentence(reason)
    assert len(sentences) == len(EntryCode)


@pytest.mark.parametrize("code", [EntryCode.CROSSING, EntryCode.FRESH_SPOOL, EntryCode.FIRST_EPOCH])
def test_what_a_device_runs_is_read_back_as_data(code: EntryCode) -> None:
    stored = read_reason(encode_reason(crossing_reason(RUNS, code)))
    assert (stored.code, runs_of(stored), number_of(stored)) == (code, RUNS, 1_234_567_890)
    assert entry_sentence(stored) == entry_sentence(crossing_reason(RUNS, code))
    damaged = read_reason(encode_reason(crossing_reason(None, code)))
    assert (runs_of(damaged), number_of(damaged)) == (None, 0)
    assert "cannot be decoded" in entry_sentence(damaged)


def test_a_gap_names_its_batches_and_a_batch_itself() -> None:
    gap, batch = dropped_reason(5, 3, 4, is_gap=True), dropped_reason(5, 3, 4, is_gap=False)
    assert (gap["count"], gap["first"], gap["last"]) == (5, 3, 4)
    assert dict(batch.details) == {"count": 5, "before": 4}
    assert entry_sentence(gap).startswith("5 records of the batches 3 to 4 were dropped")
    assert entry_sentence(batch).startswith("5 records before batch 4 were dropped")


def test_no_reason_is_empty_and_a_later_code_is_named() -> None:
    assert (encode_reason(NO_REASON), decode_reason(""), entry_sentence(NO_REASON)) == ("", NO_REASON, "")
    assert not NO_REASON
    assert entry_sentence(Reason("disk_burnt_down")) == "disk burnt down"


@pytest.mark.parametrize("text", ["what a former layout said", "[]", '{"code": 3}', '{"code": "a"'])
def test_what_is_no_reason_is_a_damaged_log(text: str) -> None:
    with pytest.raises(LedgerError, match=r"no reason: .*restore the log from a copy"):
        read_reason(text)
