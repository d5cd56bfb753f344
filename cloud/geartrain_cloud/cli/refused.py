"""`gear quarantine` and `gear deadletters`: show what was refused, and put it into the log after all.

Showing works on a running log, resubmitting on a stopped one. Guarantees: what a device wrote is shown with
its control characters escaped. What cannot be resubmitted exactly is refused with a sentence.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from geartrain.errors import LedgerError, WireError
from geartrain.printable import printable
from geartrain.wire.codec import decode_envelope, decode_header
from geartrain_client.terminal.screen import print_json, results, table_of
from geartrain_cloud.cli.log import time_text
from geartrain_cloud.cli.state_place import log_folder
from geartrain_cloud.cli.table_letters import TableLetter, letters_in_tables
from geartrain_cloud.errors import StateError
from geartrain_cloud.ingest.resubmit import Resubmitted, find_letter, resubmit_batch, resubmit_letter
from geartrain_cloud.log.browse import HeldBatch, LoggedLetter, letters, quarantined
from geartrain_cloud.spark.breaker import resume


def list_quarantine(state: Path, *, as_json: bool) -> None:
    """Print the quarantined batches; raises `GeartrainError`."""
    found = [_batch(held) for held in quarantined(log_folder(state))]
    if as_json:
        print_json(found)
        return
    heads = ["number", "device", "flow", "seq", "count", "bytes", "state", "reason"]
    lines = [[str(one[head]) for head in heads] for one in found]
    results().print(table_of("", heads, lines, numbers=(0, 3, 4, 5)))


def show_quarantine(state: Path, number: int, *, as_json: bool) -> None:
    """Print one quarantined batch, its header where it can be decoded, and its bytes."""
    held = quarantined(log_folder(state), number)[0]
    found = {**_batch(held), "header": _header(held.batch.payload), "payload": held.batch.payload.hex()}
    _print_one(found, as_json=as_json)


def put_back_batch(state: Path, number: int, *, as_json: bool) -> None:
    """Log the rows of a quarantined batch; raises `GeartrainError`."""
    _print_done(resubmit_batch(log_folder(state), number), as_json=as_json)


def list_letters(state: Path, limit: int, *, as_json: bool) -> None:
    """Print the newest dead letters: of devices out of the log, of Spark's steps out of the tables."""
    logged = list(letters(log_folder(state)))
    found = [_letter(one) for one in logged] + _letters_of_tables(state, logged)
    shown = found[-limit:]
    if as_json:
        print_json(shown)
        return
    heads = ["id", "device", "step", "event_time", "state", "reason"]
    out = results()
    out.print(table_of("", heads, [[str(one[head] or "") for head in heads] for one in shown]))
    if len(found) > len(shown):
        out.print(f"and {len(found) - len(shown):,} older ones: --limit {len(found)} shows them")


def show_letter(state: Path, name: str, *, as_json: bool) -> None:
    """Print one dead letter with its raw form."""
    if "@" in name:
        in_tables = _find_in_tables(state, name)
        shown, origin, raw = _table_letter(in_tables), in_tables.origin, in_tables.raw
    else:
        found = find_letter(log_folder(state), name)
        shown, origin, raw = _letter(found), found.origin, found.letter.raw
    more = {
        "origin": [*origin[:2], origin[2].hex()],
        "raw": raw.decode(errors="backslashreplace"),
        "raw_hex": raw.hex(),
    }
    _print_one({**shown, **more}, as_json=as_json)


def put_back_letter(state: Path, name: str, *, as_json: bool) -> None:
    """Log the record of a dead letter; raises `GeartrainError`."""
    if "@" in name:
        found = _find_in_tables(state, name)
        raise LedgerError(
            f"dead letter {name} was refused by step {found.step} in the cloud, whose input it is: only what "
            "a source refused can be resubmitted"
        )
    _print_done(resubmit_letter(log_folder(state), name), as_json=as_json)


def _batch(held: HeldBatch) -> dict[str, Any]:
    batch = held.batch
    state = "acked" if batch.acked else "refused"
    return {
        "number": held.number,
        "device": batch.device,
        "flow": batch.flow,
        "epoch": batch.epoch.hex(),
        "seq": batch.seq,
        "count": batch.count,
        "bytes": len(batch.payload),
        "state": f"resubmitted under term {held.resubmitted}" if held.resubmitted else state,
        "reason": batch.reason,
    }


def _header(payload: bytes) -> dict[str, Any] | str:
    try:
        header = decode_header(decode_envelope(payload).header)
    except WireError as error:
        return f"cannot be decoded: {error}"
    return {
        "kind": header.kind.name.lower(),
        "channel": header.channel,
        "schema_id": header.schema_id,
        "count": header.count,
        "first_number": header.first_number,
        "watermarks": dict(header.watermarks),
    }


def _letter(found: LoggedLetter) -> dict[str, Any]:
    return {
        "id": found.id,
        "device": found.device,
        "flow": found.flow,
        "step": found.letter.step,
        "event_time": time_text(found.event_time),
        "state": "resubmitted" if found.resubmitted else "in the log",
        "reason": found.letter.reason,
    }


def _letters_of_tables(state: Path, logged: list[LoggedLetter]) -> list[dict[str, Any]]:
    known = {(one.letter.step, one.origin) for one in logged}
    return [_table_letter(one) for one in letters_in_tables(state) if (one.step, one.origin) not in known]


def _table_letter(found: TableLetter) -> dict[str, Any]:
    return {
        "id": found.id,
        "device": "",
        "flow": "",
        "step": found.step,
        "event_time": time_text(found.event_time) if found.event_time else None,
        "state": "in the tables",
        "reason": found.reason,
    }


def _find_in_tables(state: Path, name: str) -> TableLetter:
    for found in letters_in_tables(state):
        if found.id == name:
            return found
    raise LedgerError(f"there is no dead letter {name} in the tables: see gear deadletters ls")


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
