"""What was refused, as JSON values: quarantined batches, and dead letters of the log and of tables.

For `gear quarantine`, `gear deadletters` and REST, on a running log or a stopped one. Guarantees: nothing is
written. A dead letter that stands in the log and in a table is told once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geartrain.errors import LedgerError, WireError
from geartrain.wire.codec import decode_envelope, decode_header
from geartrain_cloud.errors import AbsentError
from geartrain_cloud.ingest.resubmit import find_letter
from geartrain_cloud.inspecting.entries import time_text
from geartrain_cloud.inspecting.places import log_folder
from geartrain_cloud.inspecting.table_letters import TableLetter, letters_in_tables
from geartrain_cloud.log.browse import HeldBatch, LoggedLetter, letters, quarantined


def batches(folder: Path) -> list[dict[str, Any]]:
    """The quarantined batches of the log in `folder`, oldest first; raises `LedgerError`."""
    return [_batch(held) for held in quarantined(folder)]


def batch(folder: Path, number: int) -> dict[str, Any]:
    """One quarantined batch, its header where it can be decoded, and its bytes; raises `LedgerError`."""
    held = quarantined(folder, number)[0]
    payload = held.batch.payload
    return {**_batch(held), "header": _header(payload), "payload": payload.hex()}


def dead_letters(
    state: Path, limit: int, after: int = 0, app: str = ""
) -> tuple[list[dict[str, Any]], int, int | None]:
    """A page of the newest dead letters of a run or a platform, how many there are, and where to go on.

    limit: of the page; after: how many of the newest to pass over; app: only those of this app, "" for all.
    Raises `GeartrainError`.
    """
    logged = list(letters(log_folder(state)))
    known = {(flow, one.letter.step, one.origin) for one in logged for flow in ("", one.flow)}
    tables = [one for one in letters_in_tables(state) if (one.flow, one.step, one.origin) not in known]
    every: list[LoggedLetter | TableLetter] = [*logged, *tables]
    of_app = [one for one in every if is_of(one.flow, app)] if app else every
    end = max(0, len(of_app) - after)
    shown = [_letter(one) for one in of_app[max(0, end - limit) : end]]
    return shown, len(of_app), after + limit if end > limit else None


def dead_letter(state: Path, name: str, app: str = "") -> dict[str, Any]:
    """One dead letter with its raw form; raises `AbsentError` where there is none, in this app if one is
    named.
    """
    found = find_in_tables(state, name) if "@" in name else find_letter(log_folder(state), name)
    if app and not is_of(found.flow, app):
        raise AbsentError(f"there is no dead letter {name} of app {app}: see gear deadletters ls")
    raw, origin = (found.raw if isinstance(found, TableLetter) else found.letter.raw), found.origin
    return {
        **_letter(found),
        "origin": [*origin[:2], origin[2].hex()],
        "raw": raw.decode(errors="backslashreplace"),
        "raw_hex": raw.hex(),
    }


def find_in_tables(state: Path, name: str) -> TableLetter:
    """The dead letter of this id in the tables; raises `AbsentError` where there is none."""
    for found in letters_in_tables(state):
        if found.id == name:
            return found
    raise AbsentError(f"there is no dead letter {name} in the tables: see gear deadletters ls")


def check_is_of_source(state: Path, name: str) -> None:
    """Raise `LedgerError` for a dead letter of a step in the data centre, which cannot be resubmitted."""
    if "@" in name:
        found = find_in_tables(state, name)
        raise LedgerError(
            f"dead letter {name} was refused by step {found.step} in the cloud, whose input it is: only what "
            "a source refused can be resubmitted"
        )


def is_of(flow: str, app: str) -> bool:
    """Whether a flow's name on the wire is that of an instance of the app."""
    return flow.rpartition(".")[0] == app


def _batch(held: HeldBatch) -> dict[str, Any]:
    found = held.batch
    state = "acked" if found.acked else "refused"
    return {
        "number": held.number,
        "device": found.device,
        "flow": found.flow,
        "epoch": found.epoch.hex(),
        "seq": found.seq,
        "count": found.count,
        "bytes": len(found.payload),
        "state": f"resubmitted under term {held.resubmitted}" if held.resubmitted else state,
        "reason": found.reason,
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


def _letter(found: LoggedLetter | TableLetter) -> dict[str, Any]:
    if isinstance(found, TableLetter):
        return {
            "id": found.id,
            "device": "",
            "flow": found.flow,
            "step": found.step,
            "event_time": time_text(found.event_time) if found.event_time else None,
            "state": "in the tables",
            "code": found.code,
            "reason": found.reason,
        }
    return {
        "id": found.id,
        "device": found.device,
        "flow": found.flow,
        "step": found.letter.step,
        "event_time": time_text(found.event_time),
        "state": "resubmitted" if found.resubmitted else "in the log",
        "code": found.letter.code,
        "reason": found.letter.reason,
    }
