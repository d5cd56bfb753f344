"""All scenarios of the fault suite: importing this module enters them."""

from __future__ import annotations

from tests.process.registry import SCENARIOS
from tests.process.scenarios import (
    broker,
    clocks,
    days,
    disks,
    fleet,
    full,
    hostile,
    identity,
    kills,
    network,
    sparks,
    versions,
)

__all__ = [
    "SCENARIOS",
    "broker",
    "clocks",
    "days",
    "disks",
    "fleet",
    "full",
    "hostile",
    "identity",
    "kills",
    "network",
    "sparks",
    "versions",
]
