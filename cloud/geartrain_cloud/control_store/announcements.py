"""Announcements: changes of files beside the store, noted before they are made and told of behind them.

Between who changes files and the events. Guarantees: an event comes at least once for each change that was
made, however control ends. Where it ended in the midst, whoever starts it again says that the change was
perhaps made, or looks. A change that failed is not told.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from geartrain_cloud.control_store.database import ControlDatabase, as_text
from geartrain_cloud.control_store.errors import StoreError
from geartrain_cloud.control_store.events import Events

PERHAPS = "perhaps"
"""In what is said of a change that was perhaps made."""
_KIND = "announced"


class Announced(msgspec.Struct, frozen=True):
    """A change that is being made. number: no two have the same; the others are those of its event."""

    number: int
    kind: str
    device: str
    said: dict[str, Any]


class Announcements:
    """Those of one control store; `now_us` tells the wall clock, microseconds."""

    def __init__(self, database: ControlDatabase, events: Events, now_us: Callable[[], int]) -> None:
        self._database, self._events, self._now_us = database, events, now_us
        self._numbers = itertools.count(now_us())

    @contextmanager
    def announced(
        self, kind: str, device: str, said: Mapping[str, Any], tell: Callable[[], None] | None = None
    ) -> Iterator[Callable[[], None]]:
        """A block in which files are changed; what it gives tells of that, and is called in the transaction
        of the change's answer, or else at the end. Raises `StoreError`.

        tell: does so; None for the event of `kind`, `device` and `said`.
        """
        one = Announced(next(self._numbers), kind, device, dict(said))
        is_told = False
        self._announce(one)

        def told() -> None:
            nonlocal is_told
            tell() if tell else self._events.note(kind, "", device, said)
            self.settle(one)
            is_told = True

        try:
            yield told
        except Exception:  # what ends control leaves it announced
            with suppress(StoreError):
                self.settle(one)
            raise
        if not is_told:
            with self._database.change():
                told()

    def _announce(self, one: Announced) -> None:
        """Note, durably, that a change is about to be made; raises `StoreError`."""
        with self._database.change() as database:
            database.execute(
                "INSERT OR REPLACE INTO told VALUES (?, ?, ?)", (_KIND, as_text(one), self._now_us())
            )

    def settle(self, one: Announced) -> None:
        """Forget an announcement, within the transaction that tells of the change; raises `StoreError`."""
        with self._database.change() as database:
            database.execute("DELETE FROM told WHERE kind = ? AND name = ?", (_KIND, as_text(one)))

    def left(self, *kinds: str) -> list[Announced]:
        """Those of these kinds of which nothing was told, the oldest first; raises `StoreError`."""
        rows = self._database.rows("SELECT name FROM told WHERE kind = ? ORDER BY value", (_KIND,))
        return [
            one
            for one in (msgspec.json.decode(name, type=Announced) for (name,) in rows)
            if one.kind in kinds
        ]

    def tell_left(self, *kinds: str) -> None:
        """Tell that changes which control did not live to tell of were perhaps made; raises `StoreError`."""
        for one in self.left(*kinds):
            with self._database.change():
                self._events.note(one.kind, "", one.device, {**one.said, PERHAPS: True})
                self.settle(one)
