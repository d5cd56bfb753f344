"""Errors of the cloud's own parts for which the protocol package has no class; each says what to do."""

from __future__ import annotations

from signal import Signals

from geartrain.errors import GeartrainError


class BrokerError(GeartrainError):
    """No broker could be found, started or reached."""


class SupervisorError(GeartrainError):
    """A process died too often, or could not be started; carries the last lines of its log."""


class StateError(GeartrainError):
    """A state folder cannot be used: it belongs to another run, or another program is using it."""


class StoppedError(GeartrainError):
    """A signal asked the run to end before it was done; what there is can be resumed."""

    def __init__(self, received: Signals) -> None:
        super().__init__(f"stopped by {received.name}")
        self.received = received


class DeadLettersError(GeartrainError):
    """A run has ended, but too many of its records became dead letters, or a source held none."""


class PageError(GeartrainError):
    """The page of a demo cannot be served."""


class CertificateError(GeartrainError):
    """A certificate cannot be issued or revoked as it was asked for."""
