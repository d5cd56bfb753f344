"""Why a device cannot join or renew, as far as it is told apart."""

from __future__ import annotations

from geartrain.errors import ConfigError, GeartrainError


class JoinError(ConfigError):
    """It cannot, and to try it again does not help."""


class NotYetError(GeartrainError):
    """It cannot now: there is no network, or the clock is not set."""
