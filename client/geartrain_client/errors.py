"""Errors of the command line; each says what to do."""

from __future__ import annotations

from signal import Signals

from geartrain.errors import GeartrainError, MistakeError


class StoppedError(GeartrainError):
    """A signal asked the run to end before it was done; what there is can be resumed. what: holds then."""

    def __init__(self, received: Signals, what: str = "") -> None:
        super().__init__(f"stopped by {received.name}; {what}" if what else f"stopped by {received.name}")
        self.received = received


class DeadLettersError(GeartrainError):
    """A run has ended, but too many of its records became dead letters, or a source held none."""


class UnreachableError(GeartrainError):
    """The platform does not answer: it was not started, is elsewhere, or takes too long (`timed_out`)."""

    def __init__(self, sentence: str, *, timed_out: bool = False) -> None:
        super().__init__(sentence)
        self.timed_out = timed_out


class RefusedError(MistakeError):
    """The platform refuses what was asked for. status: of HTTP; code: a word for programs."""

    def __init__(self, sentence: str, status: int = 400, code: str = "") -> None:
        super().__init__(sentence)
        self.status, self.code = status, code


class FailedError(GeartrainError):
    """The platform could not do what was asked for; status and code as for `RefusedError`."""

    def __init__(self, sentence: str, status: int = 500, code: str = "") -> None:
        super().__init__(sentence)
        self.status, self.code = status, code
