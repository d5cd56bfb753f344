"""A batch that the receiver cannot take yet: the sender keeps it, and tries it seldom."""

from __future__ import annotations

from geartrain.delivery.sender import Sender, SenderPolicy, Standing
from geartrain.delivery.sender_events import Acked, Event, Held, SendBatch
from geartrain.wire.envelope import Ack, Nack, NackReason

EPOCH = b"epoch--1"
PAUSE_S = 30.0


def digest(seq: int) -> bytes:
    return seq.to_bytes(16, "big")


class Driver:
    """A sender with a store of batches, on a clock that only the test moves."""

    def __init__(self, batches: int) -> None:
        self.now_s = 0.0
        policy = SenderPolicy(resend_s=2.0, resend_s_max=PAUSE_S)
        self.sender = Sender(policy, "flow", Standing(EPOCH, last_seq=batches), is_open=True)
        self.sender.connected(self.now_s)

    def send(self) -> list[int]:
        """All that may be sent now."""
        sent: list[int] = []
        while isinstance(sending := self.sender.next_to_send(self.now_s), SendBatch):
            seq = sending.after_seq + 1
            assert self.sender.sent(sending, seq, 10, digest(seq), self.now_s)
            self.sender.published(seq, self.now_s)
            sent.append(seq)
        return sent

    def hear(self, control: Ack | Nack) -> list[Event]:
        assert self.sender.receive_control(control, self.now_s)
        return list(iter(self.sender.next_event, None))

    def hold(self, seq: int) -> list[Event]:
        return self.hear(Nack("flow", EPOCH, seq, NackReason.HOLD, 1))

    def ack(self, seq: int) -> list[Event]:
        return self.hear(Ack("flow", EPOCH, seq, digest(seq), 1))

    def sent_within(self, seconds: float) -> list[int]:
        """What is sent until so many seconds have passed, timer by timer."""
        end_s, sent = self.now_s + seconds, list[int]()
        for _ in range(1_000):
            due_s = self.sender.get_timer()
            assert due_s is not None, "something is unacked, and no timer runs"
            if due_s > end_s:
                self.now_s = end_s
                return sent
            self.now_s = max(self.now_s, due_s)
            self.sender.handle_timer(self.now_s)
            sent += self.send()
        raise AssertionError("the timer is due again and again")


def test_held_batch_is_tried_alone_and_seldom_until_it_is_acked() -> None:
    driver = Driver(5)
    assert driver.send() == [1, 2, 3, 4, 5]
    assert driver.ack(2) == [Acked(2, digest(2))]
    assert driver.hold(3) == [Held(3)]
    assert driver.send() == []
    assert driver.sent_within(PAUSE_S - 0.1) == []
    assert driver.sent_within(0.2) == [3]
    assert driver.hold(3) == []  # said once
    assert driver.sender.held_seq == 3
    assert driver.sent_within(PAUSE_S + 0.1) == [3]
    assert driver.ack(3) == [Acked(3, digest(3))]
    assert driver.sender.held_seq == 0
    assert driver.send() == [4, 5]


def test_an_hour_of_holding_costs_few_batches() -> None:
    driver = Driver(60)
    driver.send()
    driver.hold(1)
    sent = list[int]()
    for _ in range(120):
        sent += driver.sent_within(PAUSE_S)
        driver.hold(1)
    assert set(sent) == {1}
    assert len(sent) <= 120


def test_lost_answer_to_the_try_is_made_good_by_the_resend_timer() -> None:
    driver = Driver(3)
    driver.send()
    driver.hold(1)
    assert driver.sent_within(PAUSE_S + 1) == [1]
    assert driver.sent_within(4) == [1]  # nothing was heard: the resend timer sends it again, and it alone


def test_what_stands_before_it_is_still_made_good() -> None:
    driver = Driver(4)
    driver.send()
    driver.hold(3)
    assert driver.sent_within(2.5) == [1, 2]  # their acks were lost


def test_receiver_that_asks_again_is_sent_all_at_once() -> None:
    driver = Driver(4)
    driver.send()
    driver.hold(2)
    driver.hear(Nack("flow", EPOCH, 1, NackReason.GAP, 1))
    assert driver.send() == [1, 2, 3, 4]
    driver.hold(2)
    driver.sender.connected(driver.now_s)
    assert driver.send() == [1, 2, 3, 4]


def test_gap_in_the_place_of_the_held_batch_goes_at_once() -> None:
    driver = Driver(3)
    driver.send()
    driver.hold(1)
    driver.sender.replaced(1, 1)
    assert driver.send() == [1, 2, 3]


def test_hold_of_what_is_acked_or_was_never_sent_changes_nothing() -> None:
    driver = Driver(3)
    driver.send()
    driver.ack(2)
    for seq in (1, 2, 4):
        assert driver.hold(seq) == []
    assert driver.sender.held_seq == 0
