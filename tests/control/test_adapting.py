"""When devices go to another cut: it follows their figures, and never flaps, whatever these are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from geartrain.control.states import Measured
from geartrain_cloud.changes.adapting import LOW, PAUSE_S, PAUSE_S_MAX, Memory, Move, next_move
from geartrain_cloud.changes.fitting import FREE_BYTES_MIN, Ladder, Rung

FREE = 1 << 30
LOOK_S = 60.0
LADDER = Ladder(
    (Rung("cloud", 10, 900), Rung("half", 20, 500), Rung("edge", 40, 100)),
    {"": 20, "cloud": 10, "half": 20, "edge": 40},
)


@dataclass
class Device:
    """A device that does what it is told at once; costs: by cut, CPU seconds of a record."""

    ladder: Ladder
    cut: str
    costs: dict[str, float]
    memory: Memory = field(default_factory=Memory)
    now_s: float = 0.0

    def look(self, rate: float, idle: float = 4.0, free: int = FREE) -> Move | None:
        self.now_s += LOOK_S
        measured = Measured(rate, rate * self.costs[self.cut], idle, free)
        self.memory = self.memory.learn(self.cut, measured)
        move = next_move(self.ladder, self.cut, measured, self.memory, self.now_s)
        if move is not None:
            self.memory = self.memory.moves(move.direction, self.now_s)
            self.cut = move.fit.cut
        return move


def truthful(cut: str = "half") -> Device:
    return Device(LADDER, cut, {one: work / 40_000 for one, work in LADDER.works.items()})


def test_a_device_goes_down_above_its_capacity_and_up_when_there_is_room_to_spare() -> None:
    device = truthful()
    assert device.look(900) is None, "0.45 of a core is within its capacity"
    down = device.look(1_100)
    assert down is not None
    assert (device.cut, down.direction) == ("cloud", "down")
    assert down.fit.why == "at 1100 records/s it takes 0.55 of a core, more than 0.5; with cloud 0.28"
    assert [device.look(500) for _ in range(9)] == [None] * 9, "the pause is not over"
    up = device.look(500)
    assert up is not None
    assert (device.cut, up.direction) == ("half", "up")
    assert up.fit.why.startswith("at 500 records/s it takes 0.12 of a core; with half 0.25, within 0.35")


def test_a_device_short_of_memory_does_as_little_as_it_may() -> None:
    device = truthful("edge")
    move = device.look(1, free=FREE_BYTES_MIN - 1)
    assert move is not None
    assert (device.cut, move.fit.why) == ("cloud", "34 MB of memory are free, 34 are the least")
    assert [device.look(1, free=FREE_BYTES_MIN + 1) for _ in range(20)] == [None] * 20


def test_a_busy_device_and_an_idle_app_stay_as_they_are() -> None:
    assert truthful().look(100, idle=0.0) is None
    assert truthful("cloud").look(0) is None


_rates = st.floats(0, 1e5)
_costs = st.floats(1e-7, 1e-2)


@seed(20_261_124)
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(_rates, st.floats(0, 4), st.integers(0, FREE)), min_size=1, max_size=150),
    st.fixed_dictionaries(dict.fromkeys(LADDER.works, _costs)),
)
def test_whatever_comes_moves_have_pauses_and_turns_grow_rare(
    series: list[tuple[float, float, int]], costs: dict[str, float]
) -> None:
    device, moves = Device(LADDER, "half", costs), list[tuple[float, str]]()
    for rate, idle, free in series:
        if (move := device.look(rate, idle, free)) is not None:
            moves.append((device.now_s, move.direction))
    gaps = [after[0] - before[0] for before, after in pairwise(moves)]
    assert all(gap >= PAUSE_S for gap in gaps)
    turns = sum(before[1] != after[1] for before, after in pairwise(moves))
    assert turns <= 1 + math.log2(1 + device.now_s / PAUSE_S)


@seed(20_261_124)
@settings(max_examples=150, deadline=None)
@given(
    _rates,
    st.fixed_dictionaries(dict.fromkeys(LADDER.works, _costs)),
    st.sampled_from(sorted(LADDER.works)),
)
def test_at_a_steady_rate_a_device_comes_to_rest_however_wrong_the_estimate(
    rate: float, costs: dict[str, float], cut: str
) -> None:
    device = Device(LADDER, cut, costs)
    moves = [device.look(rate) for _ in range(2_000)]
    made = [index for index, move in enumerate(moves) if move is not None]
    assert len(made) <= 2 * len(LADDER.rungs)
    assert device.now_s - LOOK_S * (made[-1] if made else 0) > PAUSE_S_MAX / 2


@seed(20_261_124)
@settings(max_examples=150, deadline=None)
@given(
    st.floats(1, 1e4),
    st.lists(st.floats(1, 0.99 / LOW), min_size=1, max_size=150),
    st.sampled_from(sorted(LADDER.works)),
)
def test_a_rate_that_wavers_within_the_two_thresholds_never_turns_a_device_back(
    rate: float, series: list[float], cut: str
) -> None:
    device = truthful(cut)
    ways = [move.direction for factor in series if (move := device.look(rate * factor)) is not None]
    assert "down" not in ways[ways.index("up") :] if "up" in ways else True
    assert "up" not in ways[ways.index("down") :] if "down" in ways else True
