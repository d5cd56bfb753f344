"""Random flows whose devices go from cut to cut while the flow goes through revisions, without Spark, against
a reference that is given where each of them went over; and mistakes planted there, each of which is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.spark import buckets
from geartrain_cloud.spark.buckets import BucketState
from tests.hosting import moved_revisions
from tests.hosting.moved_revisions import Versions, check_flow
from tests.reference import moved_revisions as moved
from tests.reference.moved_revisions import Retired, Stands
from tests.reference.revisions import Life

FLOWS = (*range(12), 24, 30, 68, 88)
"""Of the last four, one refuses cells that leave a device as their step begins empty. In the second and third
a device is retired as the cells of a step leave it, and before a move. In the last a canary goes back amid a
claim.
"""


@pytest.mark.proof
def test_moves_and_revisions_in_one_run_give_what_the_reference_gives(tmp_path: Path) -> None:
    seen = Counter[str]()
    for number in FLOWS:
        check_flow(tmp_path / str(number), number, 1, seen)
    assert seen["flows"] > len(FLOWS) // 2, seen
    happened = ("taken", "left", "gone over", "replaced kept", "replaced dropped", "amid a claim")
    for what in (*happened, "cells refused"):
        assert seen[what], (what, seen)
    for what in ("canary went back", "canary back amid a claim", "broadcast scaled"):
        assert seen[what], (what, seen)
    for when in ("before a move", "amid a claim", "amid cells", "after a move"):
        assert seen[f"retired {when}"], (when, seen)


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


def what_a_retired_device_has_claimed_stays_aside(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moved_revisions.MovedLog, "_give_back", lambda *_: None)


def what_a_retired_device_has_not_sent_comes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moved_revisions.MovedLog, "_lose", lambda *_: None)


def cells_come_that_a_retired_device_has_not_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Life, "forget", lambda *_: None)


def steps_of_a_retired_device_go_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moved_revisions, "Retired", lambda runs, *rest: Retired(frozenset(), *rest))


def what_is_read_of_a_revision_gone_past_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moved._Run, "_keep_for_later", lambda *_: None)


def a_canary_goes_back_with_its_code(patch: pytest.MonkeyPatch) -> None:
    def versions(plans: list[Any], *rest: Any) -> Versions:
        if canary := rest[-1]:
            plans = [*plans[:canary], plans[canary - 1], *plans[canary + 1 :]]
        return Versions(plans, *rest)

    patch.setattr(moved_revisions, "Versions", versions)


def the_table_of_a_broadcast_is_dealt_by_its_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(buckets, "TABLE_KEY", b"none")


SCHEDULES = 4
FOUND_BY: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    a_device_keeps_what_a_revision_drops: 7,
    a_device_goes_on_with_state_as_it_was: 7,
    what_a_revision_drops_comes_in_all_the_same: 24,
    a_canary_goes_back_with_its_code: 29,
    the_table_of_a_broadcast_is_dealt_by_its_key: 1,
    what_a_retired_device_has_claimed_stays_aside: 28,
    devices_go_over_with_the_log: 1,
    no_cells_are_ahead_of_the_log: 32,
    claims_come_to_nothing: 32,
    what_a_retired_device_has_not_sent_comes: 82,
    cells_come_that_a_retired_device_has_not_sent: 44,
    steps_of_a_retired_device_go_on: 10,
    what_is_read_of_a_revision_gone_past_is_dropped: 7045,
}
"""The number of a flow that finds a mistake by one of its schedules; the last seven are mistakes
of the reference.
"""


@pytest.mark.parametrize(("fault", "number"), FOUND_BY.items())
def test_the_mistake_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None], number: int
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check_flow(tmp_path, number, SCHEDULES, Counter[str]())
