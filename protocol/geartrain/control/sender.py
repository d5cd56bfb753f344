"""The platform's end of one device's control lane, as a state machine without I/O.

The driver owns the store, the connection and the clock. It tells the machine what is wanted and what was
heard, does what `next_event` says, and publishes what `next_to_send` gives. Guarantees: only the newest
desired state is ever sent, again with growing pauses until the device reports it. To a device that is away
nothing is sent but a small question now and then. A report is answered only when the driver has stored it,
and an older one never takes the place of a newer one. Two devices of one name are found. A device that has
applied what the store does not know is refused: the store was restored from a copy, and a person decides.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import msgspec

from geartrain.control.codec import decode_reported, decode_state, encode_desired
from geartrain.control.limits import LANE_LIMITS, LaneLimits
from geartrain.control.states import Desired, Reported, state_digest
from geartrain.errors import WireError

CONNECTIONS_KEPT = 8
"""Of a device, the newest: that many copies of one card are told from a device that comes back."""


class SenderPolicy(msgspec.Struct, frozen=True):
    """How a device is told; all times in seconds.

    resend_s, resend_s_max: the pause before a desired state is sent again, doubling up to the second; ask_s,
    ask_s_max: the same for the question to a device of which nothing is heard; online_s: a device that was
    not heard for so long is away; reports_max: reports that are taken at once, and one more in each pause_s.
    """

    resend_s: float = 1.0
    resend_s_max: float = 10.0
    ask_s: float = 2.0
    ask_s_max: float = 300.0
    online_s: float = 150.0
    reports_max: int = 20
    pause_s: float = 0.2


class Standing(msgspec.Struct, frozen=True):
    """What the store knows of a device. state: the desired one, encoded, as it was first given out (empty for
    none); report: the newest that was taken; refused: why nothing is sent to it, empty for no reason.
    """

    state: bytes = b""
    report: Reported | None = None
    refused: str = ""


class Store(msgspec.Struct, frozen=True):
    """Store this report, then say `stored`."""

    report: Reported


class Refuse(msgspec.Struct, frozen=True):
    """Store that nothing is sent to this device any more until a person says so, and why."""

    why: str


class Cloned(msgspec.Struct, frozen=True):
    """Say that two devices report under this one's name: an earlier connection goes on beside a later one."""


class DesiredSender:
    """One device. `counters`: what happened since the driver last took them."""

    def __init__(
        self,
        device: str,
        standing: Standing,
        policy: SenderPolicy | None = None,
        jitter: Callable[[], float] = lambda: 1.0,
        limits: LaneLimits = LANE_LIMITS,
    ) -> None:
        """`jitter`: a factor for pauses. Raises `WireError` where the store's state cannot be read."""
        self._device, self._policy, self._jitter = device, policy or SenderPolicy(), jitter
        self._limits, self.counters = limits, dict[str, int]()
        self._events: deque[Store | Refuse | Cloned] = deque()
        self._connections: deque[bytes] = deque(maxlen=CONNECTIONS_KEPT)
        self._is_connected, self._heard_s = False, -math.inf
        self._session, self._storing, self._is_asked = b"", (0, 0), False
        self._answer: bytes | None = None
        self._send_s, self._ask_s = -math.inf, -math.inf
        self._send_pause_s, self._ask_pause_s = self._policy.resend_s, self._policy.ask_s
        self._tokens, self._tokens_s = float(self._policy.reports_max), -math.inf
        self._stand(standing)

    def _stand(self, standing: Standing) -> None:
        self._state, self._refused = standing.state, standing.refused
        self._report = standing.report
        self._serial = decode_state(standing.state, self._limits).serial if standing.state else 0
        self._digest = state_digest(standing.state)

    # What the driver says

    def connected(self, now_s: float) -> None:
        """A connection was made and the `reported` topics are subscribed."""
        self._is_connected = True
        self._soon(now_s)

    def disconnected(self) -> None:
        """The connection has ended: nothing is to be sent, and no timer runs."""
        self._is_connected = False

    def wanted(self, standing: Standing, now_s: float) -> None:
        """What the store now says of the device; raises `WireError` where its state cannot be read."""
        serial, state, report = self._serial, self._state, self._report
        self._stand(standing)
        if report is not None and (standing.report is None or standing.report.order < report.order):
            self._report = report  # the store was read before it had this one
        if not self._refused and (self._serial < serial or (self._serial == serial and self._state != state)):
            self._refuse(_went_back(self._device, self._serial, serial))
        if self._serial > serial:
            self._soon(now_s)
        self._look()

    def stored(self, report: Reported, now_s: float) -> None:
        """A report that `next_event` gave is durable."""
        if self._report is None or report.order > self._report.order:
            self._report = report
        self._answer = report.session
        self._look()

    def receive(self, payload: bytes, now_s: float) -> None:
        """Take what came on the device's `reported` topic; what is wrong with it is counted and left."""
        self._tokens = min(
            self._policy.reports_max, self._tokens + (now_s - self._tokens_s) / self._policy.pause_s
        )
        self._tokens_s = now_s
        if self._tokens < 1:
            self._count("reports_too_many")
            return
        self._tokens -= 1
        try:
            report = decode_reported(payload, self._limits)
            if report.device != self._device:
                raise WireError(f"a report of device {report.device} came from device {self._device}")
        except WireError:
            self._count("reports_not_decoded")
            return
        self._take(report, now_s)

    # What is to be done

    def next_event(self) -> Store | Refuse | Cloned | None:
        """What the driver is to do next, if anything."""
        return self._events.popleft() if self._events else None

    def next_to_send(self, now_s: float) -> bytes | None:
        """The payload for the device's `desired` topic that is due now, if one is."""
        if not self._is_connected:
            return None
        is_due, session, state = self._is_due(now_s), self._answer, b""
        if session is None and not is_due:
            return None
        if is_due and self.is_online(now_s):
            if session in (None, self._session):
                session, state = self._session, self._state
                self._send_s = now_s + self._send_pause_s * self._jitter()
                self._send_pause_s = min(self._send_pause_s * 2, self._policy.resend_s_max)
                self._count("states_sent")
        elif is_due:
            self._is_asked = True
            self._ask_s = now_s + self._ask_pause_s * self._jitter()
            self._ask_pause_s = min(self._ask_pause_s * 2, self._policy.ask_s_max)
            self._count("questions_sent")
        self._answer = None
        return encode_desired(Desired(self._device, session or b"", *self._known, state), self._limits)

    def timer(self, now_s: float) -> float | None:
        """When `next_to_send` is to be asked again; None for not before the machine is told something."""
        if not self._is_connected:
            return None
        if self._answer is not None:
            return now_s
        if self._is_at_rest:
            return None
        return self._send_s if self.is_online(now_s) else self._ask_s

    def is_online(self, now_s: float) -> bool:
        """Whether the device was heard of late, so that it is sent its state."""
        return bool(self._session) and now_s - self._heard_s < self._policy.online_s

    @property
    def is_settled(self) -> bool:
        """Whether the device has reported what is wanted of it, or nothing is."""
        report = self._report
        return not self._serial or (
            report is not None and report.serial == self._serial and report.digest == self._digest
        )

    @property
    def refused(self) -> str:
        """Why nothing is sent to the device, empty for no reason."""
        return self._refused

    # Inside

    @property
    def _known(self) -> tuple[int, int]:
        return (0, 0) if self._report is None else self._report.order

    @property
    def _is_at_rest(self) -> bool:
        """Whether there is nothing to send; every device is asked once, to hear what it has meanwhile."""
        if not self._is_asked and not self._session:
            return False
        return self.is_settled or bool(self._refused) or self._storing > self._known

    def _is_due(self, now_s: float) -> bool:
        if self._is_at_rest:
            return False
        return now_s >= (self._send_s if self.is_online(now_s) else self._ask_s)

    def _soon(self, now_s: float) -> None:
        self._send_s = self._ask_s = now_s
        self._send_pause_s, self._ask_pause_s = self._policy.resend_s, self._policy.ask_s

    def _take(self, report: Reported, now_s: float) -> None:
        if report.order < max(self._known, self._storing):
            self._count("reports_stale")
            self._answer = report.session
            return
        was_away = not self.is_online(now_s)
        self._heard_s = now_s
        if was_away or report.session != self._session:
            self._session = report.session
            self._soon(now_s)
        if report.order > max(self._known, self._storing):
            self._storing = report.order
            self._compare(report.session)
            self._count("reports_taken")
            self._events.append(Store(report))
        elif report.order == self._known:
            self._count("reports_again")
            self._answer = report.session

    def _compare(self, session: bytes) -> None:
        """Look whether a report that is newer than all others came over a connection that was left.

        One device numbers its reports over all its connections, and leaves one before it makes the next. So
        what comes late over an earlier one is older than what it has reported since.
        """
        if session in self._connections and session != self._connections[-1]:
            self._connections.remove(session)
            self._events.append(Cloned())
            self._count("clones_seen")
        if session not in self._connections:
            self._connections.append(session)

    def _look(self) -> None:
        """Refuse a device that has applied what the store does not know."""
        report = self._report
        if report is None or self._refused or self.is_settled or report.serial < self._serial:
            return
        self._refuse(_unknown(self._device, report.serial, self._serial))

    def _refuse(self, why: str) -> None:
        self._refused = why
        self._events.append(Refuse(why))
        self._count("devices_refused")

    def _count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1


def _unknown(device: str, applied: int, wanted: int) -> str:
    here = "holds another one of that serial" if applied == wanted else f"is at {wanted}"
    return (
        f"device {device} has applied desired state {applied}, and this store {here}: it was restored from a "
        f"copy; {_decide(device)}"
    )


def _went_back(device: str, now: int, before: int) -> str:
    return f"the desired state of device {device} went back from {before} to {now}: {_decide(device)}"


def _decide(device: str) -> str:
    return f"look at what runs there, then have it take what is wanted now: gear device accept {device}"
