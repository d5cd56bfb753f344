"""What a split notes is in the spool with the rows of its read, and found again by the next life."""

from __future__ import annotations

import pytest

from geartrain.errors import SourceError
from geartrain_edge.sources import notes
from geartrain_edge.sources.notes import NOTES, Notes

SPLIT = ("s", "d1/s")


def test_a_note_is_written_once_and_found_again() -> None:
    first = Notes()
    first.hold_notes(SPLIT, {b"a": b"1", b"b": b"2"})
    first.hold_notes(SPLIT, {b"a": b"3", b"b": None})
    changes = first.changes()
    assert sorted(value or b"" for value in changes.values()) == [b"", b"3"]
    assert first.changes() == {}
    state = {at: value for at, value in changes.items() if value is not None}
    again = Notes()
    again.restore({**state, ("s", b"key"): b"of a step"}, ["s"])
    assert (again.of(SPLIT), again.of(("s", "other")), again.changes()) == ({b"a": b"3"}, {}, {})
    gone = Notes()
    gone.restore(state, ["another"])
    assert gone.changes() == dict.fromkeys(state)
    assert {step for step, _ in changes} == {NOTES}


def test_a_split_notes_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "NOTES_MAX", 2)
    held = Notes()
    held.hold_notes(SPLIT, {b"a": b"1", b"b": b"1"})
    with pytest.raises(SourceError, match="source s, split d1/s: it has more than 2 notes"):
        held.hold_notes(SPLIT, {b"c": b"1"})
