"""Buckets of a shard: only what is touched or due is read and written."""

from __future__ import annotations

import random
from zlib import crc32

import msgspec

from geartrain.errors import SchemaError
from geartrain.records.keys import encode_key
from geartrain.state.keyed import NEVER
from geartrain_cloud.spark.buckets import (
    _PLACE,
    BUCKETS,
    Beside,
    BucketState,
    forget_steps,
    join_state,
    split_state,
    take_beside,
)
from geartrain_simulation.fleet.stage_run import StateMap


def cell(due: int, value: bytes) -> bytes:
    return (due + 2**63).to_bytes(8, "big") + value


def number(key: bytes) -> int:
    return crc32(key) // 3 % BUCKETS


def test_only_touched_buckets_are_read_and_written() -> None:
    state = StateMap()
    one, two = encode_key("one"), encode_key("two")
    assert number(one) != number(two)
    first = BucketState(state, 3)
    first.positions("s")["0"] = 4
    first.clocks = {"source": -7}
    cells = [cell(NEVER, text) for text in (b"1", b"2", b"3")]
    first.save({("step", one): cells[0], ("step", two): cells[1], ("other", one): cells[2]})
    state.reads, state.writes = [], []
    again = BucketState(state, 3)
    assert (again.positions("s"), again.clocks) == ({"0": 4}, {"source": -7})
    found = [again.load("step", one), again.load("other", one), again.load("nothing", one)]
    assert found == [cells[0], cells[2], None]
    again.save({("step", one): None})
    assert state.reads == [-1, number(one)]
    assert state.writes == [number(one), -1]
    assert BucketState(state, 3).load("step", one) is None
    assert BucketState(state, 3).load("step", two) == cells[1]


def test_cells_that_are_due_are_found_without_reading_the_other_buckets() -> None:
    state = StateMap()
    keys = {encode_key(f"key{n}"): n * 10 - 100 for n in range(200)}
    BucketState(state, 3).save({("step", key): cell(due, b"x") for key, due in keys.items()})
    state.reads = []
    saved = BucketState(state, 3)
    early = [key for key, due in keys.items() if due <= -70]
    assert sorted(saved.due("step", -70)) == sorted(early)
    assert list(saved.due("other", 10**6)) == []
    assert set(state.reads) == {-1, *map(number, early)}
    assert len(early) == 4
    # One is dropped and one put off: their buckets know the next due time.
    saved.drop("step", early[0])
    assert saved.load("step", early[0]) is None
    saved.save({("step", early[0]): None, ("step", early[1]): cell(5_000, b"y")})
    again = BucketState(state, 3)
    assert sorted(again.due("step", -70)) == sorted(early[2:])
    assert early[1] in set(again.due("step", 5_000))
    assert early[0] not in set(again.due("step", NEVER))


def test_a_step_without_cells_leaves_nothing_behind() -> None:
    state, key = StateMap(), encode_key("one")
    BucketState(state, 3).save({("step", key): cell(9, b"x")})
    before = len(state.values[-1])
    BucketState(state, 3).save({("step", key): None})
    assert list(BucketState(state, 3).due("step", NEVER)) == []
    assert state.values[number(key)] == b"\x80"
    assert len(state.values[-1]) < before


def test_after_a_few_small_buckets_the_others_are_read_at_once() -> None:
    state = StateMap()
    cells = {encode_key(f"key{n}"): cell(NEVER, b"%d" % n) for n in range(500)}
    BucketState(state, 3).save({("step", key): held for key, held in cells.items()})
    state.reads, state.scans = [], 0
    saved = BucketState(state, 3)
    assert {key: saved.load("step", key) for key in cells} == cells
    assert (len(state.reads), state.scans) == (7, 1)  # the place, and six buckets
    # What was changed since is not fetched again.
    again = BucketState(state, 3)
    first, *others = cells
    again.drop("step", first)
    assert {key: again.load("step", key) for key in others} == {key: cells[key] for key in others}
    assert again.load("step", first) is None
    again.save({("step", first): None})
    assert BucketState(state, 3).load("step", first) is None


def test_large_buckets_are_read_one_by_one() -> None:
    state = StateMap()
    cells = {encode_key(f"key{n}"): cell(NEVER, b"x" * 20_000) for n in range(500)}
    BucketState(state, 3).save({("step", key): held for key, held in cells.items()})
    state.reads, state.scans = [], 0
    saved = BucketState(state, 3)
    assert {key: saved.load("step", key) for key in cells} == cells
    assert state.scans == 0
    assert sorted(state.reads) == [-1, *range(BUCKETS)]


def held(state: StateMap) -> int:
    return sum(len(value) for number, value in state.values.items() if number != _PLACE)


def kept(state: StateMap) -> dict[str, tuple[int, int]]:
    """By step the cells and bytes of all buckets, counted one by one."""
    found: dict[str, tuple[int, int]] = {}
    for at, raw in state.values.items():
        for step, cells in msgspec.msgpack.decode(raw).items() if at != _PLACE else ():
            count, size = found.get(step, (0, 0))
            found[step] = count + len(cells), size + sum(map(len, cells.values()))
    return found


def test_a_shard_knows_how_many_cells_it_keeps_of_each_step() -> None:
    state, rng = StateMap(), random.Random(2)
    for turn in range(30):
        if turn == 10:  # as an older version has left it
            state.values[_PLACE] = msgspec.msgpack.encode(msgspec.msgpack.decode(state.values[_PLACE])[:5])
        saved, changes = BucketState(state, 3), dict[tuple[str, bytes], bytes | None]()
        for _ in range(40):
            at = rng.choice("ab"), encode_key(f"key{rng.randrange(60)}")
            gone = rng.random() < 0.4
            changes[at] = None if gone else cell(NEVER, b"x" * rng.randrange(50))
            if gone and rng.random() < 0.5:
                saved.drop(*at)
        if turn == 20:
            assert saved.bring("a", "one", "one", {"a": _grown}) == 0
        if turn == 25:
            heard, there = list[int](), len(saved.cells("a"))
            saved.bring("a", "two", "one", {"a": _grown}, heard.append)
            assert sum(heard) == there  # whoever watches hears of each cell
        saved.save(changes)
        assert saved.kept == BucketState(state, 3).kept == kept(state), turn
    assert forget_steps(state, ["a"], 2)["a"] > 0
    assert BucketState(state, 3).kept == kept(state)
    taken = StateMap()
    join_state(taken, split_state(state, 2, BUCKETS))
    assert BucketState(taken, 2).kept == kept(taken) == kept(state)


def _grown(former: str, one: bytes) -> bytes:
    if len(one) % 2:
        raise SchemaError("it was odd")
    return one + b"more"


def test_a_shard_knows_how_many_bytes_it_keeps() -> None:
    state, rng = StateMap(), random.Random(1)
    assert BucketState(state, 3).size == 0
    for turn in range(20):
        saved = BucketState(state, 3)
        keys = [encode_key(f"key{rng.randrange(300)}") for _ in range(40)]
        if turn == 10:  # as an older version has left it
            state.values[_PLACE] = msgspec.msgpack.encode(msgspec.msgpack.decode(state.values[_PLACE])[:3])
            saved = BucketState(state, 3)
            assert saved.size == -1
        cells = [None if rng.random() < 0.3 else cell(NEVER, b"x" * rng.randrange(50)) for _ in keys]
        saved.save({(rng.choice("ab"), key): one for key, one in zip(keys, cells, strict=True)})
        assert saved.size == BucketState(state, 3).size == held(state) > 0
    before = held(state)
    forget_steps(state, ["a"], 2)
    assert before > BucketState(state, 3).size == held(state) > 0
    for part in split_state(state, 2, BUCKETS):
        taken = StateMap()
        join_state(taken, [part])
        assert BucketState(taken, 2).size == held(taken) > 0


class Shrinking(StateMap):
    """A shard's map that keys are taken from, too."""

    def removeKey(self, key: tuple[int]) -> None:  # noqa: N802
        self.values.pop(key[0], None)


def test_a_shard_knows_how_much_it_keeps_of_steps_that_it_took_from_beside() -> None:
    state, key = Shrinking(), encode_key("one")
    BucketState(state, 3).save({("old", key): cell(NEVER, b"xyz")})
    BucketState(Beside(state), 3).save({("new", key): cell(NEVER, b"z"), ("above", key): cell(NEVER, b"")})
    assert take_beside(state, ["new"]) == 1
    assert BucketState(state, 3).kept == kept(state) == {"old": (1, 11), "new": (1, 9)}
