"""Errors of the cloud's own parts that the protocol package has no class for; each says what to do."""

from __future__ import annotations

from geartrain.errors import GeartrainError


class BrokerError(GeartrainError):
    """No broker could be found, started or reached."""


class SupervisorError(GeartrainError):
    """A process died too often, or could not be started; carries the last lines of its log."""


class DataError(GeartrainError):
    """What a user handed in cannot be used as data: a file that is missing or has other columns."""


class PageError(GeartrainError):
    """The page of a demo cannot be served."""
