"""Why a bundle is not on a device, as an error with one sentence."""

from __future__ import annotations

from geartrain.errors import GeartrainError


class FetchError(GeartrainError):
    """A bundle could not be had, or was refused; it is tried again later."""


class RefusedError(FetchError):
    """What was had cannot run here, and would not another time."""
