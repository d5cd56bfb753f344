"""A demo over a throttled link: one of its steps moves from the data centre to the devices while it runs.

Around the record's path; the move goes by the platform's REST, as `gear move` does. Guarantees: all figures
are the devices' own counters, and what these do not say is not told. A run that was killed goes on with the
move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from geartrain_client.errors import FailedError, RefusedError
from geartrain_client.rest.platform import SUBMIT_TIMEOUT_S, Platform, segment
from geartrain_cloud.cli.demos import DemoApp
from geartrain_cloud.cli.hops import Hops, agent_status
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.supervisor.child import Child

BEFORE_S = 12.0
"""So long the flow runs with its step in the data centre, from the first row in a table on."""
SPAN_S = 6.0
"""Rates are over the last so many seconds."""
SAY_S = 3.0
CLOSE = 0.2
"""The step moves when at most this part of the log is not in the tables: its state comes down behind that."""
CLAIM_MS = 120_000
"""How long a device waits for the step's state: one that gave up would not run the step before the end."""
CONFLICT = 409
_RECORD_BYTES = 4
"""Of a row in a batch, about: commits are made as small as what a second carries."""
_COMMIT_MIN = 250
_BACKLOG_S = 2


def throttled(bytes_per_s: int) -> dict[str, dict[str, int]]:
    """What the file of each device holds over such a link. Spools are small, so that sources wait for it."""
    return {
        "uplink": {"bytes_per_s_max": bytes_per_s},
        "spool": {"bytes_max": _BACKLOG_S * bytes_per_s},
        "commit": {
            "records_max": min(10_000, max(_COMMIT_MIN, bytes_per_s // _RECORD_BYTES)),
            "claim_ms": CLAIM_MS,
        },
    }


@dataclass(frozen=True, slots=True)
class Look:
    """Totals of all devices: sealed: bytes of batches; read: records; waiting: bytes without an ack; crossed:
    devices that run the step; left: those that neither do so nor have ended; at_s: monotonic seconds.
    """

    at_s: float
    sealed: int
    read: int
    waiting: int
    crossed: int
    left: int

    @property
    def has_moved(self) -> bool:
        """Whether the step runs on the devices, but for those that have ended before."""
        return self.crossed > 0 and not self.left


@dataclass(frozen=True, slots=True)
class Rate:
    """Over a span of the run: bytes and records a second."""

    bytes_per_s: float
    records_per_s: float

    @staticmethod
    def between(first: Look, last: Look) -> Rate:
        """From one look to a later one."""
        seconds = max(last.at_s - first.at_s, 0.001)
        return Rate((last.sealed - first.sealed) / seconds, (last.read - first.read) / seconds)

    @property
    def record_bytes(self) -> float:
        """The bytes that a record takes on the link; 0 where none was read."""
        return self.bytes_per_s / self.records_per_s if self.records_per_s > 0 else 0.0

    def __str__(self) -> str:
        each = f"{self.record_bytes:,.2f} bytes each"
        return f"{self.bytes_per_s / 1_000:,.1f} kB/s for {self.records_per_s:,.0f} records/s, {each}"


class LinkMeter:
    """What the link carries before and after the move, from looks at the devices' counters."""

    def __init__(self) -> None:
        self._recent = deque[Look]()
        self._first: Look | None = None
        self._last_before: Look | None = None
        self._first_after: Look | None = None
        self._last: Look | None = None

    def add(self, look: Look, *, asked: bool) -> None:
        """Take a look; asked: whether the step was told to move by then."""
        if self._last is not None and (look.read < self._last.read or look.sealed < self._last.sealed):
            return  # an agent begins again and has not said yet where it is
        is_news = self._last is None or look.read > self._last.read
        self._recent.append(look)
        while look.at_s - self._recent[0].at_s > SPAN_S:
            self._recent.popleft()
        if look.read and self._first is None:
            self._first = look
        if not asked:
            self._last_before = look
        elif look.has_moved and self._first_after is None:
            self._first_after = look
        if is_news:  # what comes behind the last record is no rate
            self._last = look

    @property
    def now(self) -> Rate | None:
        """The rate of late."""
        return Rate.between(self._recent[0], self._recent[-1]) if len(self._recent) > 1 else None

    @property
    def before(self) -> Rate | None:
        """From the first record to the moment when the step was told to move."""
        return _rate(self._first, self._last_before)

    @property
    def after(self) -> Rate | None:
        """From the moment when all devices ran the step to the last record."""
        return _rate(self._first_after, self._last)


def _rate(first: Look | None, last: Look | None) -> Rate | None:
    if first is None or last is None or last.at_s <= first.at_s or last.read <= first.read:
        return None
    return Rate.between(first, last)


class StepMove:
    """The move of one step in a run; called in each of its turns."""

    def __init__(
        self, app: DemoApp, step: str, bytes_per_s: int, places: PlatformPlaces, say: Callable[[str], None]
    ) -> None:
        """bytes_per_s: of each device's link; say: gets a sentence for whatever is to be seen."""
        self._app, self._step, self._places, self._say = app, step, places, say
        self._bytes_per_s, self._meter = bytes_per_s, LinkMeter()
        self._began_s: float | None = None
        self._said_s = 0.0
        self._has_spark, self._is_asked, self._has_moved = False, False, False

    def may_begin(self, children: Mapping[str, Child]) -> bool:
        """Whether Spark runs: before, a flow would read its input while nothing can be seen of it."""
        pid = read_report(self._places.spark_status).get("pid")
        self._has_spark = self._has_spark or any(pid == one.pid is not None for one in children.values())
        return self._has_spark

    def turn(self, platform: Platform, hops: Hops, now_s: float) -> None:
        """Look at the link, and have the step move once it is time; now_s: monotonic seconds.

        Raises `GeartrainError`.
        """
        look = self._look(now_s)
        self._meter.add(look, asked=self._is_asked)
        if hops.processed and self._began_s is None:
            self._began_s = now_s
        if now_s - self._said_s >= SAY_S and look.read:
            self._said_s = now_s
            self._tell(look, hops)
        if self._is_asked and not self._has_moved and look.has_moved:
            self._has_moved = True
            self._say(f"step {self._step} runs on the devices, with what the data centre kept of it")
        is_close = hops.to_process - hops.processed <= CLOSE * hops.to_process
        if (
            not self._is_asked
            and self._began_s is not None
            and now_s - self._began_s >= BEFORE_S
            and is_close
        ):
            self._ask(platform)

    def _ask(self, platform: Platform) -> None:
        body = {"step": self._step, "to": "edge", "devices": "all"}
        try:
            platform.change("POST", f"/apps/{segment(self._app.name)}/move", body, SUBMIT_TIMEOUT_S)
        except (RefusedError, FailedError) as error:
            if error.status != CONFLICT:
                raise
            if "have this cut already" not in str(error):
                return  # another change is under way: the next turn asks again
        self._is_asked = True
        self._say(
            f"step {self._step} is told to move to the devices: gear move {self._app.name} {self._step}"
        )

    def _look(self, now_s: float) -> Look:
        sealed = read = waiting = crossed = left = 0
        for device in self._app.devices:
            said = read_report(agent_status(self._places, device, self._app.instance))
            counters = said.get("counters", {})
            sealed += counters.get("bytes_sealed", 0)
            read += said.get("records_read", 0)
            waiting += said.get("spool_bytes", 0)
            crossed += bool(counters.get("crossings"))
            left += not counters.get("crossings") and not said.get("finished")
        return Look(now_s, sealed, read, waiting, crossed, left)

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
        return [
            f"link before the move of {self._step}: {before}",
            f"link after it: {after}: {saved:.0f} % of the bytes of a record are saved",
        ]
