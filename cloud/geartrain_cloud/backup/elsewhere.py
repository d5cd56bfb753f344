"""Tables of a platform that lie outside of its state folder, which a backup cannot hold.

Before a backup. Guarantees: a backup of a platform that writes such tables is refused while it writes them,
for no moment of both could be had. Once it has stopped, they are named, so that they are copied as well.
"""

from __future__ import annotations

from pathlib import Path

from geartrain.adapters.file_lock import is_held
from geartrain.declarations.cloud_sink import DeltaTable, ParquetTable, PostgresTable
from geartrain_cloud.backup.contents import Contents
from geartrain_cloud.backup.errors import BackupError
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.places import GroupPlaces, HostPlaces
from geartrain_cloud.hosting.prepared import read_prepared
from geartrain_cloud.hosting.versions import Versions
from geartrain_cloud.spark.lock import LOCK_FILE


def check_elsewhere(state: Path) -> tuple[str, ...]:
    """A sentence for each place outside of the state folder that holds tables of the platform.

    Raises:
        BackupError: there is one, and the Spark host runs.
    """
    found = [*_schemas(state), *_sinks(state)]
    if found and is_held(Contents(state).places.spark / LOCK_FILE):
        raise BackupError(
            f"{found[0]}, which gear backup cannot hold at the same moment: end the platform by gear down, "
            "make gear backup and a copy of that, and start it again"
        )
    return tuple(f"{one}: copy that before the platform is started again" for one in found)


def _schemas(state: Path) -> list[str]:
    notes = sorted((state / "apps").glob("*/*.postgresql"))
    return [f"tables of {note.parent.name} are in PostgreSQL" for note in notes]


def _sinks(state: Path) -> list[str]:
    contents = Contents(state)
    host = HostPlaces(contents.places.spark)
    said = set()
    for folder in contents.groups():
        try:
            newest = Versions(GroupPlaces(folder, host.plans, host.code).versions).newest()
            for hosted in newest.flows.values() if newest else ():
                for sink in read_prepared(host.plans, hosted.plan, hosted.code).sinks:
                    place = sink.place().sink
                    if isinstance(place, PostgresTable):
                        said.add(f"sink {sink.id} of {hosted.flow} writes to PostgreSQL")
                    if isinstance(place, ParquetTable | DeltaTable) and _is_outside(place, state):
                        said.add(f"sink {sink.id} of {hosted.flow} writes to {place.folder}")
        except HostError as error:
            raise BackupError(f"what is hosted cannot be read: {error}") from None
    return sorted(said)


def _is_outside(table: ParquetTable | DeltaTable, state: Path) -> bool:
    return bool(table.folder) and state not in Path(table.folder).absolute().parents
