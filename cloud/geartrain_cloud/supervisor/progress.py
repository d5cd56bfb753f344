"""How far a run is, hop by hop, from what its processes say of themselves, and its accounts at the end.

It stands beside the record's path. Guarantees: it never invents progress; what a process has not reported
counts as nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from geartrain_cloud.supervisor.deployment import Places, read_status

_ROWS = "rows."


@dataclass(frozen=True, slots=True)
class Hops:
    """Totals of a run.

    read: rows that the sources gave; spooled: rows in all channels, which may be more, for a flow can fork;
    batches, acked: of the devices; logged: rows in the log; processed of to_process: rows that the queries
    have taken and brought to the tables, each query counting those of its channels; dead_letters: rows
    among the spooled that could not be processed; waiting_for: devices that ingest has not heard of.
    """

    read: int = 0
    spooled: int = 0
    batches: int = 0
    acked: int = 0
    logged: int = 0
    processed: int = 0
    to_process: int = 0
    dead_letters: int = 0
    waiting_for: tuple[str, ...] = ()
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Accounts:
    """Rows of one channel on each side of the wire, and of one query on each side of Spark."""

    place: str
    before: int
    after: int

    @property
    def is_even(self) -> bool:
        """Whether nothing was lost and nothing doubled here."""
        return self.before == self.after


def read_hops(places: Places, flow: str, devices: Iterable[str]) -> Hops:
    """The totals as of the last status of each process."""
    agents = [read_status(places.agent_status(device)) for device in devices]
    ingest, driver = _flow_status(places, flow), read_status(places.driver_status)
    spooled, logged = _spooled_by_channel(agents), _logged_by_channel(ingest)
    queries = driver.get("queries", {})
    missing = {name for source in ingest.get("sources", {}).values() for name in source.get("missing", ())}
    return Hops(
        read=sum(agent.get("records_read", 0) for agent in agents),
        spooled=sum(spooled.values()),
        batches=sum(agent.get("spooled_seq", 0) for agent in agents),
        acked=sum(agent.get("acked_seq", 0) for agent in agents),
        logged=sum(logged.values()),
        processed=sum(query.get("log_rows", 0) for query in queries.values()),
        to_process=sum(logged.get(c, 0) for query in queries.values() for c in query.get("channels", ())),
        dead_letters=spooled.get("_dead_letters", 0),
        waiting_for=tuple(sorted(missing)),
        driver=driver.get("state", ""),
    )


def read_accounts(places: Places, flow: str, devices: Iterable[str]) -> list[Accounts]:
    """What went in and what came out, by channel from the spools to the log, and by query from there on."""
    agents = [read_status(places.agent_status(device)) for device in devices]
    spooled, logged = _spooled_by_channel(agents), _logged_by_channel(_flow_status(places, flow))
    found = [
        Accounts(f"channel {channel}", spooled.get(channel, 0), logged.get(channel, 0))
        for channel in sorted(spooled.keys() | logged.keys())
    ]
    for name, query in sorted(read_status(places.driver_status).get("queries", {}).items()):
        before = sum(logged.get(channel, 0) for channel in query.get("channels", ()))
        found.append(Accounts(f"query {name}", before, query.get("log_rows", 0)))
    return found


def _flow_status(places: Places, flow: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = read_status(places.ingest_status).get("flows", {}).get(flow, {})
    return found


def _spooled_by_channel(agents: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for agent in agents:
        for name, count in agent.get("counters", {}).items():
            if name.startswith(_ROWS):
                channel = name.removeprefix(_ROWS)
                totals[channel] = totals.get(channel, 0) + count
    return totals


def _logged_by_channel(ingest: Mapping[str, Any]) -> dict[str, int]:
    return {name: channel.get("rows", 0) for name, channel in ingest.get("channels", {}).items()}
