"""What can stop a host or keep a flow out of it; each error is one sentence."""

from __future__ import annotations

from geartrain.errors import GeartrainError


class HostError(GeartrainError):
    """The host cannot start or go on; says what is wrong and what to do."""


class NotYetError(HostError):
    """A flow cannot go over just now, for a reason that passes."""


class OtherProgramError(HostError):
    """A flow was prepared by another version of this program, whose pickles are none of ours."""


class ParkedError(HostError):
    """Rows that wait for a flow's tables cannot be read; the file may come back."""


class PreparationError(HostError):
    """A flow cannot be hosted as it is asked for; names it."""
