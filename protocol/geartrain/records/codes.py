"""The codes of dead letters: what kind of refusal each is, for programs.

Beside each dead letter on its way, from the place that refuses to the tables. Guarantees: a program compares
codes and never a reason, whose words may change. docs/dead_letters.md lists every code with its meaning; a
test compares that list with this module and with the codes that sources give.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from geartrain.errors import SchemaError, WireError

CODE = re.compile(r"[a-z][a-z0-9_]{0,39}")
"""What a code looks like, those of users' own sources included."""


class Code(StrEnum):
    """The codes that the runtime and the stores give. Sources have codes of their own beside these."""

    LATE = "late"
    OVERTAKEN = "overtaken"
    MISTIMED = "mistimed"
    BEFORE_1970 = "before_1970"
    IN_FUTURE = "in_future"
    WRONG_TYPE = "wrong_type"
    USER_ERROR = "user_error"
    BAD_DEVICE_NAME = "bad_device_name"
    NO_WINDOW = "no_window"
    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"
    UNWRITABLE = "unwritable"
    NOT_UPGRADED = "not_upgraded"
    GIVEN_UP = "given_up"
    STATE_NOT_TAKEN = "state_not_taken"
    NO_DEVICE = "no_device"
    DEVICE_FULL = "device_full"
    NOT_DELIVERED = "not_delivered"
    STORE_REFUSED = "store_refused"
    NOT_STORABLE = "not_storable"


class Refusal(NamedTuple):
    """Why something is refused: code for programs, reason for people, one sentence."""

    code: str
    reason: str


def code_of(error: BaseException) -> Code:
    """The code of a record for which a call raised `error`."""
    if isinstance(error, SchemaError):
        return Code.WRONG_TYPE
    return Code.BAD_DEVICE_NAME if isinstance(error, WireError) else Code.USER_ERROR
