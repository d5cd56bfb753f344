"""The errors of the agent that the protocol package does not define."""

from __future__ import annotations

import time

from geartrain.errors import GeartrainError, SpoolError


def own_clock() -> str:
    """How a sentence begins about an end that this device's clock, which may be wrong, has seen."""
    return f"by this device's clock ({time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC)"


class AlarmError(GeartrainError):
    """The data centre knows another spool than this one: the agent must neither go on nor be restarted."""


class ChangedFlowError(SpoolError):
    """The spool was begun with another version of the flow, or another cut: a new start does not help."""


class DeliveryError(GeartrainError):
    """A sink on the device cannot be used."""


class SecretError(GeartrainError):
    """A secret is missing, cannot be taken, or has a new value."""


class StartError(GeartrainError):
    """The system gives no process for an app now."""
