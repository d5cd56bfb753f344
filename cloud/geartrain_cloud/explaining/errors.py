"""What an explanation refuses."""

from __future__ import annotations

from geartrain.errors import GeartrainError


class ExplainError(GeartrainError):
    """A question that cannot be answered; one sentence that says why, and what to do."""
