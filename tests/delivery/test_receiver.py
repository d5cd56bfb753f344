"""The receiver alone: what becomes of each batch, in order and out of it."""

from __future__ import annotations

import pytest

from geartrain.delivery.receiver import (
    Beyond,
    DigestRefused,
    Missing,
    NackPace,
    Next,
    Receiver,
    Repeated,
    WaitingBudget,
)
from geartrain.wire.envelope import NackReason
from tests.delivery.channel import EPOCH, arrival, batches

HELD = batches(10)


def receiver_of(*, batches_max: int = 3, bytes_max: int = 1_000, passes_loss: bool = False) -> Receiver:
    return Receiver(EPOCH, WaitingBudget(batches_max, bytes_max), passes_loss=passes_loss)


def take(receiver: Receiver, seq: int, *, digest: bytes | None = None, oldest_seq: int = 1) -> list[str]:
    """What a batch brings about, in short; all that is next is accepted."""
    receiver.receive_batch(arrival(HELD[seq - 1], digest=digest, oldest_seq=oldest_seq))
    said = []
    while (event := receiver.next_event()) is not None:
        if isinstance(event, Next):
            said.append(f"next {event.arrival.header.seq}" + (f" lost {event.lost}" if event.lost else ""))
            receiver.accept()
        elif isinstance(event, Repeated):
            assert event.digest in (None, HELD[event.arrival.header.seq - 1].digest)
            said.append("repeated")
        elif isinstance(event, Beyond):
            said.append("waits" if event.waits else "dropped")
        elif isinstance(event, Missing):
            said.append(f"missing {event.seq}")
        else:
            assert isinstance(event, DigestRefused)
            said.append(f"refused {event.seq}")
    return said


STORIES: list[tuple[str, list[int], list[list[str]]]] = [
    ("in order", [1, 2], [["next 1"], ["next 2"]]),
    ("twice", [1, 1], [["next 1"], ["repeated"]]),
    ("swapped", [2, 1], [["waits", "missing 1"], ["next 1", "next 2"]]),
    (
        "two holes",
        [2, 4, 1],
        [["waits", "missing 1"], ["waits", "missing 1"], ["next 1", "next 2", "missing 3"]],
    ),
    ("no room", [2, 3, 4, 5], [["waits", "missing 1"]] * 3 + [["dropped", "missing 1"]]),
    ("the same waits once", [2, 2, 1], [["waits", "missing 1"]] * 2 + [["next 1", "next 2"]]),
]


@pytest.mark.parametrize(("seqs", "said"), [row[1:] for row in STORIES], ids=[row[0] for row in STORIES])
def test_batches_leave_it_in_order(seqs: list[int], said: list[list[str]]) -> None:
    receiver = receiver_of()
    assert [take(receiver, seq) for seq in seqs] == said


def test_a_batch_with_another_digest_is_refused_also_after_it_has_waited() -> None:
    receiver = receiver_of()
    assert take(receiver, 1, digest=b"?" * 16) == ["refused 1"]
    assert take(receiver, 2, digest=b"?" * 16) == ["waits", "missing 1"]
    assert take(receiver, 1) == ["next 1", "refused 2"]
    assert take(receiver, 2) == ["next 2"]
    assert (receiver.seq, receiver.digest) == (2, HELD[1].digest)


def test_what_waits_is_bounded_in_bytes_over_all_epochs() -> None:
    budget = WaitingBudget(10, 2 * len(arrival(HELD[1]).payload))
    one, other = Receiver(EPOCH, budget), Receiver(b"another.", budget)
    assert take(one, 2) == take(one, 3) == ["waits", "missing 1"]
    assert take(other, 2) == ["dropped", "missing 1"]
    assert one.clear() == 2
    assert budget.bytes_used == 0
    assert take(other, 2) == ["waits", "missing 1"]


def test_a_loss_is_passed_only_where_it_is_said_twice() -> None:
    receiver = receiver_of(passes_loss=True)
    assert take(receiver, 4, oldest_seq=4) == ["waits", "missing 1"]
    assert take(receiver, 5, oldest_seq=5) == ["waits", "missing 1"]
    assert take(receiver, 4, oldest_seq=4) == ["waits", "missing 1"]
    assert take(receiver, 4, oldest_seq=4) == ["next 4 lost 3", "next 5"]
    strict = receiver_of()
    assert [take(strict, 4, oldest_seq=4) for _ in range(3)] == [["waits", "missing 1"]] * 3


def test_a_batch_that_is_declined_is_expected_again() -> None:
    receiver = receiver_of()
    receiver.receive_batch(arrival(HELD[0]))
    assert isinstance(receiver.next_event(), Next)
    receiver.decline()
    assert (receiver.expected, receiver.next_event()) == (1, None)
    with pytest.raises(RuntimeError, match="no batch to be accepted"):
        receiver.accept()
    assert take(receiver, 1) == ["next 1"]


def test_the_same_nack_is_said_once_in_an_interval() -> None:
    pace = NackPace(0.5)
    asked = [(1, 0.0), (1, 0.4), (2, 0.4), (1, 0.5), (1, 0.9), (1, 1.0)]
    said = [pace.is_due(("d1",), EPOCH, seq, NackReason.GAP, at_s) for seq, at_s in asked]
    assert said == [True, False, True, True, False, True]
    assert pace.is_due(("d2",), EPOCH, 1, NackReason.GAP, 1.0)
    assert pace.is_due(("d1",), EPOCH, 1, NackReason.DIGEST, 1.0)
