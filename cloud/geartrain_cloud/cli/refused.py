"""`gear quarantine` and `gear deadletters`: show what was refused, and put it into the log after all.

Showing works on a running log, resubmitting on a stopped one. Guarantees: what a device wrote is shown with
its control characters escaped. What cannot be resubmitted exactly is refused with a sentence.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from geartrain.errors import LedgerError
from geartrain.printable import printable
from geartrain_client.terminal.screen import print_json, results, table_of
from geartrain_cloud.cli.inspected import Inspected
from geartrain_cloud.errors import StateError
from geartrain_cloud.ingest.resubmit import Resubmitted, resubmit_batch, resubmit_letter
from geartrain_cloud.inspecting.places import log_folder
from geartrain_cloud.inspecting.refused import find_in_tables
from geartrain_cloud.spark.breaker import resume


def list_quarantine(at: Inspected, *, as_json: bool) -> None:
    """Print the quarantined batches; raises `GeartrainError`."""
    found = at.batches()
    if as_json:
        print_json(found)
        return
    heads = ["number", "device", "flow", "seq", "count", "bytes", "state", "reason"]
    lines = [[str(one[head]) for head in heads] for one in found]
    results().print(table_of("", heads, lines, numbers=(0, 3, 4, 5)))


def show_quarantine(at: Inspected, number: int, *, as_json: bool) -> None:
    """Print one quarantined batch, its header where it can be decoded, and its bytes."""
    _print_one(at.batch(number), as_json=as_json)


def put_back_batch(state: Path, number: int, *, as_json: bool) -> None:
    """Log the rows of a quarantined batch; raises `GeartrainError`."""
    _print_done(resubmit_batch(log_folder(state), number), as_json=as_json)


def list_letters(at: Inspected, limit: int, *, as_json: bool) -> None:
    """Print the newest dead letters: of devices out of the log, of Spark's steps out of the tables."""
    shown, count = at.dead_letters(limit)
    if as_json:
        print_json(shown)
        return
    heads = ["id", "device", "step", "event_time", "state", "reason"]
    out = results()
    out.print(table_of("", heads, [[str(one[head] or "") for head in heads] for one in shown]))
    if count > len(shown):
        out.print(f"and {count - len(shown):,} older ones: --limit {count} shows them")


def show_letter(at: Inspected, name: str, *, as_json: bool) -> None:
    """Print one dead letter with its raw form."""
    _print_one(at.dead_letter(name), as_json=as_json)


def put_back_letter(state: Path, name: str, *, as_json: bool) -> None:
    """Log the record of a dead letter; raises `GeartrainError`."""
    if "@" in name:
        found = find_in_tables(state, name)
        raise LedgerError(
            f"dead letter {name} was refused by step {found.step} in the cloud, whose input it is: only what "
            "a source refused can be resubmitted"
        )
    _print_done(resubmit_letter(log_folder(state), name), as_json=as_json)


def _print_one(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out = results()
    for name, value in found.items():
        out.print(printable(f"{name}: {value}"))


def _print_done(done: Resubmitted, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(done))
        return
    below = (
        f"; {done.overtaken} of them lie below its clock and are marked as overtaken"
        if done.overtaken
        else ""
    )
    results().print(f"{done.rows} rows are at position {done.position} of {done.flow}/{done.channel}{below}")


def resume_queries(state: Path) -> None:
    """Let the queries of a run go on that too many dead letters have stopped; raises `GeartrainError`."""
    folders = [folder / "checkpoints" for folder in (state, state / "driver")]
    if not any(folder.is_dir() for folder in folders):
        raise StateError(
            f"there are no checkpoints in {state}: give --state the folder of a run, or the folder that the "
            "driver's configuration calls state"
        )
    found = [name for folder in folders for name in resume(folder)]
    said = f"may go on: {', '.join(found)}; start the driver again" if found else "no query was stopped so"
    results().print(said)
