"""Dead letters and late records as records: what travels on the channels `_dead_letters` and `_late`.

Both go the way of all records: through the spool, over the wire, into the log and into a table of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from geartrain.records.batch import Batch, DeadLetter
from geartrain.records.record import Record


class Letter(Record):
    """One refused or late record; its time and origin are those of the record (time 0 where it had none).

    step: the id of the step that refused it; code: what kind of refusal it is, of geartrain.records.codes or
    of a source; reason: one sentence; raw: the input's bytes.
    """

    step: str
    code: str
    reason: str
    raw: bytes


RAW_BYTES_MAX = 65_536
"""Raw bytes kept of one dead letter; a longer input is cut here and its reason says so."""


def to_batch(letters: Sequence[DeadLetter]) -> Batch:
    """The letters as a batch of `Letter` records."""
    return Batch(
        [_letter(x) for x in letters],
        [0 if x.event_time is None else x.event_time for x in letters],
        [x.origin.name for x in letters],
        [x.origin.number for x in letters],
        [x.origin.path for x in letters],
    )


def _letter(letter: DeadLetter) -> Letter:
    code, reason = str(letter.code), letter.reason
    if (
        not reason.isascii()
    ):  # it may quote an error of a user's, and a lone surrogate has no place in a table
        reason = reason.encode(errors="backslashreplace").decode()
    if len(letter.raw) <= RAW_BYTES_MAX:
        return Letter(letter.step, code, reason, letter.raw)
    cut = f"{reason} (raw cut from {len(letter.raw)} bytes)"
    return Letter(letter.step, code, cut, letter.raw[:RAW_BYTES_MAX])
