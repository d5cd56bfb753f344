"""What `gear log`, `gear quarantine` and `gear deadletters` look into: a platform over REST, or a folder.

Guarantees: both give the same values, so that what is printed does not tell which it was. A folder is looked
into where `--state` names one, or where the working directory holds a log and no platform is named.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from geartrain.adapters.system import SystemClock
from geartrain_client.cli.platform_options import platform_at
from geartrain_client.rest import door
from geartrain_client.rest.platform import Platform, segment
from geartrain_cloud.cli.erase import erased_in
from geartrain_cloud.errors import StateError
from geartrain_cloud.ingest.resubmit import resubmit_batch, resubmit_letter
from geartrain_cloud.inspecting import devices, entries, refused
from geartrain_cloud.inspecting.places import log_folder
from geartrain_cloud.log.retention import Retention, retain

VERIFY_S = 330.0
"""How long an answer may take for which the whole log is read."""
REPAIR_S = 1_800.0
"""How long one may take for which processes pause and files are written anew."""
PAGE_ENTRIES = 1_000


class Inspected(Protocol):
    """Values are those of JSON. Every method raises `GeartrainError`."""

    def channels(self) -> list[dict[str, Any]]:
        """Every channel of the log."""

    def entries(
        self, flow: str, channel: str, partition: int, after: int | None, limit: int, *, with_rows: bool
    ) -> list[dict[str, Any]]:
        """At most `limit` entries that follow `after`, or the newest."""

    def verified(self) -> dict[str, Any]:
        """Whether the log is whole."""

    def trim(self, limits: Retention) -> dict[str, Any]:
        """Remove what may go; what went."""

    def queries(self) -> list[dict[str, Any]]:
        """The queries for which the log is kept."""

    def forget(self, query: str) -> None:
        """Keep nothing for a query any more."""

    def devices(self) -> list[dict[str, Any]]:
        """Where each device stands."""

    def batches(self) -> list[dict[str, Any]]:
        """The quarantined batches."""

    def batch(self, number: int) -> dict[str, Any]:
        """One of them."""

    def dead_letters(self, limit: int) -> tuple[list[dict[str, Any]], int]:
        """The newest dead letters, and how many there are."""

    def dead_letter(self, name: str) -> dict[str, Any]:
        """One of them."""

    def resubmit_batch(self, number: int) -> dict[str, Any]:
        """Log the rows of a quarantined batch; the entry that they have become."""

    def resubmit_letter(self, name: str) -> dict[str, Any]:
        """Log the record of a dead letter; the entry that it has become."""

    def erase(self, device: str, *, do_it: bool) -> dict[str, Any]:
        """Take what a device has sent out of the log, or only say what there is."""


def inspected(url: str | None, state: Path | None) -> Inspected:
    """What is meant by `--url` and `--state`; raises `GeartrainError`."""
    if state is not None and url is None:
        return InFolder(state)
    if url is None and not os.environ.get(door.URL):
        try:
            log_folder(Path())
        except StateError:
            pass
        else:
            return InFolder(Path())
    return OnPlatform(platform_at(url, state))


class InFolder:
    """The folder of a run, of a platform or of a log, with whatever runs on it or not."""

    def __init__(self, state: Path) -> None:
        self.state, self._folder = state, log_folder(state)

    def channels(self) -> list[dict[str, Any]]:
        """Every channel of the log."""
        return entries.channels(self._folder)

    def entries(
        self, flow: str, channel: str, partition: int, after: int | None, limit: int, *, with_rows: bool
    ) -> list[dict[str, Any]]:
        """At most `limit` entries that follow `after`, or the newest."""

        def page(after: int | None, limit: int) -> tuple[list[dict[str, Any]], int | None]:
            return entries.entries(
                self._folder,
                flow,
                channel,
                partition=partition,
                after=after,
                limit=limit,
                with_rows=with_rows,
            )

        return _in_pages(page, after, limit)

    def verified(self) -> dict[str, Any]:
        """Whether the log is whole."""
        return entries.verified(self._folder)

    def trim(self, limits: Retention) -> dict[str, Any]:
        """Remove what may go; what went."""
        return asdict(retain(self._folder, limits, SystemClock().now_us()))

    def queries(self) -> list[dict[str, Any]]:
        """The queries for which the log is kept."""
        return entries.queries(self._folder)

    def forget(self, query: str) -> None:
        """Keep nothing for a query any more."""
        entries.forget(self._folder, query)

    def devices(self) -> list[dict[str, Any]]:
        """Where each device stands."""
        return devices.describe_devices(self.state)

    def batches(self) -> list[dict[str, Any]]:
        """The quarantined batches."""
        return refused.batches(self._folder)

    def batch(self, number: int) -> dict[str, Any]:
        """One of them."""
        return refused.batch(self._folder, number)

    def dead_letters(self, limit: int) -> tuple[list[dict[str, Any]], int]:
        """The newest dead letters, and how many there are."""
        found, count, _ = refused.dead_letters(self.state, limit)
        return found, count

    def dead_letter(self, name: str) -> dict[str, Any]:
        """One of them."""
        return refused.dead_letter(self.state, name)

    def resubmit_batch(self, number: int) -> dict[str, Any]:
        """Log the rows of a quarantined batch, while no ingest runs."""
        return asdict(resubmit_batch(self._folder, number))

    def resubmit_letter(self, name: str) -> dict[str, Any]:
        """Log the record of a dead letter, while no ingest runs."""
        refused.check_is_of_source(self.state, name)
        return asdict(resubmit_letter(self._folder, name))

    def erase(self, device: str, *, do_it: bool) -> dict[str, Any]:
        """Take what a device has sent out of the log, while neither ingest nor Spark runs."""
        return {"changed": do_it, **asdict(erased_in(self.state, device, do_it=do_it))}


class OnPlatform:
    """A platform that runs, over REST."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def channels(self) -> list[dict[str, Any]]:
        """Every channel of the log."""
        return list(self._platform.items("/log"))

    def entries(
        self, flow: str, channel: str, partition: int, after: int | None, limit: int, *, with_rows: bool
    ) -> list[dict[str, Any]]:
        """At most `limit` entries that follow `after`, or the newest."""
        more: dict[str, Any] = {
            "channel": channel or None,
            "partition": partition,
            "rows": "yes" if with_rows else "no",
        }

        def page(after: int | None, limit: int) -> tuple[list[dict[str, Any]], int | None]:
            found = self._platform.get(
                f"/log/{segment(flow)}/entries", after=after, limit=min(limit, PAGE_ENTRIES), **more
            )
            return found["items"], found["next"]

        return _in_pages(page, after, limit)

    def verified(self) -> dict[str, Any]:
        """Whether the log is whole."""
        return dict(self._platform.get("/log/verify", timeout_s=VERIFY_S))

    def trim(self, limits: Retention) -> dict[str, Any]:
        """Remove what may go; what went."""
        body = {"older_than_s": limits.older_than_s, "bytes_max": limits.bytes_max}
        return dict(self._platform.change("POST", "/log/trim", body, VERIFY_S))

    def queries(self) -> list[dict[str, Any]]:
        """The queries for which the log is kept."""
        return list(self._platform.items("/log/queries"))

    def forget(self, query: str) -> None:
        """Keep nothing for a query any more."""
        self._platform.change("POST", f"/log/queries/{segment(query)}/forget", {})

    def devices(self) -> list[dict[str, Any]]:
        """Where each device stands."""
        return list(self._platform.items("/log/devices"))

    def batches(self) -> list[dict[str, Any]]:
        """The quarantined batches."""
        return list(self._platform.items("/quarantine"))

    def batch(self, number: int) -> dict[str, Any]:
        """One of them."""
        return dict(self._platform.get(f"/quarantine/{number}"))

    def dead_letters(self, limit: int) -> tuple[list[dict[str, Any]], int]:
        """The newest dead letters, and how many there are."""
        found: list[dict[str, Any]] = []
        after: int | None = 0
        count = 0
        while after is not None and len(found) < limit:
            page = self._platform.get(
                "/deadletters", limit=min(limit - len(found), PAGE_ENTRIES), after=after
            )
            found, count, after = [*page["items"], *found], page["count"], page["next"]
        return found, count

    def dead_letter(self, name: str) -> dict[str, Any]:
        """One of them."""
        return dict(self._platform.get(f"/deadletters/{segment(name)}"))

    def resubmit_batch(self, number: int) -> dict[str, Any]:
        """Log the rows of a quarantined batch, for which ingest pauses."""
        return self._repaired(f"/quarantine/{number}/resubmit", {})

    def resubmit_letter(self, name: str) -> dict[str, Any]:
        """Log the record of a dead letter, for which ingest pauses."""
        return self._repaired(f"/deadletters/{segment(name)}/resubmit", {})

    def erase(self, device: str, *, do_it: bool) -> dict[str, Any]:
        """Take what a device has sent out of the log, for which ingest and Spark pause."""
        return self._repaired(f"/log/devices/{segment(device)}/erase", {"dry_run": not do_it})

    def _repaired(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return dict(self._platform.change("POST", path, body, REPAIR_S))


Page = Callable[[int | None, int], tuple[list[dict[str, Any]], int | None]]


def _in_pages(page: Page, after: int | None, limit: int) -> list[dict[str, Any]]:
    """Entries page by page: a page is shorter where rows fill it."""
    found, following = page(after, limit)
    while following is not None and len(found) < limit:
        more, following = page(following, limit - len(found))
        found += more
    return found[:limit]
