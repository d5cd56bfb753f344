"""A world that is closed after the test, so that no task of it outlives it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from geartrain_simulation.machine.world import World


@pytest.fixture
def world() -> Iterator[World]:
    one = World(1)
    yield one
    one.close()
