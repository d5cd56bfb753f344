"""`gear log erase`: what a device sent goes out of a stopped log.

Says what went, what still holds it, and what to do about that. Guarantees: without `--yes` nothing is
changed. While a Spark host or a driver runs on the folder nothing is, either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from geartrain.adapters.system import SystemClock
from geartrain.printable import printable
from geartrain_client.terminal.screen import ProgressLine, notices, print_json, results
from geartrain_cloud.control.audit import AuditLog
from geartrain_cloud.control.bearers import LOCAL, Bearer
from geartrain_cloud.ingest.erasure import erasable, erase_device
from geartrain_cloud.inspecting.places import log_folder, run_folder
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.spark.lock import LOCK_FILE, no_reader


def erase(state: Path, device: str, *, do_it: bool, as_json: bool) -> None:
    """Erase what a device sent from the log of `state`, or only say what there is.

    Raises `GeartrainError`.
    """
    folder = log_folder(state)
    if do_it:
        run = run_folder(state)
        locks = [run / "spark" / LOCK_FILE, run / LOCK_FILE]
        with no_reader(locks), _noted(PlatformPlaces(run), device), ProgressLine(notices()) as line:
            found = erase_device(folder, device, lambda what: line.show(lambda: what))
    else:
        found = erasable(folder, device)
    if as_json:
        print_json({"changed": do_it, **asdict(found)})
        return
    out, verb = results(), "were erased" if do_it else "would be erased"
    said = f"{found.rows:,} rows in {found.segments:,} segments and {found.quarantined:,} quarantined batches"
    out.print(printable(f"{said} of {device} {verb}"), soft_wrap=True)
    if found.assigned:
        flows = ", ".join(found.assigned)
        said = f"{device} is still assigned to {flows}: what it sends from now on is logged again"
        out.print(printable(f"{said}, unless it is retired: gear device retire {device}"), soft_wrap=True)
    if not do_it:
        out.print("nothing was changed, and there is no way back: stop the platform, then add --yes")
        return
    for flow in found.flows:
        app = flow.rpartition(".")[0] or flow
        said = f"tables of {flow} still hold it: start the platform, then gear replay {app}"
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
