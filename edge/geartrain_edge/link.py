"""What the parts of the uplink share: the ports, the state of the sending, what they have the agent do, what
else goes over their connection, and the alarm that stops them for good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from geartrain.ports import Clock, Connection, Net, Randomness, SpoolStore
from geartrain.wire.envelope import Envelope, Welcome
from geartrain_edge.backlog import Backlog, Counters, Identity
from geartrain_edge.errors import AlarmError
from geartrain_edge.flights import Flights
from geartrain_edge.patience import Patience
from geartrain_edge.precedence import Turn
from geartrain_edge.settings import UplinkSettings
from geartrain_edge.window import Window

_LOG = logging.getLogger("geartrain.uplink")


class Effects(msgspec.Struct, frozen=True):
    """The ports that the uplink uses."""

    store: SpoolStore
    net: Net
    clock: Clock
    randomness: Randomness


class Hooks(msgspec.Struct, frozen=True):
    """What the uplink has the agent do.

    renew: begin a new epoch, given the sentence that says why, or raise `AlarmError`; schemas: the flow's
    schemas as an unsequenced envelope; hello: the question that opens an epoch, given its ordinal; hear: take
    the answer.
    """

    renew: Callable[[str], Coroutine[Any, Any, None]]
    schemas: Callable[[], Envelope]
    hello: Callable[[int], Envelope]
    hear: Callable[[Welcome], None]


class Beside(Protocol):
    """What else goes over the same connection: the way down."""

    @property
    def topic(self) -> str:
        """Where it listens, "" for nowhere."""
        ...

    def hear(self, payload: bytes) -> None:
        """Take what came there."""
        ...

    async def speak(self, connection: Connection) -> None:
        """Publish what it has to say, forever; raises `NetError`."""
        ...


class Alarm:
    """What has stopped an uplink for good: a sentence, empty while nothing has."""

    def __init__(self) -> None:
        self.sentence = ""

    def ring(self, sentence: str) -> AlarmError:
        """Note and log it; raise what is returned where it has to stop the agent."""
        self.sentence = sentence
        _LOG.critical("ALARM: %s", sentence)
        return AlarmError(sentence)


class Link(msgspec.Struct, frozen=True):
    """One flow on its way to ingest.

    turn: among the flows of one agent; window: what is sent and not acked; flights: since when; patience: how
    long ingest has been silent.
    """

    settings: UplinkSettings
    who: Identity
    effects: Effects
    backlog: Backlog
    counters: Counters
    turn: Turn
    window: Window
    flights: Flights
    patience: Patience
    alarm: Alarm
