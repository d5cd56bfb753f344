"""Why something that a source has read is no record: a sentence for people, and a code for programs.

Under every source, which makes a `Reject` of both. Guarantees: a code means the same in every source, and
what the user's own constructor raises has both as well.
"""

from __future__ import annotations

from typing import Final

from geartrain.graph.conform import describe
from geartrain.records.codes import Refusal

NOT_A_RECORD: Final = "not_a_record"
"""The code of a reject for a reason that has no code of its own."""
NOT_JSON: Final = "not_json"
"""The code of a reject that is no JSON."""
NAN: Final = "nan"
"""The code of a reject that holds NaN or infinity, where the option `nan` is not set."""
BAD_TIME: Final = "bad_time"
"""The code of a reject whose event time cannot be read."""
BAD_VALUE: Final = "bad_value"
"""The code of a reject with a value that does not fit its field."""
MISSING_VALUE: Final = "missing_value"
"""The code of a reject without a value that a field must have."""


class NoRecordError(ValueError):
    """What was read is no record, or a part of it no value.

    Args:
        text: a sentence, or the half of one of which the part is the subject.
        code: for `Reject.code`.
    """

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


def code_of(error: BaseException, otherwise: str = NOT_A_RECORD) -> str:
    """The code of what was raised while a record was made; otherwise: that of an error without one."""
    return str(getattr(error, "code", otherwise)) if isinstance(error, ValueError) else otherwise


def refusal_of(error: BaseException) -> Refusal:
    """The code and the sentence of what was raised while a record was made, by a source or by the user's own
    constructor.
    """
    return Refusal(code_of(error), str(error) if isinstance(error, ValueError) else describe(error))
