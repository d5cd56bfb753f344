"""The errors of the agent that the protocol package does not define."""

from __future__ import annotations

import time
from enum import StrEnum

from geartrain.errors import GeartrainError, SpoolError


def own_clock() -> str:
    """How a sentence begins about an end that this device's clock, which may be wrong, has seen."""
    return f"by this device's clock ({time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC)"


class AlarmCode(StrEnum):
    """What an agent raises an alarm for, or why its records stay in the spool."""

    SET_BACK = "set_back"
    OTHER_HISTORY = "other_history"
    DAMAGED_BATCH = "damaged_batch"
    HELD = "held"
    DENIED = "denied"
    DISK_IS_LOW = "disk_is_low"
    TIME_UNKNOWN = "time_unknown"


class AlarmError(GeartrainError):
    """The data centre knows another spool than this one: the agent must neither go on nor be restarted.
    code: what is wrong, for programs (`AlarmCode`).
    """

    def __init__(self, sentence: str, code: str = "") -> None:
        super().__init__(sentence)
        self.code = code


class ChangedFlowError(SpoolError):
    """The spool was begun with another version of the flow, or another cut: a new start does not help."""


class DeliveryError(GeartrainError):
    """A sink on the device cannot be used."""


class SecretError(GeartrainError):
    """A secret is missing, cannot be taken, or has a new value."""


class StartError(GeartrainError):
    """The system gives no process for an app now."""
