"""`gear log erase`: what a device sent goes out of the log: of a stopped one here, of any by REST.

Says what went, what still holds it, and what to do about that. Guarantees: without `--yes` nothing is
changed. While a Spark host or a backup runs on the folder nothing is, either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from geartrain.adapters.system import SystemClock
from geartrain.printable import printable
from geartrain_client.terminal.screen import ProgressLine, notices, print_json, results
from geartrain_cloud.control_store.bearers import LOCAL, Bearer
from geartrain_cloud.ingest.erasure import Erased, erasable, erase_device
from geartrain_cloud.inspecting.places import log_folder, run_folder
from geartrain_cloud.platform.held_files import erasable_files
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.rest.audit import AuditLog
from geartrain_cloud.spark.lock import LOCK_FILE, no_reader


def erased_in(state: Path, device: str, *, do_it: bool) -> Erased:
    """Erase what a device sent from the log of `state`, or only say what there is.

    Raises `GeartrainError`.
    """
    folder = log_folder(state)
    if not do_it:
        return erasable(folder, device)
    run = run_folder(state)
    locks = [run / "spark" / LOCK_FILE, run / LOCK_FILE]
    noted = _noted(PlatformPlaces(run), device)
    with no_reader(locks), erasable_files(run), noted, ProgressLine(notices()) as line:
        return erase_device(folder, device, lambda what: line.show(lambda: what))


def show_erased(device: str, found: dict[str, Any], *, as_json: bool) -> None:
    """Print what was erased of a device, or would be, and what still holds it."""
    if as_json:
        print_json(found)
        return
    out, verb = results(), "were erased" if found["changed"] else "would be erased"
    rows, segments = f"{found['rows']:,} rows", f"{found['segments']:,} segments"
    said = f"{rows} in {segments} and {found['quarantined']:,} quarantined batches"
    out.print(printable(f"{said} of {device} {verb}"), soft_wrap=True)
    if found["assigned"]:
        flows = ", ".join(found["assigned"])
        said = f"{device} is still assigned to {flows}: what it sends from now on is logged again"
        out.print(printable(f"{said}, unless it is retired: gear device retire {device}"), soft_wrap=True)
    if not found["changed"]:
        out.print("nothing was changed, and there is no way back: add --yes", soft_wrap=True)
        return
    for flow in found["flows"]:
        app = flow.rpartition(".")[0] or flow
        said = f"tables of {flow} still hold it: gear replay {app}, once the platform runs"
        out.print(printable(said), soft_wrap=True)


@contextmanager
def _noted(places: PlatformPlaces, device: str) -> Iterator[None]:
    """Note in a platform's audit log what is done, before it is, and whether it was; raises `StoreError`."""
    if not places.control.exists():  # the log of a run of its own
        yield
        return
    log = AuditLog(places.audit, SystemClock().now_us)
    try:
        number = log.begin(Bearer(LOCAL, "admin"), "", "gear log erase", ("", device), "")
        yield
        log.end(number, 200, "ok", {})
    finally:
        log.close()
