"""Errors of the cloud's own parts for which the protocol package has no class; each says what to do."""

from __future__ import annotations

from geartrain.errors import GeartrainError, LedgerError, MistakeError


class BrokerError(GeartrainError):
    """No broker could be found, started or reached."""


class PortError(GeartrainError):
    """A port that the configuration names cannot be listened on."""


class SupervisorError(GeartrainError):
    """A process died too often, or could not be started; carries the last lines of its log."""


class FullDiskError(SupervisorError):
    """The disk of a file in the state folder has no room for it."""


class StateError(MistakeError):
    """A state folder cannot be used: it belongs to another run, or another program is using it."""


class AbsentError(LedgerError, MistakeError):
    """There is nothing of this name or number in the log, its quarantine or its dead letters."""


class PageError(GeartrainError):
    """The page of a demo cannot be served."""


class CertificateError(MistakeError):
    """A certificate cannot be issued or revoked as it was asked for."""


class TrustError(MistakeError):
    """Signed metadata or a bundle that the platform does not take; says what is wrong with it."""


class TrustConflictError(TrustError):
    """Somebody else has signed the next version meanwhile: fetch it, and sign again."""
