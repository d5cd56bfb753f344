"""Why an entry of the log was made: the codes that ingest and upkeep give, and their sentences.

Beside the ledger, which keeps each as JSON. Guarantees: what a crossing goes over to is read back as data,
whatever its sentence says; a code that this version does not know has a sentence as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from geartrain.errors.reason import Reason
from geartrain.wire.crossing import Crossing


class EntryCode(StrEnum):
    """Why an entry was made. A crossing and a first epoch carry `runs` where the device has said what it
    runs: the fields of `Crossing`, null where they cannot be decoded.
    """

    CROSSING = "crossing"
    FRESH_SPOOL = "fresh_spool"
    CROSSINGS_LOST = "crossings_lost"
    CLAIM_GIVEN_BACK = "claim_given_back"
    FIRST_EPOCH = "first_epoch"
    LATER_EPOCH = "later_epoch"
    BATCHES_LOST = "batches_lost"
    CLAIM_UNKNOWN = "claim_unknown"
    DEVICE_DROPPED = "device_dropped"
    RETIRED_DEVICE = "retired_device"
    SPLIT_LACKING = "split_lacking"
    SPLIT_THERE = "split_there"
    HEARD_AGAIN = "heard_again"
    SILENT = "silent"
    NOT_JOINED = "not_joined"
    REVISION = "revision"
    RETIRED = "retired"
    WITHOUT_SOURCE = "without_source"
    NOT_WITHOUT_SOURCE = "not_without_source"
    FLOW_ENDED = "flow_ended"
    OTHERS_FOLLOWED = "others_followed"
    ROWS_ERASED = "rows_erased"


def dropped_reason(count: int, first: int, last: int, *, is_gap: bool) -> Reason:
    """Why records of a device are not in the log.

    Args:
        count: records.
        first: the number of the first batch that a gap stands for.
        last: the number of the last, or of the batch that told of the records.
        is_gap: whether whole batches were dropped.
    """
    details = (
        {"count": count, "before": last} if not is_gap else {"count": count, "first": first, "last": last}
    )
    return Reason(EntryCode.DEVICE_DROPPED, details)


def crossing_reason(runs: Crossing | None, code: EntryCode = EntryCode.CROSSING) -> Reason:
    """Why a device runs something else from here on; runs: None where that cannot be decoded."""
    return Reason(code, {"runs": None if runs is None else msgspec.to_builtins(runs)})


def runs_of(reason: Reason) -> Crossing | None:
    """What a device runs from an entry on; None where the entry does not say that.

    Raises:
        msgspec.ValidationError: the details are not those that were written.
    """
    runs = reason.details.get("runs")
    return None if runs is None else msgspec.convert(runs, Crossing)


def number_of(reason: Reason) -> int:
    """The number of the revision that a device runs from an entry on; 0 where the entry does not say that."""
    runs = runs_of(reason)
    return 0 if runs is None else runs.number


def entry_sentence(reason: Reason) -> str:
    """Why an entry was made, for a person; empty where there is no reason."""
    if not reason:
        return ""
    make = _SENTENCES.get(reason.code)
    return reason.code.replace("_", " ") if make is None else make(reason.details)


def _of_runs(details: Mapping[str, Any]) -> str:
    runs = details.get("runs")
    return "what the device runs cannot be decoded" if runs is None else str(msgspec.convert(runs, Crossing))


def _of_first_epoch(details: Mapping[str, Any]) -> str:
    sentence = "the first epoch of the device"
    return f"{sentence}: {_of_runs(details)}" if "runs" in details else sentence


def _of_dropped(details: Mapping[str, Any]) -> str:
    which = f"before batch {details['before']}" if "before" in details else ""
    which = which or f"of the batches {details['first']} to {details['last']}"
    return f"{details['count']} records {which} were dropped by the device, whose spool was full or damaged"


_SENTENCES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    EntryCode.CROSSING: _of_runs,
    EntryCode.FRESH_SPOOL: lambda d: f"a fresh spool: {_of_runs(d)}",
    EntryCode.CROSSINGS_LOST: lambda d: (
        f"crossings {d['first']} to {d['last']} never came: what the device kept may be lost"
    ),
    EntryCode.CLAIM_GIVEN_BACK: lambda d: (
        "the device was retired: state that it has claimed and not taken is given back"
    ),
    EntryCode.FIRST_EPOCH: _of_first_epoch,
    EntryCode.LATER_EPOCH: lambda d: (
        f"epoch {d['ordinal']}; epoch {d['ordinal'] - 1} ended at {d['ended_at']}, loss unknown"
    ),
    EntryCode.BATCHES_LOST: lambda d: (
        f"batches {d['first']} to {d['last']} are lost: they never came, and the device no longer holds them"
    ),
    EntryCode.CLAIM_UNKNOWN: lambda d: (
        "the spool knows of no claim: what the device was given goes on in the cloud"
    ),
    EntryCode.DEVICE_DROPPED: _of_dropped,
    EntryCode.RETIRED_DEVICE: lambda d: (
        f"{d['count']} records came after the device was retired, and were declared dropped"
    ),
    EntryCode.SPLIT_LACKING: lambda d: "the device has no split of it",
    EntryCode.SPLIT_THERE: lambda d: "the device has a split of it",
    EntryCode.HEARD_AGAIN: lambda d: "it is heard again",
    EntryCode.SILENT: lambda d: f"nothing was heard of it for {d['limit_s']:g} s",
    EntryCode.NOT_JOINED: lambda d: f"it did not join within {d['limit_s']:g} s",
    EntryCode.REVISION: lambda d: f"what follows is run by revision {d['number']} of the flow",
    EntryCode.RETIRED: lambda d: "it was retired: the clock goes on without it",
    EntryCode.WITHOUT_SOURCE: lambda d: "it has no source of the flow: no clock waits for it",
    EntryCode.NOT_WITHOUT_SOURCE: lambda d: "it was retired, or has a source by now",
    EntryCode.FLOW_ENDED: lambda d: "the flow has ended: what its devices still send is declared dropped",
    EntryCode.OTHERS_FOLLOWED: lambda d: (
        f"no live device of the partition has {', '.join(d['sources'])}: it follows the others"
    ),
    EntryCode.ROWS_ERASED: lambda d: f"{d['count']} rows of {d['channel']} were erased",
}
