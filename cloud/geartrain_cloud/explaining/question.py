"""What the short-lived process is asked that reads the log; control imports nothing else of it."""

from __future__ import annotations

from typing import Any

import msgspec

QUESTION_BYTES_MAX = 4 << 20
ANSWER_BYTES_MAX = 3 << 20
PAGE_BYTES_MAX = 48 << 20


class Question(msgspec.Struct, frozen=True, tag="row"):
    """Which row of which app. instance: as the log names it; log: the log's folder; tables: the file of the
    run that is served; limit: records to show; flow, cut, cuts, options, bundle: as the host has
    them; revision: what it runs; former: what it ran before its last update, "" for none; without: the steps
    that are removed from the flow; given_up: as the host has it.
    """

    instance: str
    log: str
    tables: str
    table: str
    key: str
    limit: int
    flow: str
    cut: str | list[str]
    options: dict[str, dict[str, Any]] = {}
    bundle: str = ""
    revision: str = ""
    former: str = ""
    cuts: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    given_up: dict[str, tuple[str, ...]] = {}


class RecordsQuestion(msgspec.Struct, frozen=True, tag="records"):
    """A page of records. after, upto: positions by key, behind the first entry that is meant and at the last,
    empty for the log's; begin, end: event times, microseconds, the end not among them.
    """

    instance: str
    log: str
    begin: int
    end: int
    after: dict[str, int] = {}
    upto: dict[str, int] = {}
