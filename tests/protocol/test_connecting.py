"""What a log is told of a connection that cannot be made, and how long the pauses before the next one are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from geartrain.concurrency.connecting import SAID_S, SAID_S_MAX, Backoff, Connector
from geartrain.errors import DeniedError, HungUpError, NetError, TakenOverError
from geartrain.testing import SeededRandomness

DAY_S = 86_400.0
LANE = Backoff(0.25, 30.0, 1.0, 60.0)


class OverError(Exception):
    """The test has seen enough."""


@dataclass
class Now:
    """A clock that is set by hand, and by whoever sleeps."""

    at_s: float = 100.0
    slept: list[float] = field(default_factory=list)

    def now_us(self) -> int:
        return int(self.at_s * 1e6)

    def monotonic_s(self) -> float:
        return self.at_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at_s += seconds


def connector_of(clock: Now, backoff: Backoff = LANE) -> Connector:
    return Connector(clock, SeededRandomness(1), backoff)


def stayed(clock: Now, connector: Connector, outcomes: list[NetError | None], told: list[str]) -> None:
    """Sessions that end so, one after the other; None: it connects, holds for a minute and is lost."""
    left = iter(outcomes)

    async def session() -> None:
        error = next(left, OverError())
        if error is None:
            connector.is_connected = True
            assert not connector.denied
            await clock.sleep(60)
            clock.slept.pop()
            error = NetError("the connection was lost")
        raise error

    def lost(error: NetError) -> None:
        if news := connector.news(error):
            told.append(news)

    with pytest.raises((OverError, ExceptionGroup)):
        asyncio.run(connector.stay(session, lost))


def test_a_reason_is_told_at_once_and_again_ever_more_seldom_with_its_number() -> None:
    clock = Now()
    connector = connector_of(clock)
    assert connector.news(NetError("refused")) == "refused"
    told = []
    for _ in range(int(DAY_S)):
        clock.at_s += 1.0
        if news := connector.news(NetError("refused")):
            told.append(news)
    assert told[:2] == ["refused (60 times in 60 s)", "refused (120 times in 120 s)"]
    assert told[-1] == f"refused (3600 times in {SAID_S_MAX:.0f} s)"
    assert len(told) < 32
    assert connector.news(NetError("silent")) == "silent"


def test_reasons_that_take_turns_are_told_once_each() -> None:
    clock = Now()
    connector = connector_of(clock)
    told = []
    for second in range(int(SAID_S)):
        clock.at_s += 1.0
        told += [connector.news(NetError(("refused", "silent")[second % 2]))]
    assert [news for news in told if news] == ["refused", "silent"]


def test_a_reason_is_the_same_though_its_text_is_not() -> None:
    clock = Now()
    connector = connector_of(clock)
    told = [connector.news(NetError(f"refused on port {port}", "refused")) for port in range(20)]
    assert [news for news in told if news] == ["refused on port 0"]


def test_after_a_connection_that_was_good_a_reason_is_told_within_a_minute() -> None:
    clock, told = Now(), list[str]()
    hours = [NetError("refused")] * 20_000
    stayed(clock, connector_of(clock), [*hours, None, *[NetError("refused")] * 200], told)
    assert told[-1].startswith("refused (")
    assert "the connection was lost" in told
    assert [news.split(" (")[0] for news in told].index("the connection was lost") < len(told) - 1


def test_whoever_is_denied_tries_seldom_and_whoever_is_refused_tries_each_second() -> None:
    clock = Now()
    stayed(clock, connector_of(clock), [NetError("refused")] * 400, [])
    assert max(clock.slept) <= 1.0
    denied, told = Now(), list[str]()
    connector = connector_of(denied)
    stayed(denied, connector, [DeniedError("revoked")] * 400, told)
    assert max(denied.slept) <= 60.0
    assert min(denied.slept[:4]) >= 0.0
    assert all(pause_s <= 0.25 * 2**tries for tries, pause_s in enumerate(denied.slept[:8], 1))
    assert 25 <= sum(denied.slept[8:]) / len(denied.slept[8:]) <= 35, "drawn from the whole range"
    assert connector.denied == "revoked"
    assert len(told) < 12


def test_denial_ends_with_the_next_answer() -> None:
    clock = Now()
    connector = connector_of(clock)
    stayed(clock, connector, [*[DeniedError("revoked")] * 20, *[NetError("refused")] * 20], [])
    assert not connector.denied
    assert max(clock.slept[20:]) <= 1.0
    clock = Now()
    stayed(clock, connector_of(clock), [*[DeniedError("revoked")] * 20, None, *[NetError("refused")] * 3], [])
    assert clock.slept[20] <= 0.25


def test_where_there_is_no_bound_for_the_denied_it_is_that_of_a_refusal() -> None:
    clock = Now()
    stayed(clock, connector_of(clock, Backoff(0.25, 10.0, 1.0)), [DeniedError("revoked")] * 200, [])
    assert max(clock.slept) <= 1.0


def test_whoever_only_hangs_up_is_tried_ever_more_seldom_and_one_that_restarts_soon() -> None:
    clock, told = Now(), list[str]()
    connector = connector_of(clock)
    down = [NetError("refused")] * 400
    stayed(clock, connector, [*down, HungUpError("closed"), *down, *[HungUpError("closed")] * 400], told)
    assert max(clock.slept[:801]) <= 1.0
    pauses = clock.slept[801:]
    assert all(pause_s <= 0.25 * 2**tries for tries, pause_s in enumerate(pauses[:8], 1))
    assert 25 <= sum(pauses[8:]) / len(pauses[8:]) <= 35, "drawn from the whole range"
    assert not connector.denied


def test_where_there_is_no_bound_for_the_denied_whoever_hangs_up_is_one_that_refuses() -> None:
    clock = Now()
    stayed(clock, connector_of(clock, Backoff(0.25, 10.0, 1.0)), [HungUpError("closed")] * 200, [])
    assert max(clock.slept) <= 1.0


def test_who_is_ended_again_and_again_is_told_of_the_other_client() -> None:
    clock, lost = Now(), list[NetError]()
    connector = Connector(clock, SeededRandomness(1), LANE, "source1")
    left = iter([True, True, True, False, True, True])

    async def session() -> None:
        is_accepted = next(left, None)
        if is_accepted is None:
            raise OverError
        connector.is_connected = is_accepted
        raise HungUpError("the broker has closed the connection")

    with pytest.raises(OverError):
        asyncio.run(connector.stay(session, lost.append))
    assert [isinstance(error, TakenOverError) for error in lost] == [False, False, True, False, False, False]
    assert str(lost[2]).startswith("session_taken_over: each of the last 3 sessions was ended within 60 s")
    assert "the same id, source1" in str(lost[2])
    assert lost[2].reason == "session_taken_over"
