"""The errors of the agent that the protocol package has no word for."""

from __future__ import annotations

from geartrain.errors import GeartrainError


class AlarmError(GeartrainError):
    """The data centre knows another spool than this one: the agent must neither go on nor be restarted."""


class DeliveryError(GeartrainError):
    """A sink on the device cannot be used."""
