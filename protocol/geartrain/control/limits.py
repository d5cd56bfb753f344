"""Caps of the control lane, checked before anything from the network is decoded."""

from __future__ import annotations

import msgspec


class LaneLimits(msgspec.Struct, frozen=True):
    """state_bytes_max: one desired state; report_bytes_max: one reported state; apps_max: apps of a device,
    or instances whose folders go; options_chars_max: the options of an app; sources_max: the sources that a
    report names of an app; kept_max: the steps whose state it tells of; abilities_max: what a program says
    that it knows; text_chars_max: a flow, a cut or a version; why_chars_max: a sentence of a device;
    reasons_max: why an app does not run as it is to; details_max: of one such reason; secrets_max: secrets
    of a device; sealed_bytes_max: one of them, sealed; certificate_bytes_max: the certificate of a device.
    """

    state_bytes_max: int = 256 << 10
    report_bytes_max: int = 64 << 10
    apps_max: int = 64
    options_chars_max: int = 64 << 10
    sources_max: int = 64
    kept_max: int = 16
    abilities_max: int = 64
    text_chars_max: int = 4_096
    why_chars_max: int = 400
    reasons_max: int = 8
    details_max: int = 16
    secrets_max: int = 64
    sealed_bytes_max: int = 8_192
    certificate_bytes_max: int = 4_096

    @property
    def desired_bytes_max(self) -> int:
        """One publish to a device: a state and what answers its report."""
        return self.state_bytes_max + 1_024


LANE_LIMITS = LaneLimits()
