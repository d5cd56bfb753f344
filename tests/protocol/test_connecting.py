"""What a log is told of a connection that cannot be made."""

from __future__ import annotations

from dataclasses import dataclass

from geartrain.adapters.system import SystemRandomness
from geartrain.concurrency.connecting import SAID_S, Backoff, Connector
from geartrain.errors import NetError


@dataclass
class Now:
    """A clock that is set by hand."""

    at_s: float = 100.0

    def now_us(self) -> int:
        return int(self.at_s * 1e6)

    def monotonic_s(self) -> float:
        return self.at_s

    async def sleep(self, seconds: float) -> None:
        self.at_s += seconds


def test_the_same_words_are_told_once_a_minute_and_others_at_once() -> None:
    clock = Now()
    connector = Connector(clock, SystemRandomness(), Backoff(0.25, 30.0))
    refused, silent = NetError("refused"), NetError("silent")
    assert connector.is_news(refused)
    told = 0
    for _ in range(600):  # ten minutes
        clock.at_s += 1.0
        told += connector.is_news(refused)
    assert told == 600 / SAID_S
    assert connector.is_news(silent)
    assert connector.is_news(refused)
    assert not connector.is_news(refused)
