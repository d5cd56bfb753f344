"""The device's end of the control lane: what it is to run, as a state machine without I/O.

The driver (the parent of the agents) owns the connection, the clock and the disk. It tells the machine what
was heard, does what `next_event` says, and publishes what `next_to_send` gives. Guarantees: a desired state
is durable before it is applied; a serial is applied once in a life, and never after a higher one, in any
life. What is sent for another connection of the device, such as a retained publish or one that was long under
way, is not applied. A report is sent again, with growing pauses, until the platform has taken it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from geartrain.control.codec import decode_desired, decode_state, encode_reported
from geartrain.control.limits import LANE_LIMITS, LaneLimits
from geartrain.control.states import (
    AppReport,
    Desired,
    Kept,
    Reported,
    RunningProgram,
    SecretReport,
    State,
    state_digest,
)
from geartrain.errors import WireError
from geartrain.errors.reason import Reason


class ReceiverPolicy(msgspec.Struct, frozen=True):
    """How a device reports; all times in seconds.

    resend_s, resend_s_max: the pause before a report is sent again, doubling up to the second; pause_s:
    between two reports; heartbeat_s: a report is due after so long in which nothing has changed.
    """

    resend_s: float = 1.0
    resend_s_max: float = 30.0
    pause_s: float = 0.5
    heartbeat_s: float = 60.0


class Keep(msgspec.Struct, frozen=True):
    """Write this to the disk, make it durable, then say `kept` or `not_kept`."""

    kept: Kept


class Apply(msgspec.Struct, frozen=True):
    """Make this so, then say `applied`."""

    state: State


class _OnDisk(msgspec.Struct, frozen=True):
    """A life and a desired state: as it came, and decoded."""

    life: int
    data: bytes
    state: State


class DesiredReceiver:
    """One device. `counters`: what happened since the driver last took them."""

    def __init__(
        self,
        device: str,
        kept: Kept,
        program: RunningProgram | None = None,
        policy: ReceiverPolicy | None = None,
        jitter: Callable[[], float] = lambda: 1.0,
        limits: LaneLimits = LANE_LIMITS,
    ) -> None:
        """`kept`: what the disk holds, which is applied first; program: what runs, which is reported; jitter:
        a factor for the pause before a report is sent again. Raises `WireError` for a damaged `kept`.
        """
        self._device, self._policy = device, policy or ReceiverPolicy()
        self._program, self._program_why = program or RunningProgram(), ""
        self._program_went_back = False
        self._secrets, self._certificate = tuple[SecretReport, ...](), b""
        self._jitter, self._limits = jitter, limits
        self.counters: dict[str, int] = {}
        self._durable = _OnDisk(
            kept.life, kept.state, decode_state(kept.state, limits) if kept.state else State(0)
        )
        self._writing: _OnDisk | None = None
        self._pending: tuple[State, bytes] | None = None
        self._life_wanted, self._heard = kept.life + 1, self._durable.state.serial
        self._target = State(0)
        self._applying = self._applied = (0, b"")
        self._events: deque[Keep | Apply] = deque()
        self._session, self._apps, self._why = b"", tuple[AppReport, ...](), ""
        self._is_begun, self._is_changed, self._number, self._taken = False, True, 0, 0
        self._send_s = self._sent_s = -math.inf
        self._resend_pause_s = self._policy.resend_s
        self._go_on()

    # What the driver says

    def connected(self, session: bytes, now_s: float) -> None:
        """A connection was made and the `desired` topic is subscribed; session: random, new for each."""
        self._session = session
        self._owe(now_s)

    def disconnected(self) -> None:
        """The connection has ended: nothing is to be sent, and no timer runs."""
        self._session = b""

    def changed(
        self, apps: Sequence[AppReport], now_s: float, program_why: str = "", *, went_back: bool = False
    ) -> None:
        """What the apps are like now, why the program that is asked for does not run, and whether it was
        tried in vain. Texts are cut to what a report holds.
        """
        most = self._limits.why_chars_max
        cut = tuple(
            msgspec.structs.replace(
                app, why=app.why[:most], reasons=tuple(_cut(one, most) for one in app.reasons)
            )
            for app in apps[: self._limits.apps_max]
        )
        said = (cut, program_why[:most], went_back)
        if said != (self._apps, self._program_why, self._program_went_back):
            self._apps, self._program_why, self._program_went_back = said
            self._owe(now_s)

    def holds(self, secrets: Sequence[SecretReport], certificate: bytes, now_s: float) -> None:
        """What became of the secrets that are asked for, and the certificate that they are sealed for (DER;
        empty where none are asked for). Texts are cut to what a report holds.
        """
        most = self._limits.why_chars_max
        cut = tuple(msgspec.structs.replace(one, why=one.why[:most]) for one in secrets)
        if (cut, certificate) != (self._secrets, self._certificate):
            self._secrets, self._certificate = cut, certificate
            self._owe(now_s)

    def kept(self, now_s: float) -> None:
        """What `Keep` said is durable."""
        if self._writing is None:
            return
        if self._writing.life > self._durable.life:
            self._is_begun, self._number, self._taken = True, 0, 0
            self._owe(now_s)
        self._durable, self._writing, self._why = self._writing, None, ""
        if self._pending is not None and self._pending[0].serial <= self._durable.state.serial:
            self._pending = None
        self._go_on()

    def not_kept(self, why: str, now_s: float) -> None:
        """What `Keep` said could not be written: nothing of it is applied, and the platform sends it again.

        A driver that cannot write the first one must end: without a life of its own nothing can be reported.
        """
        self._writing = self._pending = None
        self._life_wanted = self._durable.life
        self._count("desired_not_kept")
        self._why = why[: self._limits.why_chars_max]
        self._owe(now_s)

    def applied(self, now_s: float) -> None:
        """What `Apply` said was done."""
        self._applied = self._applying
        self._owe(now_s)
        self._go_on()

    def receive(self, payload: bytes, now_s: float) -> None:
        """Take what came on the `desired` topic; what is wrong with it is counted and left."""
        try:
            desired = decode_desired(payload, self._limits)
            if desired.device != self._device:
                raise WireError(f"a desired state of device {desired.device} came to device {self._device}")
            state = decode_state(desired.state, self._limits) if desired.state else None
        except WireError:
            self._count("desired_not_decoded")
            return
        if desired.session != self._session:
            self._count("desired_of_other_sessions" if desired.session else "asked")
            self._owe(now_s)
            return
        self._take_answer(desired)
        if state is not None:
            self._take_state(state, desired.state, now_s)

    # What is to be done

    def next_event(self) -> Keep | Apply | None:
        """What the driver is to do next, if anything."""
        return self._events.popleft() if self._events else None

    def next_to_send(self, now_s: float) -> bytes | None:
        """The payload for the `reported` topic that is due now, if one is."""
        due_s = self.timer()
        if due_s is None or now_s < due_s:
            return None
        if self._is_changed or self._number == 0 or self._taken == self._number:
            self._number += 1
            self._is_changed, self._resend_pause_s = False, self._policy.resend_s
        else:
            self._count("reports_sent_again")
            self._resend_pause_s = min(self._resend_pause_s * 2, self._policy.resend_s_max)
        self._sent_s, self._send_s = now_s, now_s + self._resend_pause_s * self._jitter()
        self._count("reports_sent")
        return encode_reported(self._report(), self._limits)

    def timer(self) -> float | None:
        """When `next_to_send` is to be asked again, on the driver's clock; None for not before it is told
        something.
        """
        if not self._session or not self._is_begun:
            return None
        if self._is_changed:
            return max(self._send_s, self._sent_s + self._policy.pause_s)
        return self._send_s if self._taken < self._number else self._sent_s + self._policy.heartbeat_s

    @property
    def is_heard(self) -> bool:
        """Whether the platform has taken a report of this life, and what it wants is applied."""
        return self._taken > 0 and not self._events and self._writing is None and self._pending is None

    @property
    def serial(self) -> int:
        """Of the desired state that is applied, 0 for none."""
        return self._applied[0]

    # Inside

    def _owe(self, now_s: float) -> None:
        """Something is to be said: as soon as the pause since the last report is over."""
        self._is_changed, self._send_s = True, now_s

    def _report(self) -> Reported:
        serial, digest = self._applied
        life, number, program = self._durable.life, self._number, self._program
        return Reported(
            *(self._device, self._session, life, number, serial, digest, self._apps, program.version),
            *(self._why, program.code, self._program_why, program.machine, program.can),
            *(self._program_went_back, self._secrets, self._certificate),
        )

    def _take_answer(self, desired: Desired) -> None:
        if (desired.life, desired.number) > (self._durable.life, self._number):
            # The platform knows later reports than this: the disk is that of a former time, or another's.
            self._count("lives_renewed")
            self._life_wanted = max(self._life_wanted, desired.life + 1)
            self._go_on()
        elif desired.life == self._durable.life:
            self._taken = max(self._taken, desired.number)

    def _take_state(self, state: State, data: bytes, now_s: float) -> None:
        newest, its = self._pending or (self._durable.state, self._durable.data)
        if state.serial > newest.serial:
            self._pending, self._heard = (state, data), state.serial
            self._go_on()
            return
        if state.serial < newest.serial:
            self._count("desired_superseded")
        else:
            self._count("desired_again" if data == its else "desired_of_two_contents")
        self._owe(now_s)

    def _go_on(self) -> None:
        """Keep what is newer than the disk, else apply what is newer than what runs."""
        if self._writing is not None:
            return
        durable = self._durable
        if self._pending is not None or self._life_wanted > durable.life:
            state, data = self._pending or (durable.state, durable.data)
            self._writing = _OnDisk(self._life_wanted, data, state)
            self._events.append(Keep(Kept(self._life_wanted, data)))
        elif self._is_begun and self._target.serial < durable.state.serial >= self._heard:
            self._target = durable.state
            self._applying = (durable.state.serial, state_digest(durable.data))
            self._events.append(Apply(durable.state))

    def _count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1


def _cut(reason: Reason, most: int) -> Reason:
    """A reason whose texts are no longer than `most`."""
    details = {name: one[:most] if isinstance(one, str) else one for name, one in reason.details.items()}
    return Reason(reason.code, details)
