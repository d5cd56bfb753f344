"""Sender and receiver of the control lane against each other, over a network that does its worst."""

from __future__ import annotations

from random import Random
from typing import TypeVar

import pytest

from geartrain.control.codec import (
    decode_desired,
    decode_reported,
    encode_desired,
    encode_reported,
    encode_state,
)
from geartrain.control.receiver import Apply, DesiredReceiver, Keep
from geartrain.control.sender import Cloned, DesiredSender, Refuse, Standing, Store
from geartrain.control.states import (
    App,
    AppReport,
    AppState,
    Desired,
    Kept,
    Reported,
    State,
    state_digest,
)

T = TypeVar("T")
SESSION = b"session1"


def state(serial: int, *names: str) -> bytes:
    return encode_state(State(serial, tuple(App(name, "m:f") for name in names)))


def there(found: T | None) -> T:
    assert found is not None
    return found


class Device:
    """A receiver with a disk, told to do at once what it says."""

    def __init__(self) -> None:
        self.disk = Kept()
        self.applied: list[int] = []
        self.now_s = 0.0
        self.start()

    def start(self) -> None:
        self.machine = DesiredReceiver("d", self.disk)
        self.serials: list[int] = []
        self.do()

    def do(self) -> None:
        while (event := self.machine.next_event()) is not None:
            if isinstance(event, Keep):
                self.disk = event.kept
                self.machine.kept(self.now_s)
            else:
                self.serials.append(event.state.serial)
                self.applied.append(event.state.serial)
                self.machine.applied(self.now_s)

    def hear(self, payload: bytes) -> None:
        self.machine.receive(payload, self.now_s)
        self.do()

    def say(self) -> Reported | None:
        payload = self.machine.next_to_send(self.now_s)
        return None if payload is None else decode_reported(payload)


def desired(serial: int, *names: str, session: bytes = SESSION, taken: tuple[int, int] = (0, 0)) -> bytes:
    return encode_desired(Desired("d", session, *taken, state(serial, *names)))


def test_a_state_is_kept_then_applied_then_reported() -> None:
    machine = DesiredReceiver("d", Kept())
    assert machine.next_event() == Keep(Kept(1))
    machine.connected(SESSION, 0.0)
    assert machine.next_to_send(0.0) is None  # without a life of its own it says nothing
    machine.kept(0.0)
    first = decode_reported(machine.next_to_send(0.0) or b"")
    assert (first.life, first.number, first.serial) == (1, 1, 0)
    machine.receive(desired(4, "a.1"), 1.0)
    assert machine.next_event() == Keep(Kept(1, state(4, "a.1")))
    assert machine.next_event() is None  # not before it is durable
    machine.kept(1.0)
    assert machine.next_event() == Apply(State(4, (App("a.1", "m:f"),)))
    assert machine.serial == 0
    machine.applied(1.0)
    report = decode_reported(machine.next_to_send(1.0) or b"")
    assert (report.number, report.serial, report.digest) == (2, 4, state_digest(state(4, "a.1")))


def test_what_was_superseded_while_it_was_written_is_not_applied() -> None:
    device = Device()
    machine = device.machine
    machine.connected(SESSION, 0.0)
    machine.receive(desired(2), 0.0)
    machine.receive(desired(3), 0.0)
    machine.receive(desired(5), 0.0)
    machine.receive(desired(4), 0.0)
    device.do()
    assert device.applied == [5]
    assert machine.counters["desired_superseded"] == 1


def test_a_doubled_or_older_state_is_not_applied_also_after_a_start() -> None:
    device = Device()
    for _ in range(2):
        device.machine.connected(SESSION, 0.0)
        for serial in (3, 3, 2, 1):
            device.hear(desired(serial))
        assert device.serials == [3]
        device.start()
        assert device.serials == [3]  # what the disk says is taken up again, once in this life
    assert device.disk.life == 3


def test_a_state_for_another_connection_is_not_applied_and_brings_a_report() -> None:
    device = Device()
    device.machine.connected(b"session2", 0.0)
    assert device.say()
    device.hear(desired(9))
    device.hear(encode_desired(Desired("d")))
    assert device.applied == []
    assert device.machine.counters == {"desired_of_other_sessions": 1, "asked": 1, "reports_sent": 1}
    assert device.say() is None  # not at once: reports have a pause between them
    device.now_s = 1.0
    assert there(device.say()).number == 2


def test_a_state_that_cannot_be_written_is_not_applied_and_the_reason_is_said() -> None:
    device = Device()
    machine = device.machine
    machine.connected(SESSION, 0.0)
    machine.receive(desired(1), 0.0)
    machine.next_event()
    machine.not_kept("no space is left", 0.0)
    assert machine.next_event() is None
    report = device.say()
    assert report is not None
    assert (report.serial, report.why) == (0, "no space is left")
    device.now_s = 1.0
    device.hear(desired(1))
    assert device.applied == [1]
    assert there(device.say()).why == ""


def test_a_report_is_sent_again_until_it_is_answered_then_now_and_then() -> None:
    device = Device()
    device.machine.connected(SESSION, 0.0)
    times, numbers = [], []
    while device.now_s < 20:
        if (report := device.say()) is not None:
            times.append(device.now_s)
            numbers.append(report.number)
        device.now_s += 0.5
    assert times == [0, 1, 3, 7, 15]
    assert set(numbers) == {1}
    device.hear(encode_desired(Desired("d", SESSION, 1, 1)))
    assert device.machine.timer() == 15 + 60
    device.machine.changed([AppReport("a.1", AppState.RUNNING)], device.now_s)
    report = device.say()
    assert report is not None
    assert (report.number, report.apps) == (2, (AppReport("a.1", AppState.RUNNING),))


def test_a_device_whose_disk_was_restored_takes_a_life_above_the_one_that_is_known() -> None:
    device = Device()
    device.machine.connected(SESSION, 0.0)
    assert device.say()
    device.hear(encode_desired(Desired("d", SESSION, 9, 4)))
    assert device.disk.life == 10
    device.now_s = 1.0
    report = device.say()
    assert report is not None
    assert report.order == (10, 1)


class Platform:
    """A sender with a store, told to do at once what it says."""

    def __init__(self, serial: int = 0) -> None:
        self.standing = Standing(state(serial) if serial else b"")
        self.machine = DesiredSender("d", self.standing)
        self.machine.connected(0.0)
        self.cloned = 0

    def do(self, now_s: float = 0.0) -> None:
        while (event := self.machine.next_event()) is not None:
            if isinstance(event, Cloned):
                self.cloned += 1
            elif isinstance(event, Store):
                self.standing = Standing(self.standing.state, event.report, self.standing.refused)
                self.machine.stored(event.report, now_s)
            else:
                self.standing = Standing(self.standing.state, self.standing.report, event.why)

    def hear(self, report: bytes, now_s: float = 0.0) -> None:
        self.machine.receive(report, now_s)
        self.do(now_s)

    def say(self, now_s: float = 0.0) -> Desired | None:
        payload = self.machine.next_to_send(now_s)
        return None if payload is None else decode_desired(payload)


def report(
    serial: int = 0, life: int = 1, number: int = 1, content: bytes = b"", session: bytes = SESSION
) -> bytes:
    digest = state_digest(content or state(serial)) if serial else b""
    return encode_reported(Reported("d", session, life, number, serial, digest))


def test_a_device_that_is_away_is_asked_with_growing_pauses_and_sent_no_state() -> None:
    platform = Platform(3)
    asked = [second for second in range(120) if platform.say(float(second)) is not None]
    assert asked == [0, 2, 6, 14, 30, 62]
    platform.hear(report(), 120.0)
    said = platform.say(120.0)
    assert said == Desired("d", SESSION, 1, 1, state(3))
    assert platform.say(120.5) is None
    assert there(platform.say(121.0)).state == state(3)


def test_a_device_of_which_nothing_is_wanted_is_asked_once_what_it_has() -> None:
    platform = Platform()
    assert [second for second in range(100) if platform.say(float(second)) is not None] == [0]


def test_only_the_newest_state_is_sent() -> None:
    platform = Platform(3)
    platform.hear(report())
    platform.say()
    platform.machine.wanted(Standing(state(4), platform.standing.report), 0.1)
    platform.machine.wanted(Standing(state(5), platform.standing.report), 0.1)
    said = [found.state for n in range(100) if (found := platform.say(0.1 + n / 10)) is not None]
    assert set(said) == {state(5)}
    platform.hear(report(5, number=2), 20.0)
    assert there(platform.say(20.0)).state == b""  # the answer
    assert platform.machine.is_settled
    assert platform.machine.timer(20.0) is None


def test_a_report_is_answered_only_when_it_is_stored_and_an_older_one_is_not_taken() -> None:
    platform = Platform()
    platform.machine.receive(report(number=2), 0.0)
    assert platform.say() is None
    platform.do()
    assert platform.say() == Desired("d", SESSION, 1, 2)
    platform.hear(report(number=1))
    assert platform.standing.report is not None
    assert platform.standing.report.number == 2
    assert platform.say() == Desired("d", SESSION, 1, 2)  # so that a restored device learns of it


def test_a_report_newer_than_all_over_a_connection_that_was_left_tells_of_two_devices() -> None:
    platform, old, new = Platform(), b"a" * 8, b"b" * 8
    for number in (1, 2):
        platform.hear(report(number=number, session=old))
    platform.hear(report(number=4, session=new))
    platform.hear(report(number=3, session=old))  # late on its way
    platform.hear(report(number=5, session=new))
    assert platform.cloned == 0
    platform.hear(report(life=2, session=old))
    assert platform.cloned == 1
    platform.hear(report(life=2, number=2, session=old))
    assert platform.cloned == 1
    platform.hear(report(life=3, session=new))
    assert platform.cloned == 2


def test_a_device_that_connects_again_and_again_is_one() -> None:
    platform = Platform()
    for number in range(1, 100):
        platform.hear(report(number=number, session=number.to_bytes(8)), number)
    assert platform.cloned == 0


def test_a_store_that_was_restored_is_said_and_refused_until_it_gives_out_a_higher_serial() -> None:
    platform = Platform(5)
    platform.hear(report(7))
    assert "has applied desired state 7, and this store is at 5" in platform.standing.refused
    assert there(platform.say()).state == b""
    platform.machine.wanted(Standing(state(6), platform.standing.report, platform.standing.refused), 1.0)
    platform.machine.wanted(Standing(state(8), platform.standing.report, platform.standing.refused), 1.0)
    assert platform.say(1.0) is None  # nobody has said so
    platform.machine.wanted(Standing(state(8), platform.standing.report), 2.0)
    assert there(platform.say(2.0)).state == state(8)


def test_another_state_of_the_same_serial_is_refused() -> None:
    platform = Platform(7)
    platform.hear(report(7, content=state(7, "other.1")))
    assert "desired state 7, and this store holds another one of that serial" in platform.standing.refused


def test_a_serial_that_goes_back_under_a_running_control_is_refused() -> None:
    platform = Platform(7)
    platform.machine.wanted(Standing(state(6)), 0.0)
    event = platform.machine.next_event()
    assert isinstance(event, Refuse)
    assert "went back from 7 to 6" in event.why


def test_a_flood_of_reports_is_cut_off() -> None:
    platform = Platform()
    for number in range(1, 1_001):
        platform.hear(report(number=number))
    assert platform.machine.counters["reports_taken"] == 20
    assert platform.machine.counters["reports_too_many"] == 980


@pytest.mark.parametrize("seed", range(200))
def test_over_any_network_each_serial_is_applied_once_in_order_and_the_newest_in_the_end(seed: int) -> None:
    random, device, platform = Random(seed), Device(), Platform(1)
    air: list[tuple[bool, bytes]] = []
    serial, now_s, known = 1, 0.0, 0
    device.machine.connected(random.randbytes(8), 0.0)
    while now_s < 100:
        now_s += 0.25
        device.now_s, rough = now_s, now_s < 60
        if rough and random.random() < 0.05:
            serial += 1
            platform.machine.wanted(Standing(state(serial), platform.standing.report), now_s)
            platform.standing = Standing(state(serial), platform.standing.report)
        if rough and random.random() < 0.03:
            device.start()
            known = max(known, max(device.serials, default=0))
            device.machine.connected(random.randbytes(8), now_s)
        if rough and random.random() < 0.03:
            platform.machine = DesiredSender("d", platform.standing)
            platform.machine.connected(now_s)
        for is_down, payload in (
            (True, platform.machine.next_to_send(now_s)),
            (False, device.machine.next_to_send(now_s)),
        ):
            if payload is not None and not (rough and random.random() < 0.3):
                air += [(is_down, payload)] * (2 if rough and random.random() < 0.3 else 1)
        random.shuffle(air)
        for _ in range(random.randint(0, len(air))):
            is_down, payload = air.pop()
            if is_down:
                device.hear(payload)
            else:
                platform.hear(payload, now_s)
        assert device.serials == sorted(set(device.serials))
        assert min(device.serials, default=known) >= known
    assert device.machine.serial == serial
    assert platform.machine.is_settled
    assert platform.standing.refused == ""
