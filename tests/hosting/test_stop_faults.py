"""Faults planted into where micro-batches end that are made again after a loss of power: random flows without
Spark find each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from geartrain_cloud.hosting.steering import Steering, SteeringFile, Stop
from tests.hosting.in_process import Seen, check_flow

FLOWS = 4
LOSSES = 20


def change_stops(patch: pytest.MonkeyPatch, change: Callable[[tuple[Stop, ...]], tuple[Stop, ...]]) -> None:
    """Spoil what is noted of where stores stand."""
    save = SteeringFile.save

    def saved(file: SteeringFile, steering: Steering) -> None:
        steering.stops = {name: change(stops) for name, stops in steering.stops.items()}
        save(file, steering)

    patch.setattr(SteeringFile, "save", saved)


def divide_what_one_store_alone_has(patch: pytest.MonkeyPatch) -> None:
    change_stops(patch, lambda stops: tuple(replace(one, undivided=False) for one in stops))


def forget_the_store_that_is_ahead(patch: pytest.MonkeyPatch) -> None:
    change_stops(patch, lambda stops: tuple(one for one in stops if not one.undivided))


def forget_where_the_tables_stand(patch: pytest.MonkeyPatch) -> None:
    change_stops(patch, lambda _: ())


def take_a_former_micro_batch_for_the_newest(patch: pytest.MonkeyPatch) -> None:
    """As one that is parked once more would be."""

    def former(stops: tuple[Stop, ...]) -> tuple[Stop, ...]:
        return tuple(
            replace(one, positions={key: max(0, at - 1) for key, at in one.positions.items()})
            for one in stops
            if not one.undivided
        )

    change_stops(patch, former)


FOUND_BY: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    divide_what_one_store_alone_has: 1,
    forget_the_store_that_is_ahead: 1,
    forget_where_the_tables_stand: 0,
    take_a_former_micro_batch_for_the_newest: 0,
}
"""The number of the first flow that finds a fault."""


def test_what_one_store_alone_had_is_in_each_store_once(tmp_path: Path) -> None:
    seen = Seen()
    for number in range(FLOWS):
        seen.add(check_flow(tmp_path / str(number), number, schedules=1, losses=LOSSES))
    assert seen.lost > FLOWS
    assert seen.ahead > 3


@pytest.mark.parametrize(("fault", "number"), FOUND_BY.items())
def test_the_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None], number: int
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check_flow(tmp_path, number, schedules=1, losses=LOSSES)
