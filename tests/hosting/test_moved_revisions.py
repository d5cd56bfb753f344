"""Random flows whose devices go from cut to cut while the flow goes through revisions, without Spark, against
a reference that is given where each of them went over; and mistakes planted there, each of which is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from geartrain_cloud.spark.buckets import BucketState
from tests.hosting import moved_revisions
from tests.hosting.moved_revisions import check_flow
from tests.reference.moved_revisions import Stands

FLOWS = 10
REFUSES = 91
"""A flow of which cells that leave a device as their step begins empty are refused."""


def test_moves_and_revisions_in_one_run_give_what_the_reference_gives(tmp_path: Path) -> None:
    seen = Counter[str]()
    for number in (*range(FLOWS), REFUSES):
        check_flow(tmp_path / str(number), number, 1, seen)
    assert seen["flows"] > FLOWS // 2, seen
    happened = ("taken", "left", "gone over", "replaced kept", "replaced dropped", "amid a claim")
    for what in (*happened, "cells refused"):
        assert seen[what], (what, seen)


def a_device_keeps_what_a_revision_drops(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moved_revisions, "forgotten", lambda *_, **__: frozenset())


def a_device_goes_on_with_state_as_it_was(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moved_revisions, "migrated", lambda *_, **__: {})


def what_a_revision_drops_comes_in_all_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BucketState, "began", lambda *_: 0)


def devices_go_over_with_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stands, "runs", frozenset[str]())


def no_cells_are_ahead_of_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moved_revisions.Follower, "_note_ahead", lambda *_: None)


def claims_come_to_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stands, "runs", property(lambda self: self.edge))


FOUND_BY: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    a_device_keeps_what_a_revision_drops: 20,
    a_device_goes_on_with_state_as_it_was: 24,
    what_a_revision_drops_comes_in_all_the_same: REFUSES,
    devices_go_over_with_the_log: 1,
    no_cells_are_ahead_of_the_log: 25,
    claims_come_to_nothing: 45,
}
"""The number of the first flow that finds a mistake; the last three are mistakes of the reference."""


@pytest.mark.parametrize(("fault", "number"), FOUND_BY.items())
def test_the_mistake_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None], number: int
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check_flow(tmp_path, number, 1, Counter[str]())
