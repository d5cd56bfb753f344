"""What a host keeps for flows that have left: removed when nothing refers to it any more.

Beside the record's path, in the host's own thread. A version of a plan refers to what it names, as long as a
micro-batch may run under it.

Guarantees: what a version names was durable before it, and goes only after the last version that names it.
So a kill at any moment leaves a file in use, or one that the next look removes. A folder of code leaves its
name in one step, so none is ever used in part.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from geartrain_cloud.hosting.places import GroupPlaces, HostPlaces
from geartrain_cloud.hosting.prepared import prepared_path
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.log.queries import registered, unregister
from geartrain_cloud.spark.compile import HOSTED


def remove_unused_code(places: HostPlaces, kept: Collection[Hosted]) -> None:
    """Remove plans and code that no generation in `kept` runs, and drafts of them.

    Nothing may be in preparation meanwhile. Raises `OSError`.
    """
    plans = {f"{one.plan}.plan" for one in kept}
    plans |= {prepared_path(places.plans, one.plan, one.code).name for one in kept}
    for path in _others(places.plans, plans):
        path.unlink(missing_ok=True)
    for path in _others(places.code, {code for one in kept for code in one.code.values()}):
        draft = path
        if not path.name.startswith("."):
            draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
            path.rename(draft)
        shutil.rmtree(draft)


def remove_unused_state(places: GroupPlaces, kept: Collection[Hosted]) -> None:
    """Remove what a group keeps beside its checkpoint for generations that are not in `kept`.

    Raises `OSError`.
    """
    for path in _others(places.folder / "flows", {one.name for one in kept}):
        shutil.rmtree(path)
    parked = {places.parked(one.flow, one.run).name for one in kept}
    for path in _others(places.folder / "parked", parked):
        shutil.rmtree(path)


def release_log(log: Path, names: Collection[str]) -> None:
    """Have the log kept for no hosted flow but those registered under `names`; raises `LedgerError`.

    log: ingest's folder. A host that ended between registering a flow and publishing it leaves a name that no
    version knows.
    """
    strangers = {(one.name, one.flow) for one in registered(log) if one.name not in names}
    for name, flow in sorted(strangers):
        if name.startswith(f"{HOSTED}@"):
            unregister(log, name, flow)


def _others(folder: Path, names: Collection[str]) -> Iterable[Path]:
    """What lies in a folder under none of these names."""
    return [path for path in folder.iterdir() if path.name not in names] if folder.is_dir() else []
