"""Faults planted into the way of state to other slots: random flows without Spark find each of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from geartrain_cloud.hosting import moving
from geartrain_cloud.hosting.source import HostReader
from geartrain_cloud.hosting.versions import Version, Versions
from geartrain_cloud.spark import buckets
from geartrain_cloud.spark.buckets import StateMap, join_state, split_state
from tests.hosting.in_process import check_flow

FLOWS = 48


def change_parts(patch: pytest.MonkeyPatch, spoil: Callable[[buckets._Part], None]) -> None:
    """Spoil what each slot writes for each new one."""

    def spoiled(state: StateMap, shards: int, count: int, tables: Collection[str]) -> list[bytes]:
        found = []
        for raw in split_state(state, shards, count, tables):
            part = buckets._decode_part(raw)
            spoil(part)
            found.append(buckets._encode(part))
        return found

    patch.setattr(moving, "split_state", spoiled)


def lose_a_cell(patch: pytest.MonkeyPatch) -> None:
    def spoil(part: buckets._Part) -> None:
        for number, steps in list(part.buckets.items())[:1]:
            step = min(steps)
            steps[step].popitem()
            part.buckets[number] = {step: cells for step, cells in steps.items() if cells}

    change_parts(patch, spoil)


def put_cells_into_other_buckets(patch: pytest.MonkeyPatch) -> None:
    def other(state: StateMap, shards: int, count: int, tables: Collection[str]) -> list[bytes]:
        return split_state(state, shards, count + 1, tables)

    patch.setattr(moving, "split_state", other)


def deal_tables_like_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moving, "split_state", lambda state, shards, count, _: split_state(state, shards, count))


def forget_due_times(patch: pytest.MonkeyPatch) -> None:
    def forgetful(state: StateMap, parts: Iterable[bytes]) -> int:
        count, place = join_state(state, parts), state.getValue((buckets._PLACE,))
        assert place is not None
        held = buckets._decode_place(bytes(place[0]))
        held.due = {}
        state.updateValue((buckets._PLACE,), (buckets._encode(held),))
        return count

    patch.setattr(moving, "join_state", forgetful)


def leave_a_former_slot_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moving, "join_state", lambda state, parts: join_state(state, list(parts)[:1]))


def read_on_while_state_is_written(patch: pytest.MonkeyPatch) -> None:
    latest, read = HostReader.latestOffset, Versions.read

    def stays(version: Version) -> Version:
        return replace(
            version, flows={name: replace(one, leaves_for=0) for name, one in version.flows.items()}
        )

    def reads_on(reader: HostReader, *given: object) -> dict[str, int]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Versions, "read", lambda versions, number: stays(read(versions, number)))
            return latest(reader, *given)  # type: ignore[arg-type]

    patch.setattr(HostReader, "latestOffset", reads_on)


@pytest.mark.parametrize(
    "fault",
    [
        lose_a_cell,
        put_cells_into_other_buckets,
        deal_tables_like_keys,
        forget_due_times,
        leave_a_former_slot_out,
        read_on_while_state_is_written,
    ],
)
def test_the_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    fault(monkeypatch)
    assert any(is_found(tmp_path / str(number), number) for number in range(FLOWS))


def is_found(folder: Path, number: int) -> bool:
    try:
        check_flow(folder, number, schedules=1)
    except AssertionError:
        return True
    return False
