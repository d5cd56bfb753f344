"""The status of an agent, and the file in which people and programs on the device read it.

Guarantees: a reader of `status.json` sees one whole status, either the new one or the one before. Only the
file's owner can read it. It is a report and never an input: nothing is decided from it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from geartrain.ports import StateSize
from geartrain_edge.errors import AlarmCode

if TYPE_CHECKING:
    from geartrain_edge.agent.session import Session


DISK_IS_LOW = "its disk has less room than `spool.free_floor`, so its spool does not grow: make room on it"


TIME_IS_UNKNOWN = "the device's clock is not set yet, so live records are kept until it is"


class AgentStatus(msgspec.Struct, frozen=True):
    """An agent at one moment.

    state: `starting`, `greeting` (a fresh spool asks where its device stands), `running`, `blocked` (the
    spool is full), `draining` (nothing is read any more), `finished`, `drained`, `stopped` or `failed`;
    reason: a sentence for `failed`, or for a flow that stands still; epoch: 16 hexadecimal digits;
    spooled_seq, acked_seq: last committed and last trimmed batch; watermarks: by channel, microseconds;
    held: channels that ingest does not know, with the rows of the batch that waits, and all behind it;
    lacks: sources of which this device has no split, null until they are open; counters: totals by name since
    the spool began; written_at_us: wall clock, microseconds; uncommitted_s: for so long there are
    records that were read and are not committed, seconds; awaits_state: it runs its former steps, since what
    the data centre keeps of those that come has not come yet; unmoved: why it did not come when it was last
    claimed, "" before; claims_no_more: it does not claim it again; kept: how much the spool has of each
    step's state; left_out: what of its configuration does not hold for this revision, as sentences;
    alarm_code: what `alarm` is about, for programs, "" for nothing.
    """

    device: str
    flow: str
    state: str
    finished: bool
    connected: bool
    ended: bool
    reason: str
    alarm: str
    epoch: str
    spooled_seq: int
    acked_seq: int
    spool_bytes: int
    records_read: int
    batches_spooled: int
    rejected: int
    late: int
    watermarks: dict[str, int]
    counters: dict[str, int]
    written_at_us: int
    pid: int = 0
    held: dict[str, int] = {}
    lacks: tuple[str, ...] | None = None
    uncommitted_s: float = 0.0
    awaits_state: bool = False
    unmoved: str = ""
    claims_no_more: bool = False
    kept: dict[str, StateSize] = {}
    left_out: tuple[str, ...] = ()
    alarm_code: str = ""


def status_of(
    session: Session | None, device: str, flow: str, state: str, reason: str, now_us: int
) -> AgentStatus:
    """The status of an agent in this state; `session`: None before its spool is open."""
    totals = (
        dict[str, int]() if session is None else session.counters.totals | session.uplink_counters.raised()
    )
    held = {} if session is None else session.uplink.held
    alarm_code, alarm = ("", "") if session is None else _alarm(session)
    return AgentStatus(
        device=device,
        flow=flow,
        state=state,
        finished=state == "finished",
        connected=session is not None and session.uplink.connected,
        ended=session is not None and session.intake.ended,
        reason=reason,
        alarm=alarm,
        alarm_code=alarm_code,
        epoch="" if session is None else session.backlog.epoch.hex(),
        spooled_seq=0 if session is None else session.backlog.last_seq,
        acked_seq=0 if session is None else session.backlog.acked_seq,
        spool_bytes=0 if session is None else session.backlog.bytes,
        records_read=totals.get("records_read", 0),
        batches_spooled=0 if session is None else session.backlog.last_seq,
        rejected=totals.get("rows._dead_letters", 0),
        late=totals.get("rows._late", 0),
        watermarks={} if session is None else dict(session.progress.watermarks),
        counters=totals,
        written_at_us=now_us,
        held=held,
        lacks=None if session is None else session.intake.lacks,
        awaits_state=session is not None and session.down is not None and session.down.given is not None,
        unmoved="" if session is None else session.unmoved,
        claims_no_more=session is not None and session.claims_no_more,
    )


def _alarm(session: Session) -> tuple[str, str]:
    """What must be looked after, as a code and a sentence, both empty for nothing."""
    low = DISK_IS_LOW if session.disk_is_low else ""
    waits, reads = session.intake.waits_for_time, session.intake.untimed.count
    unknown = f"{TIME_IS_UNKNOWN}: {reads} reads wait for it" if waits else ""
    uplink = session.uplink
    found = (
        (uplink.alarm_code, uplink.alarm),
        (AlarmCode.HELD, uplink.held_why),
        (AlarmCode.DENIED, uplink.denied_why),
        (AlarmCode.DISK_IS_LOW, low),
        (AlarmCode.TIME_UNKNOWN, unknown),
    )
    return next(((code.value, sentence) for code, sentence in found if sentence), ("", ""))


def write_status(path: Path, status: AgentStatus) -> None:
    """Replace the file by `status` in one step; raises `OSError`."""
    fresh = path.with_name(f"{path.name}.new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n")
    fresh.replace(path)


class StatusFile:
    """The status file of one flow; written by the flow's loop, or in its place where that stands still."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: AgentStatus | None = None
        self._turn = threading.Lock()

    def write(self, status: AgentStatus) -> None:
        """As `write_status`, in its folder."""
        with self._turn:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._last = status
            write_status(self._path, status)

    def stands_still(self, why: str) -> None:
        """Say so in the status that was written last, from another thread; raises `OSError`."""
        with self._turn:
            if self._last is not None:
                write_status(self._path, replace(self._last, reason=why))
