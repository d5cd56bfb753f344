"""Cells on their way: pieces, batches, what identifies a move, and what is not taken in."""

from __future__ import annotations

import pytest

from geartrain.errors import SchemaError, StepError
from geartrain.records.keys import encode_key
from geartrain.schema import derive
from geartrain.state.keyed import NEVER, DictBackend, KeyedState, saved_cell
from geartrain.state.moving import (
    Arriving,
    Cells,
    StateCell,
    batches,
    check_size,
    manifest,
    records,
    taken_in,
)

KEY, OTHER = encode_key("a"), encode_key(("b", 7))


def _cells() -> Cells:
    return {
        ("count", KEY): saved_cell(NEVER, b"\x05"),
        ("count", OTHER): saved_cell(9, b"\x06"),
        ("long", KEY): saved_cell(-3, b"\xc4\xc8" + bytes(range(200))),
    }


def test_cells_travel_in_pieces_and_come_together_whatever_is_doubled() -> None:
    arriving = Arriving(manifest(_cells()))
    sent = list(records(_cells(), 30))
    assert len(sent) == 2 + 7
    for record in sent:
        assert not arriving.complete
        arriving.take(record)
        arriving.take(record)
    assert arriving.cells() == _cells()
    assert arriving.ignored == len(sent)


def test_a_move_without_cells_is_complete() -> None:
    assert Arriving(manifest({})).cells() == {}


def test_a_cell_is_a_record_of_the_wire() -> None:
    assert [field.name for field in derive(StateCell).fields] == ["step", "key", "offset", "size", "cell"]


def test_batches_are_bounded() -> None:
    sent = list(records(_cells(), 30))
    found = list(batches(sent, 2, 200))
    assert [record for batch in found for record in batch] == sent
    assert max(map(len, found)) == 2
    assert [len(batch) for batch in batches(sent, 100, 1)] == [1] * len(sent)


def test_what_is_lost_on_the_way_is_found() -> None:
    for missing in range(9):
        arriving = Arriving(manifest(_cells()))
        for at, record in enumerate(records(_cells(), 30)):
            if at != missing:
                arriving.take(record)
        assert not arriving.complete
        with pytest.raises(StepError, match="it stays where it was"):
            arriving.cells()


def test_other_bytes_than_those_that_left_are_not_given_out() -> None:
    arriving = Arriving(manifest(_cells()))
    for record in records({**_cells(), ("count", KEY): saved_cell(NEVER, b"\x07")}):
        arriving.take(record)
    with pytest.raises(StepError, match="not those that left"):
        arriving.cells()


def test_more_than_left_is_refused() -> None:
    arriving = Arriving(manifest({("count", KEY): saved_cell(NEVER, b"\x05")}))
    first, second, *_ = records(_cells())
    arriving.take(first)
    with pytest.raises(StepError, match="1 keys and 9 bytes"):
        arriving.take(second)


def test_a_move_that_is_too_large_is_refused_with_figures() -> None:
    check_size(_cells())
    with pytest.raises(StepError, match="count has 2 keys of 18 bytes, long has 1 keys of 210 bytes"):
        check_size(_cells(), cells_max=2)
    with pytest.raises(StepError, match="227 bytes are the most"):
        check_size(_cells(), bytes_max=227)


def _state() -> KeyedState:
    state = KeyedState(DictBackend())
    state.of_step("count", int)
    state.of_step("long", bytes)
    return state


def test_cells_whose_keys_are_free_are_taken_in() -> None:
    counters: dict[str, int] = {}
    arrived = taken_in(_cells(), lambda step, key: None, _state().check, counters)
    assert arrived.cells == _cells()
    assert not arrived.refused
    assert counters == {"count.state_taken": 2, "long.state_taken": 1}


def test_a_key_that_is_held_for_another_device_is_set_aside_and_counted() -> None:
    counters: dict[str, int] = {}

    def holder(step: str, key: bytes) -> str | None:
        return "truck-2" if (step, key) == ("count", OTHER) else None

    arrived = taken_in(_cells(), holder, _state().check, counters)
    (refused,) = arrived.refused
    assert (
        refused.reason == "step 'count': the key ('b', 7) is held for truck-2: its moved state is set aside"
    )
    assert refused.cell == _cells()["count", OTHER]
    assert ("count", OTHER) not in arrived.cells
    assert counters == {"count.state_taken": 1, "count.state_refused": 1, "long.state_taken": 1}


@pytest.mark.parametrize(
    ("step", "key", "cell", "reason"),
    [
        (
            "count",
            KEY,
            saved_cell(NEVER, b"\xc4\x01a"),
            "the key 'a': the saved state of step 'count' cannot",
        ),
        ("count", KEY, b"1234", "the key 'a': the saved state of step 'count' is cut off after 4 bytes"),
        ("gone", KEY, saved_cell(NEVER, b"\x01"), "the key 'a': step 'gone' keeps no state here"),
        ("count", b"\x09", saved_cell(NEVER, b"\x01"), "step 'count': a moved state has no key that can be"),
    ],
)
def test_a_cell_that_cannot_be_read_stays_outside_with_a_sentence(
    step: str, key: bytes, cell: bytes, reason: str
) -> None:
    arrived = taken_in({(step, key): cell}, lambda step, key: None, _state().check, {})
    assert not arrived.cells
    assert arrived.refused[0].reason.startswith(reason)


def test_many_refusals_take_nothing() -> None:
    with pytest.raises(StepError, match="more than 2 keys"):
        taken_in(_cells(), lambda step, key: "truck-2", _state().check, {}, set_aside_max=2)


def test_a_cell_of_another_type_is_no_state() -> None:
    with pytest.raises(SchemaError):
        _state().check("long", saved_cell(NEVER, b"\x05"))
