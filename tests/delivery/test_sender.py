"""The sender alone: what it sends, when its timer is due, and what follows from each answer."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest

from geartrain.delivery.sender import Handshake, Sender, SenderPolicy, Standing
from geartrain.delivery.sender_events import (
    Acked,
    CompareAck,
    Doubt,
    Event,
    Examine,
    ReadAgain,
    Renew,
    Renumbered,
    SchemasRefused,
    SendBatch,
    SendHello,
    SendSchemas,
    Silent,
    Welcomed,
)
from geartrain.wire.envelope import Ack, Control, Nack, NackReason, Offer, Welcome
from tests.delivery.channel import EPOCH, FLOW, batches

HELD = batches(10)
UP = SenderPolicy(window=3, resend_s=2.0, resend_s_max=8.0, silence_s=60.0)
DOWN = msgspec.structs.replace(UP, handshake=Handshake.CONNECTION, has_schemas=False, silence_s=math.inf)


def sender_of(policy: SenderPolicy = UP, *, last_seq: int = 10, is_open: bool = True) -> Sender:
    """A sender with nothing acked, connected at 100 s."""
    sender = Sender(policy, FLOW, Standing(EPOCH, last_seq=last_seq), is_open=is_open)
    sender.connected(100.0)
    return sender


def send_all(sender: Sender, now_s: float) -> list[int]:
    """Send what may be sent; the seqs of the batches, 0 for a hello and -1 for the schemas."""
    sent = []
    while (sending := sender.next_to_send(now_s)) is not None:
        if isinstance(sending, SendHello):
            sent.append(0)
        elif isinstance(sending, SendSchemas):
            sent.append(-1)
        elif sending.gap_only:
            break
        else:
            batch = HELD[sending.after_seq]
            assert sender.sent(sending, batch.seq, 10, batch.digest, now_s)
            sender.published(batch.seq, now_s)
            sent.append(batch.seq)
    return sent


def ack(seq: int, digest: bytes = b"", epoch: bytes = EPOCH) -> Ack:
    return Ack(FLOW, epoch, seq, digest or HELD[min(seq, 10) - 1].digest, 1)


def nack(seq: int, reason: NackReason) -> Nack:
    return Nack(FLOW, EPOCH, seq, reason, 1)


def events(sender: Sender) -> list[Event]:
    return list(iter(sender.next_event, None))


WELCOME = Welcome(FLOW, EPOCH, {}, {}, 1)
ANSWERS: list[tuple[str, SenderPolicy, Control, list[Event], list[int]]] = [
    ("its own ack", UP, ack(2), [Acked(2, HELD[1].digest)], [4, 5]),
    ("an ack of another epoch", UP, ack(2, epoch=b"another."), [], []),
    ("an ack of what is not at hand", UP, ack(5), [CompareAck(ack(5))], []),
    ("another digest", UP, ack(2, b"?" * 16), [Renew(Doubt.ACK_DIFFERS, 2, 2)], []),
    ("an ack beyond the end", UP, ack(11), [Renew(Doubt.ACK_BEYOND, 11, 2)], []),
    ("a gap", UP, nack(2, NackReason.GAP), [], [2, 3]),
    ("a refused digest", UP, nack(2, NackReason.DIGEST), [ReadAgain()], [2, 3]),
    ("a closed epoch", UP, nack(1, NackReason.CLOSED), [Renew(Doubt.CLOSED, 1, 2)], []),
    ("a lacking schema", UP, nack(3, NackReason.NEED_SCHEMA), [], [-1, 3]),
    ("a late welcome", UP, WELCOME, [], []),
    ("a late offer", UP, Offer(FLOW, EPOCH, 5, 1), [], []),
    ("down: its own ack", DOWN, ack(2), [Acked(2, HELD[1].digest)], [4, 5]),
    ("down: a closed epoch", DOWN, nack(1, NackReason.CLOSED), [], [0]),
    ("down: a lacking schema", DOWN, nack(3, NackReason.NEED_SCHEMA), [SchemasRefused(3)], []),
    ("down: an offer", DOWN, Offer(FLOW, EPOCH, 5, 1), [Renumbered(5)], [0]),
    ("down: a receiver with nothing", DOWN, Nack(FLOW, b"\0" * 8, 1, NackReason.GAP, 1), [], [0]),
]


@pytest.mark.parametrize(
    ("policy", "answer", "happened", "sent"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS]
)
def test_what_follows_from_an_answer(
    policy: SenderPolicy, answer: Control, happened: list[Event], sent: list[int]
) -> None:
    """With a window of three that is full."""
    sender = sender_of(policy)
    if policy is DOWN:
        assert send_all(sender, 100.0) == [0]
        sender.receive_control(nack(1, NackReason.GAP), 100.0)
    assert send_all(sender, 100.0) == [1, 2, 3]
    sender.receive_control(answer, 101.0)
    assert events(sender) == happened
    assert send_all(sender, 101.0) == sent


def test_an_offer_to_one_that_was_acked_begins_a_new_epoch() -> None:
    sender = sender_of(DOWN)
    sender.receive_control(ack(2), 100.0)
    sender.compared(ack(2), 2, HELD[1].digest, 100.0)
    events(sender)
    sender.receive_control(Offer(FLOW, EPOCH, 7, 1), 100.0)
    assert events(sender) == [Renew(Doubt.RECEIVER_LOST, 2, 7)]
    sender.renewed(Standing(b"the next", last_seq=8, ordinal=7), 101.0)
    assert sender.next_to_send(101.0) == SendHello(7)


def test_an_ack_inside_a_gap_waits_for_the_gaps_own() -> None:
    sender = sender_of()
    send_all(sender, 100.0)
    sender.replaced(2, 3)
    sender.receive_control(ack(2), 101.0)
    assert events(sender) == [CompareAck(ack(2))]
    sender.compared(ack(2), 3, HELD[2].digest, 101.0)
    assert (events(sender), sender.acked_seq) == ([], 0)
    assert sender.counters["acks_inside_gaps"] == 1


def test_a_gap_that_an_ack_lies_in_is_sent_before_what_fills_the_window() -> None:
    """The receiver stands at 7, has 1 to 5, which are sent again, and what a gap of 6 to 9 stands for now. No
    ack of its can name 1 to 3: they filled the window for ever.
    """
    sender = sender_of()
    assert send_all(sender, 100.0) == [1, 2, 3]
    for _ in (1, 2, 3):
        sender.receive_control(ack(7), 100.1)
        assert events(sender) == [CompareAck(ack(7))]
        sender.compared(ack(7), 9, HELD[8].digest, 100.1)
    sending = sender.next_to_send(100.1)
    assert sending == SendBatch(EPOCH, 7, gap_only=True, is_inside=True)
    assert not sender.sent(sending, 8, 10, HELD[7].digest, 100.1), "no gap stands there any more"
    sender.compared(ack(7), 9, HELD[8].digest, 100.2)
    sending = sender.next_to_send(100.2)
    assert isinstance(sending, SendBatch)
    assert sender.sent(sending, 9, 10, HELD[8].digest, 100.2, is_gap=True)
    sender.compared(ack(7), 9, HELD[8].digest, 100.2)
    assert send_all(sender, 100.2) == [], "it is on its way: once is enough"
    sender.receive_control(ack(9), 100.3)
    assert events(sender) == [Acked(9, HELD[8].digest)]
    assert send_all(sender, 100.3) == [10]


def test_a_digest_that_is_refused_too_often_is_examined_and_then_doubted() -> None:
    sender = sender_of()
    for at_s in (100.0, 110.0, 120.0):
        send_all(sender, at_s)
        sender.receive_control(nack(2, NackReason.DIGEST), at_s)
        assert events(sender) == [ReadAgain()]
    sender.receive_control(nack(2, NackReason.DIGEST), 130.0)
    assert events(sender) == [Examine(2, 4)]
    sender.intact(Examine(2, 4))
    assert events(sender) == [Renew(Doubt.DIGEST_REFUSED, 2, 2, 4)]


def test_many_nacks_of_one_loss_set_it_back_once() -> None:
    sender = sender_of()
    send_all(sender, 100.0)
    for _ in range(3):
        sender.receive_control(nack(1, NackReason.GAP), 100.1)
    assert send_all(sender, 100.1) == [1, 2, 3]
    sender.receive_control(nack(1, NackReason.GAP), 100.2)
    assert send_all(sender, 100.2) == []
    sender.receive_control(nack(1, NackReason.GAP), 100.7)
    assert send_all(sender, 100.7) == [1, 2, 3]


def test_the_resend_timer_doubles_up_to_its_bound() -> None:
    sender, at_s, pauses = sender_of(), 100.0, []
    for _ in range(5):
        assert send_all(sender, at_s) == [1, 2, 3]
        due_s = sender.get_timer()
        assert due_s is not None
        sender.handle_timer(due_s - 0.01)
        assert send_all(sender, due_s - 0.01) == []
        sender.handle_timer(due_s)
        pauses.append(due_s - at_s)
        at_s = due_s
    assert pauses == [2.0, 4.0, 8.0, 8.0, 8.0]


def test_a_probe_repeats_the_oldest_batch_only() -> None:
    sender = sender_of(msgspec.structs.replace(UP, probe_s_min=0.05))
    send_all(sender, 100.0)
    sender.receive_control(ack(1), 100.1)
    assert send_all(sender, 100.1) == [4]
    due_s = sender.get_timer()
    assert due_s is not None
    assert 100.1 < due_s < 101.0
    sender.handle_timer(due_s)
    assert send_all(sender, due_s) == [2]


def test_hellos_are_repeated_with_growing_pauses_and_nothing_else_is_sent() -> None:
    sender, pauses, at_s = sender_of(is_open=False), [], 100.0
    for _ in range(4):
        assert send_all(sender, at_s) == [0]
        due_s = sender.get_timer()
        assert due_s is not None
        pauses.append(due_s - at_s)
        sender.handle_timer(due_s)
        at_s = due_s
    assert pauses == [2.0, 4.0, 8.0, 8.0]
    sender.receive_control(WELCOME, at_s)
    assert events(sender) == [Welcomed(WELCOME)]
    assert send_all(sender, at_s) == [1, 2, 3]


def test_silence_gives_the_connection_up_only_while_an_answer_is_due() -> None:
    sender = sender_of(last_seq=0)
    assert sender.get_timer() is None
    sender.committed(2)
    send_all(sender, 500.0)
    while (due_s := sender.get_timer()) is not None and not (found := events(sender)):
        sender.handle_timer(due_s)
        send_all(sender, due_s)
    assert (found, due_s is not None and due_s >= 560.0) == ([Silent()], True)


def outdated(change: Callable[[Sender], object]) -> bool:
    """Whether a batch that was read while something changed is still taken."""
    sender = sender_of()
    sending = sender.next_to_send(100.0)
    assert isinstance(sending, SendBatch)
    change(sender)
    return sender.sent(sending, 1, 10, HELD[0].digest, 100.0)


def test_a_batch_that_was_read_too_long_ago_is_not_sent() -> None:
    assert outdated(lambda sender: None)
    assert not outdated(lambda sender: sender.renewed(Standing(b"the next", last_seq=1), 100.0))
    assert not outdated(lambda sender: sender.compared(ack(1), 1, HELD[0].digest, 100.0))
    assert not outdated(lambda sender: sender.ask(100.0))
