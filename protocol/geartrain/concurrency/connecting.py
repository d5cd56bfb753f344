"""Staying connected: a session, again after each break, with growing pauses between.

Used by the agent's uplink, ingest and the outbox's sender. Guarantees: the pause is drawn at random from the
whole range (full jitter), so that a fleet does not come back at once. The range doubles with each failure up
to a bound. That is a longer one where the client is denied, or hung up on again and again: trying soon again
is of no use there. A cancellation always ends the loop, even where the session hides it behind a `NetError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from geartrain.concurrency.groups import first_of
from geartrain.concurrency.takeover import TAKEN_OVER, Takeovers, taken_over
from geartrain.errors import DeniedError, HungUpError, NetError, TakenOverError
from geartrain.ports import Clock, Randomness

STEADY_S = 5.0
"""A connection that held for so many seconds was a good one."""
SAID_S, SAID_S_MAX = 60.0, 3_600.0
"""How long the same reason is not said again: doubled each time, up to the second."""
DENIED_S = 60.0
"""The longest pause where a broker refuses a client, until a person has put that right."""
_REASONS_MAX = 8
_DOUBLINGS_MAX = 20


class Backoff(msgspec.Struct, frozen=True):
    """The pauses before a new connection, in seconds.

    first_s: the longest pause after a good connection, doubled by each failure; longest_s: the bound;
    refused_s: the bound where a connection was refused at once, which costs nobody much; denied_s: the bound
    where this client was denied, or hung up on again and again, None where that is like any other refusal.
    """

    first_s: float
    longest_s: float
    refused_s: float = float("inf")
    denied_s: float | None = None


class _Said(msgspec.Struct):
    """A reason that the log was told of. unsaid: how often it came since."""

    at_s: float
    unsaid: int = 0
    silence_s: float = SAID_S


class Connector:
    """Keeps one session up. `is_connected` is set by the session once the connection can be used, and
    `client_id` is what the session connects with.
    """

    def __init__(self, clock: Clock, randomness: Randomness, backoff: Backoff, client_id: str = "") -> None:
        self._clock, self._randomness, self._backoff = clock, randomness, backoff
        self.client_id, self._takeovers = client_id, Takeovers()
        self.is_connected = False
        self._is_good, self._failures, self._hang_ups = False, 0, 0
        self._denied, self._said = "", dict[str, _Said]()

    @property
    def denied(self) -> str:
        """Why the last connection was denied; empty where it was not, or there is one."""
        return "" if self.is_connected else self._denied

    def news(self, error: NetError) -> str:
        """What a log should tell of it: a new reason at once, the same one later and with its number.

        Empty for nothing. A device whose broker is gone tries again every second, for days.
        """
        now_s, said = self._clock.monotonic_s(), self._said.get(error.reason)
        if said is None:
            if len(self._said) >= _REASONS_MAX:
                del self._said[next(iter(self._said))]
            self._said[error.reason] = _Said(now_s)
            return str(error)
        said.unsaid, since_s = said.unsaid + 1, now_s - said.at_s
        if since_s < said.silence_s:
            return ""
        times = f" ({said.unsaid} times in {since_s:.0f} s)" if said.unsaid > 1 else ""
        self._said[error.reason] = _Said(now_s, 0, min(2 * said.silence_s, SAID_S_MAX))
        return f"{error}{times}"

    def succeeded(self) -> None:
        """The other side has answered: the next pause is a short one."""
        self._is_good = True

    async def stay(
        self, session: Callable[[], Coroutine[Any, Any, None]], lost: Callable[[NetError], None]
    ) -> None:
        """Run the session, forever; `lost` hears why each one ended: a `TakenOverError` where another client
        probably has the same id. Raises what is no `NetError`.
        """
        while True:
            self._is_good, began_s = False, self._clock.monotonic_s()
            was_refused, error = True, None
            try:
                error = self._judged(await broken(session()), self._clock.monotonic_s() - began_s)
                if error is not None:
                    lost(error)
            finally:
                was_refused, self.is_connected = not self.is_connected, False
                self._denied = self._denied if was_refused else ""
            took_s = self._clock.monotonic_s() - began_s
            self._denied = str(error) if isinstance(error, DeniedError) else ""
            was_hung_up = was_refused and isinstance(error, HungUpError)
            self._hang_ups = min(self._hang_ups + 1, _DOUBLINGS_MAX) if was_hung_up else 0
            if not was_refused:
                for said in self._said.values():
                    said.silence_s = SAID_S  # what comes after a connection is another trouble
            self._is_good = self._is_good or (not was_refused and took_s >= STEADY_S)
            await self._clock.sleep(self._pause_s(is_quick_refusal=was_refused and took_s < STEADY_S))

    def _judged(self, error: NetError | None, took_s: float) -> NetError | None:
        """Why a session ended, once it is known whether another client has taken it over."""
        is_over = self._takeovers.ended(took_s if self.is_connected else None)
        if not is_over or error is None or isinstance(error, DeniedError):
            return error
        return TakenOverError(taken_over(self.client_id, str(error)), TAKEN_OVER)

    def _pause_s(self, *, is_quick_refusal: bool) -> float:
        self._failures = 0 if self._is_good else min(self._failures + 1, _DOUBLINGS_MAX)
        failures, bound_s, denied_s = self._failures, self._backoff.longest_s, self._backoff.denied_s
        if self._denied and denied_s is not None:
            bound_s = denied_s
        elif self._hang_ups and denied_s is not None:
            # Counted by itself: one that restarts after hours hangs up once, and is tried again soon.
            failures, bound_s = self._hang_ups, denied_s
        elif is_quick_refusal:
            bound_s = min(bound_s, self._backoff.refused_s)
        return self._randomness.uniform(0, min(self._backoff.first_s * 2**failures, bound_s))


async def broken(session: Coroutine[Any, Any, None]) -> NetError | None:
    """Run a session until it ends; why its connection broke, None where it ended by itself.

    Raises what is no `NetError`, and `CancelledError` even where the session put a `NetError` in its place.
    """
    # In its own task: its task groups leave `cancelling()` raised, and ours must tell of our end.
    running = asyncio.create_task(session)
    error: NetError | None = None
    try:
        await running
    except* NetError as group:
        found = first_of(group)
        error = found if isinstance(found, NetError) else NetError(str(found))
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    return error
