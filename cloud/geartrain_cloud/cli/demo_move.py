"""A demo over a throttled link: one of its steps moves from the data centre to the devices while it runs.

Around the record's path; the move goes by the platform's REST, as `gear move` does. Guarantees: all figures
are the devices' own counters, and what these do not say is not told. A run that was killed goes on with the
move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from geartrain.adapters.files import write_private
from geartrain_client.errors import FailedError, RefusedError
from geartrain_client.rest.platform import SUBMIT_TIMEOUT_S, Platform, segment
from geartrain_cloud.cli.demos import DemoApp
from geartrain_cloud.cli.hops import Hops, agent_status
from geartrain_cloud.cli.link_meter import LinkMeter, Look
from geartrain_cloud.cli.move_report import MoveReport, move_file
from geartrain_cloud.control_store.errors import UnchangedError
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.supervisor.child import Child

BEFORE_S = 12.0
"""So long the flow runs with its step in the data centre, from the first row in a table on."""
SAY_S = 3.0
REPORT_S = 1.0
NOTHING = {"cells": 0, "bytes": 0}
CLAIM_MS = 600_000
"""How long a device waits for the step's state: one that gave up would not run the step before the end."""
DURABILITY = "1s"
"""A device commits so seldom: smaller batches cost more bytes a record, the more of them the link carries."""
GIVEN_UP_S = 1.1 * CLAIM_MS / 1_000
"""So long after the step was told to move the input goes on in any case: no device takes it any more."""
BEHIND_S_MAX = 0.4 * CLAIM_MS / 1_000
"""The step moves when Spark takes no longer for what is in the log, for the state comes down behind that."""
CONFLICT = 409
UNCHANGED = UnchangedError.code
NOBODY = "has=the-step"
"""A selector that means no device."""
_RECORD_BYTES = 4
"""Of a row in a batch, about: commits are made as small as what a second carries."""
_COMMIT_MIN = 250
_BACKLOG_S = 2


def throttled(bytes_per_s: int) -> dict[str, dict[str, int | str]]:
    """What the file of each device holds over such a link. Spools are small, so that sources wait for it."""
    return {
        "uplink": {"bytes_per_s_max": bytes_per_s},
        "spool": {"bytes_max": _BACKLOG_S * bytes_per_s},
        "commit": {
            "records_max": min(10_000, max(_COMMIT_MIN, bytes_per_s // _RECORD_BYTES)),
            "durability": DURABILITY,
            "claim_ms": CLAIM_MS,
        },
    }


def moved_file(places: PlatformPlaces) -> Path:
    """The file for which the second half of the input waits."""
    return places.folder / "moved"


class StepMove:
    """The move of one step in a run; called in each of its turns."""

    def __init__(
        self, app: DemoApp, step: str, bytes_per_s: int, places: PlatformPlaces, say: Callable[[str], None]
    ) -> None:
        """bytes_per_s: of each device's link; say: gets a sentence for whatever is to be seen."""
        self._app, self._step, self._places, self._say = app, step, places, say
        self._bytes_per_s, self._meter = bytes_per_s, LinkMeter()
        self._began: tuple[float, int] | None = None
        self._said_s = 0.0
        self._asked_s = math.inf
        self._has_spark, self._is_asked, self._has_moved = False, False, False
        self.planned = NOBODY, step
        """A cut with which the app is submitted: so the data centre can take the step's rows from devices."""
        self._report = MoveReport(move_file(places), step, bytes_per_s * len(app.devices))
        self._reported_s = 0.0

    def may_begin(self, children: Mapping[str, Child]) -> bool:
        """Whether Spark runs: before, a flow would read its input while nothing can be seen of it."""
        pid = read_report(self._places.spark_status).get("pid")
        pids = [one.pid for one in children.values()]
        self._has_spark = self._has_spark or (pid is not None and pid in pids)
        return self._has_spark

    def turn(self, platform: Platform, hops: Hops, now_s: float, *, runs: bool) -> None:
        """Look at the link, and have the step move once it is time; now_s: monotonic seconds; runs: whether
        the app does, so that it can be changed.

        Raises `GeartrainError`.
        """
        said = {
            one: read_report(agent_status(self._places, one, self._app.instance)) for one in self._app.devices
        }
        look = _look(said, now_s)
        self._meter.add(look, asked=self._is_asked)
        if hops.processed and self._began is None:
            self._began = now_s, hops.processed
        if now_s - self._said_s >= SAY_S and look.read:
            self._said_s = now_s
            self._tell(look, hops)
        if self._is_asked and not self._has_moved and look.has_moved:
            self._has_moved = True
            self._let_go()
            self._say(f"step {self._step} runs on the devices, with what the data centre kept of it")
        if runs and not self._is_asked and self._is_time(hops, now_s):
            self._ask(platform, now_s)
        if self._is_asked and now_s - self._asked_s > GIVEN_UP_S:
            self._let_go()
        if now_s - self._reported_s >= REPORT_S and look.read:
            self._reported_s = now_s
            devices = [_device(name, one, self._step) for name, one in said.items()]
            self._report.write(look, self._meter, devices, self._in_cloud(), hops.to_process - hops.processed)

    def _is_time(self, hops: Hops, now_s: float) -> bool:
        """Whether there is something to compare with, and Spark is not too far behind."""
        if self._began is None or now_s - self._began[0] < BEFORE_S:
            return False
        per_s = (hops.processed - self._began[1]) / (now_s - self._began[0])
        return hops.to_process - hops.processed <= BEHIND_S_MAX * per_s

    def _ask(self, platform: Platform, now_s: float) -> None:
        body = {"step": self._step, "to": "edge", "devices": "all"}
        try:
            path = f"/apps/{segment(self._app.name)}/move"
            answer = platform.change("POST", path, body, SUBMIT_TIMEOUT_S)
            self._report.steps = [one["step"] for one in answer["moves"]]
        except (RefusedError, FailedError) as error:
            if error.status != CONFLICT:
                raise
            if error.code != UNCHANGED:
                return  # another change is under way: the next turn asks again
        self._is_asked, self._asked_s = True, now_s
        self._report.asked(now_s)
        command = f"gear move {self._app.name} {self._step} --to edge"
        self._say(f"step {self._step} is told to move to the devices: {command}")

    def _let_go(self) -> None:
        """Let the input go on, which waits for the step: a slow machine would else read all of it before."""
        path = moved_file(self._places)
        if not path.exists():
            write_private(path, "")

    def _in_cloud(self) -> Any:
        """What the data centre keeps of the step, None where Spark does not say."""
        host = read_report(self._places.spark_status).get("flows", {}).get(self._app.instance, {})
        kept = host.get("kept")
        return None if kept is None else kept.get(self._step, NOTHING)

    def _tell(self, look: Look, hops: Hops) -> None:
        rate = self._meter.now
        if rate is None or not rate.records_per_s:
            return
        whole = self._bytes_per_s * len(self._app.devices)
        behind = hops.to_process - hops.processed
        self._say(
            f"link: {rate}, of {whole / 1_000:,.0f} kB/s; the cloud is {look.waiting / whole:.1f} s behind "
            f"on the link ({look.waiting / 1_000:,.0f} kB), and {behind:,} entries behind in Spark"
        )

    def lines(self) -> list[str]:
        """What the move has saved, for people."""
        before, after = self._meter.before, self._meter.after
        if before is None or after is None or not before.record_bytes:
            return [f"link: step {self._step} has not moved before the input came to its end"]
        saved = 100 * (1 - after.record_bytes / before.record_bytes)
        less = f"{saved:.0f} % of the bytes of a record are saved"
        return [
            f"link in the last {before.seconds:.0f} s before the move of {self._step}: {before}",
            f"link in the first {after.seconds:.0f} s after it: {after}: {less}",
        ]


def _look(said: Mapping[str, Mapping[str, Any]], now_s: float) -> Look:
    sealed = read = waiting = crossed = left = 0
    for one in said.values():
        counters = one.get("counters", {})
        sealed += counters.get("bytes_sealed", 0)
        read += one.get("records_read", 0)
        waiting += one.get("spool_bytes", 0)
        crossed += bool(counters.get("crossings"))
        left += not counters.get("crossings") and not one.get("finished")
    return Look(now_s, sealed, read, waiting, crossed, left)


def _device(name: str, said: Mapping[str, Any], step: str) -> dict[str, Any]:
    """What the page is told of a device."""
    counters = said.get("counters", {})
    return {
        "device": name,
        "runs_step": bool(counters.get("crossings")),
        "awaits_state": bool(said.get("awaits_state")),
        "finished": bool(said.get("finished")),
        "waiting_bytes": said.get("spool_bytes", 0),
        "kept": said.get("kept", {}).get(step, NOTHING),
        "cells_taken": counters.get("cells_taken", 0),
    }
