"""How fast the log of a flow is read, by the last micro-batches."""

from __future__ import annotations

from geartrain_cloud.hosting.writer import PACE_MICRO_BATCHES, Pace, Ran


def test_the_pace_is_that_of_micro_batches_that_have_read_something() -> None:
    pace = Pace()
    assert pace.of(["f/0"]) is None
    pace.add(Ran(0, 9.0, {"f/0": 100, "g/0": 5}))
    assert pace.of(["f/0"]) is None  # where it stood before, nobody knows
    pace.add(Ran(1, 0.5, {"f/0": 130, "f/1": 7, "g/0": 5}))
    pace.add(Ran(2, 1.5, {"f/0": 150, "f/1": 17, "g/0": 5}))
    assert pace.of(["f/0", "f/1"]) == (30 + 20 + 10) / 2.0
    assert pace.of(["g/0"]) is None
    pace.add(Ran(3, 60.0, {"f/0": 150, "f/1": 17, "g/0": 6}))  # for another flow
    assert pace.of(["f/0", "f/1"]) == 30.0
    for number in range(PACE_MICRO_BATCHES + 1):
        pace.add(Ran(4 + number, 0.1, {"f/0": 150 + number}))
    assert pace.of(["f/0", "f/1"]) == 10.0


class Asked(dict[str, int]):
    """Offsets during whose reading another micro-batch ends, in another thread."""

    def __init__(self, pace: Pace, offsets: dict[str, int]) -> None:
        super().__init__(offsets)
        self._pace = pace

    def __contains__(self, key: object) -> bool:
        self._pace.add(Ran(9, 1.0, {}))
        return super().__contains__(key)


def test_a_micro_batch_may_end_while_the_pace_is_asked_for() -> None:
    pace = Pace()
    pace.add(Ran(0, 1.0, Asked(pace, {"f/0": 1})))
    pace.add(Ran(1, 1.0, Asked(pace, {"f/0": 3})))
    assert pace.of(["f/0"]) == 2.0
