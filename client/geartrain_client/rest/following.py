"""The events of a platform as they come, across connections that end and restarts of its control.

Between the commands and `GET /events`. Guarantees: it goes on behind the last event that it gave, so that
none is given twice, and a gap is an event of its own, `missed`. A line has at most `LINE_BYTES_MAX`. A
platform that was heard is tried again for `AGAIN_S`. One that never was, or that refuses, is an error at
once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from geartrain.printable import printable
from geartrain_client.errors import FailedError, RefusedError, UnreachableError
from geartrain_client.rest.answers import Event
from geartrain_client.rest.platform import Platform

SILENCE_S = 45.0
"""A platform says something every 15 s: one that has been silent for so long is gone."""
AGAIN_S = 600.0
PAUSE_S, PAUSE_S_MAX = 0.5, 5.0
LINE_BYTES_MAX = 1 << 20
_AGAIN = (429, 502, 503, 504)
"""Statuses of what may be otherwise soon."""


def follow(
    platform: Platform,
    *,
    app: str | None = None,
    since_us: int | None = None,
    lost: Callable[[str], None],
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Event]:
    """Each event, without end.

    app: of this one alone; since_us: from this time on, microseconds, None for the next one; lost: is told
    why a connection has ended, each time before it is tried again. Raises `GeartrainError`.
    """
    last: int | None = None
    heard_s, pause_s = monotonic(), PAUSE_S
    while True:
        ended: UnreachableError | RefusedError | FailedError
        ended = UnreachableError(f"the platform at {platform.door.url} has ended the connection")
        try:
            for number, event in _connection(platform, last, app, since_us):
                last, heard_s, pause_s = number, monotonic(), PAUSE_S
                if event is not None and event.kind == "end":
                    ended = UnreachableError(printable(str(event.said.get("why") or ended)))
                elif event is not None and event.kind != "begin":
                    yield event
        except UnreachableError as error:
            ended = error
        except (RefusedError, FailedError) as error:
            if error.status not in _AGAIN:
                raise
            ended = error
        if last is None or monotonic() - heard_s > AGAIN_S:
            raise ended
        lost(str(ended))
        sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _connection(
    platform: Platform, last: int | None, app: str | None, since_us: int | None
) -> Iterator[tuple[int, Event | None]]:
    """The numbers of one connection, with their events where these are of interest here."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    found: dict[bytes, bytes] = {}
    lines = platform.lines("/events", headers, LINE_BYTES_MAX, SILENCE_S, app=app, since_us=since_us)
    for line in lines:
        name, _, value = line.partition(b":")
        if line:
            found[name] = value.removeprefix(b" ")
            continue
        if not found.keys() & {b"data", b"id"}:
            continue
        try:
            event = msgspec.json.decode(found[b"data"], type=Event) if b"data" in found else None
            number = int(found[b"id"]) if event is None else event.number
        except ValueError as error:  # of msgspec, too
            raise FailedError(
                f"the platform sent what gear does not know ({error}): install the same version of both"
            ) from None
        yield number, event
        found = {}
