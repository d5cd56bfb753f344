"""How far an app on this machine is, hop by hop, from what its processes say of themselves, and its accounts.

It stands beside the record's path. Guarantees: it never invents progress; what a process has not reported
counts as nothing. Accounts are drawn up from what is durable: spools, ledger and tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geartrain.adapters.sqlite import open_to_read, translated
from geartrain_cloud.log.browse import places as log_places
from geartrain_cloud.platform.places import STATUS_FILE, PlatformPlaces, read_report
from geartrain_cloud.platform.runs import served_run, tables_of_run
from geartrain_cloud.sinks.layout import TableError

_ROWS = "rows."
_BUSY_S = 10.0


@dataclass(frozen=True, slots=True)
class Hops:
    """Totals of an app.

    read: rows that the sources gave; spooled: rows in all channels, which may be more, for a flow can fork;
    batches, acked: of the devices; logged: rows in the log; processed of to_process: entries of the log that
    Spark has brought to the tables; dead_letters: rows among the spooled that could not be processed;
    waiting_for: devices that ingest has not heard of; host: how the Spark host says the app is.
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
    host: str = ""


@dataclass(frozen=True, slots=True)
class Accounts:
    """Rows of one channel on each side of the wire, and of the whole app on each side of Spark."""

    place: str
    before: int
    after: int

    @property
    def is_even(self) -> bool:
        """Whether nothing was lost and nothing doubled here."""
        return self.before == self.after


def agent_status(places: PlatformPlaces, device: str, instance: str) -> Path:
    """What the agent of an instance on a device of this machine says of itself."""
    return places.agent(device, instance) / STATUS_FILE


def served_tables(places: PlatformPlaces, instance: str) -> Path:
    """The tables of an instance that are served."""
    first = places.tables(instance)
    return tables_of_run(first, served_run(first))


def read_hops(places: PlatformPlaces, instance: str, devices: Iterable[str]) -> Hops:
    """The totals as of the last status of each process."""
    agents = [read_report(agent_status(places, device, instance)) for device in devices]
    ingest, host = _of_flow(places.ingest_status, instance), _of_flow(places.spark_status, instance)
    spooled = _spooled_by_channel(agents)
    missing = {name for source in ingest.get("sources", {}).values() for name in source.get("missing", ())}
    processed = sum(host.get("positions", {}).values())
    return Hops(
        read=sum(agent.get("records_read", 0) for agent in agents),
        spooled=sum(spooled.values()),
        batches=sum(agent.get("spooled_seq", 0) for agent in agents),
        acked=sum(agent.get("acked_seq", 0) for agent in agents),
        logged=sum(channel.get("rows", 0) for channel in ingest.get("channels", {}).values()),
        processed=processed,
        to_process=processed + host.get("lag", 0),
        dead_letters=spooled.get("_dead_letters", 0),
        waiting_for=tuple(sorted(missing)),
        host=host.get("state", ""),
    )


def read_accounts(places: PlatformPlaces, instance: str, devices: Iterable[str]) -> list[Accounts]:
    """What went in and what came out: by channel from the spools to the log, and from there to the tables.

    Raises `LedgerError` and `TableError`.
    """
    spooled = _spooled_by_channel(read_report(agent_status(places, d, instance)) for d in devices)
    logged: dict[str, int] = {}
    for place in log_places(places.log):
        if place.flow == instance and place.channel:
            logged[place.channel] = logged.get(place.channel, 0) + place.rows
    found = [
        Accounts(f"channel {channel}", spooled.get(channel, 0), logged.get(channel, 0))
        for channel in sorted(spooled.keys() | logged.keys())
    ]
    _, taken = read_standing(served_tables(places, instance))
    return [*found, Accounts("tables", sum(logged.values()), taken)]


def read_standing(tables: Path) -> tuple[int, int]:
    """The last micro-batch that tables hold, and the rows of the log up to there; raises `TableError`."""
    if not tables.is_file():
        return 0, 0
    with (
        translated(TableError, f"the tables {tables}"),
        closing(open_to_read(tables, busy_s=_BUSY_S)) as database,
    ):
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = '_queries'").fetchone():
            return 0, 0
        select = "SELECT coalesce(sum(batch_id), 0), coalesce(sum(log_rows), 0) FROM _queries"
        found: tuple[int, int] = database.execute(select).fetchone()
        return found


def _of_flow(path: Path, instance: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = read_report(path).get("flows", {}).get(instance, {})
    return found


def _spooled_by_channel(agents: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for agent in agents:
        for name, count in agent.get("counters", {}).items():
            if name.startswith(_ROWS):
                channel = name.removeprefix(_ROWS)
                totals[channel] = totals.get(channel, 0) + count
    return totals
