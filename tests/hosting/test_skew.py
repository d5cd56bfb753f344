"""Which slot and which keys of a keyed stream have most rows: counted in tasks, gathered at the end."""

from __future__ import annotations

import random
from collections import Counter

from geartrain.ports import StateSize
from geartrain.records.keys import encode_key
from geartrain_cloud.hosting.skew import HALF_LIFE_S, KEYS_MAX, KeyShare, Skew
from geartrain_cloud.spark.shards import shard_of
from geartrain_cloud.spark.tally import KEYS_KEPT, Tally, read_tally
from geartrain_cloud.spark.tally import KEYS_MAX as COUNTED_MAX

SLOTS = 4
APP = "heat.1~1"


def told(keys: list[str]) -> bytes:
    tally = Tally(SLOTS)
    counts = Counter(map(encode_key, keys))
    tally.add("by_sensor", counts, {key: shard_of(key, SLOTS) for key in counts})
    return tally.told()


def test_the_hottest_slot_and_its_keys_are_named() -> None:
    now = [100.0]
    skew = Skew(lambda: now[0])
    cold = [f"s{number}" for number in range(50)]
    skew.add({APP: [told(["hot"] * 100 + cold), told(["warm"] * 30 + ["hot"] * 20)]}, {APP})
    (found,) = skew.of(APP)
    rows = Counter(shard_of(encode_key(key), SLOTS) for key in ["hot"] * 120 + ["warm"] * 30 + cold)
    slot, most = rows.most_common(1)[0]
    assert slot == shard_of(encode_key("hot"), SLOTS)
    assert (found.step, found.slots, found.slot, found.share) == ("by_sensor", SLOTS, slot, most / 200)
    assert found.keys == [KeyShare("hot", 0.6), KeyShare("warm", 0.15)]  # the others have half a percent
    now[0] += 20 * HALF_LIFE_S
    skew.add({APP: [told(["new"] * 9 + ["warm"])]}, {APP})
    assert [one.key for one in skew.of(APP)[0].keys] == ["new", "warm"]
    assert 0.899 < skew.of(APP)[0].keys[0].share <= 0.9
    skew.add({}, {"heat.1~2"})
    assert skew.of(APP) == []


def test_what_is_counted_is_bounded_and_no_share_is_too_high() -> None:
    rng, skew, rows = random.Random(1), Skew(lambda: 0.0), Counter[str]()
    for _ in range(40):
        keys = [rng.choice(("a", "b", str(rng.randrange(10**6)))) for _ in range(300)]
        rows.update(keys)
        skew.add({APP: [told(keys)]}, {APP})
    (found,) = skew.of(APP)
    total = sum(rows.values())
    assert [one.key for one in found.keys] == [key for key, _ in rows.most_common(2)]
    assert all(one.share <= rows[one.key] / total + 0.0001 for one in found.keys)
    assert len(skew._streams[APP]["by_sensor"].keys) <= KEYS_MAX


def test_a_tally_of_many_keys_keeps_those_with_most_rows() -> None:
    tally, key = Tally(1), encode_key("hot")
    tally.add("s", {key: 2}, {key: 0})
    many = {encode_key(number): 1 for number in range(COUNTED_MAX)}
    tally.add("s", many, dict.fromkeys(many, 0))
    assert len(tally._keys["s"]) == KEYS_KEPT
    dealt = read_tally(tally.told()).dealt["s"]
    assert (dealt.rows, dealt.keys[0]) == ([COUNTED_MAX + 2], (key, 2))
    assert Tally(2).told() == b""


def test_what_the_slots_keep_is_told_once_each_of_them_has_run() -> None:
    skew = Skew(lambda: 0.0)
    assert skew.state_bytes(APP, 2) is None
    for kept, whole, cells in (({"1/0": 5}, None, None), ({"1/1": 7}, 12, 12), ({"1/0": 2}, 9, 7)):
        tally = Tally(SLOTS)
        for place, size in kept.items():
            tally.keeps(place, size, {"sums": (size, 10 * size), "_owners": (1, 1)} if size > 2 else {})
        skew.add({APP: [tally.told()]}, {APP})
        assert skew.state_bytes(APP, 2) == whole
        assert skew.kept(APP, 2) == (None if cells is None else {"sums": StateSize(cells, 10 * cells)})
    skew.add({}, {"heat.1~2"})
    assert skew.state_bytes(APP, 2) is None
    assert skew.kept(APP, 2) is None
