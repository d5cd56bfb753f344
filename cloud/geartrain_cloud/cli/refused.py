"""`gear quarantine` and `gear deadletters`: show what was refused, and put it into the log after all.

Showing works on a running log, resubmitting on a stopped one, or by REST. Guarantees: what a device wrote is
shown with its control characters escaped. What cannot be resubmitted exactly is refused with a sentence.
"""

from __future__ import annotations

from typing import Any

from geartrain.printable import printable
from geartrain_client.terminal.screen import print_json, results, table_of
from geartrain_cloud.cli.inspected import Inspected


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


def put_back_batch(at: Inspected, number: int, *, as_json: bool) -> None:
    """Log the rows of a quarantined batch; raises `GeartrainError`."""
    _print_done(at.resubmit_batch(number), as_json=as_json)


def list_letters(at: Inspected, limit: int, *, as_json: bool) -> None:
    """Print the newest dead letters: of devices out of the log, of Spark's steps out of the tables."""
    shown, count = at.dead_letters(limit)
    if as_json:
        print_json(shown)
        return
    heads = ["id", "device", "step", "event_time", "state", "code", "reason"]
    out = results()
    out.print(table_of("", heads, [[str(one[head] or "") for head in heads] for one in shown]))
    if count > len(shown):
        out.print(f"and {count - len(shown):,} older ones: --limit {count} shows them")


def show_letter(at: Inspected, name: str, *, as_json: bool) -> None:
    """Print one dead letter with its raw form."""
    _print_one(at.dead_letter(name), as_json=as_json)


def put_back_letter(at: Inspected, name: str, *, as_json: bool) -> None:
    """Log the record of a dead letter; raises `GeartrainError`."""
    _print_done(at.resubmit_letter(name), as_json=as_json)


def _print_one(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out = results()
    for name, value in found.items():
        out.print(printable(f"{name}: {value}"))


def _print_done(done: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    below = ""
    if done["overtaken"]:
        below = f"; {done['overtaken']} of them lie below its clock and are marked as overtaken"
    place = f"position {done['position']} of {done['flow']}/{done['channel']}"
    results().print(printable(f"{done['rows']} rows are at {place}{below}"))
