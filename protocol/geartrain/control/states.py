"""What travels on the control lane: desired and reported state of a device, as frozen data."""

from __future__ import annotations

import hashlib
from enum import Enum

import msgspec

from geartrain.errors.reason import Reason

VERSION = 1
SESSION_BYTES = 8
DIGEST_BYTES = 16
INSTALLED_PROGRAM = "installed"
"""As `State.program`: the program that was installed on the device, by `pip` or on its card."""
ADAPTIVE = "adaptive"
"""What stands for a cut that follows what is measured of a device."""
SECRETS = "secrets"
"""What a program says that it `can` do where it opens what is sealed for its certificate."""
WAITS = "waits"
"""What a device says where its file has sources wait while a spool is full, which not every source can."""
CAN = (SECRETS,)
"""All that this program says of itself."""
CUT_CHARS = 200
"""Of a cut, as a report names it."""


class Wanted(Enum):
    """RUN it, or DRAIN it: its sources stop, its spool empties, then it ends. What is not listed is ended
    now.
    """

    RUN = 1
    DRAIN = 2


class AppState(Enum):
    """Of an app on a device. ENDED: it has given all that it had; FAILED: it is not started again by itself;
    STOPPING: it is no longer wanted, and its process is not gone yet.
    """

    STARTING = 1
    RUNNING = 2
    DRAINING = 3
    ENDED = 4
    FAILED = 5
    STOPPING = 6

    @property
    def word(self) -> str:
        """As people and REST call it."""
        return self.name.lower()


class App(msgspec.Struct, frozen=True):
    """An app that a device is to have. instance: `traffic.3`; revision: 64 hexadecimal digits, or empty;
    flow: `module:name`; cut: of the app, `auto`, `edge`, `cloud` or ids of steps with commas between;
    options: JSON, `{"sources": {step: {...}}, "steps": {step: {...}}}`; code: the hash of the flow's files
    that the device is to have, or empty; own_cut: with which the device runs it, empty for that of the app;
    number: of its revision, from 1, 0 where nobody says; without: ids of steps that are removed from the
    flow, with commas between; drops: JSON, by step the number of the newest revision by which it has lost
    what it kept.
    """

    instance: str
    flow: str
    revision: str = ""
    cut: str = "auto"
    options: str = "{}"
    wanted: Wanted = Wanted.RUN
    code: str = ""
    own_cut: str = ""
    number: int = 0
    without: str = ""
    drops: str = "{}"


class SealedSecret(msgspec.Struct, frozen=True):
    """A secret that a device is to have. app: its name, whatever its instance; version: from 1, higher for
    each value that follows; sealed: for the device's certificate (`geartrain.control.sealed`), empty where
    the platform does not know that yet.
    """

    app: str
    name: str
    version: int
    sealed: bytes = b""


class State(msgspec.Struct, frozen=True):
    """The desired state of a device. serial: from 1, higher for each that follows; purged: instances that are
    over, whose folders the device removes; program: the hash of the program that the device is to run, or
    `INSTALLED_PROGRAM`; empty where none is asked for: then it goes on with the one that runs; secrets:
    those of its apps: it keeps no other that the platform has sent.
    """

    serial: int
    apps: tuple[App, ...] = ()
    purged: tuple[str, ...] = ()
    program: str = ""
    secrets: tuple[SealedSecret, ...] = ()


class Desired(msgspec.Struct, frozen=True):
    """What the platform sends. session: of the device's connection, empty to ask for a report; life, number:
    the newest report that the platform has taken, 0 for none; state: an encoded `State`, or empty.
    """

    device: str
    session: bytes = b""
    life: int = 0
    number: int = 0
    state: bytes = b""


class StepKept(msgspec.Struct, frozen=True):
    """How much a device keeps of a step's state: cells, and their bytes without the keys."""

    step: str
    cells: int
    bytes: int


class Measured(msgspec.Struct, frozen=True):
    """What an app takes of a device and what is left there, over the last span of half a minute.
    records_per_s: that its sources gave; cpu_share: that its process took, of one core; idle_cores: that
    nobody took; free_bytes: memory that processes could still have; kept: at the end of the span, of the
    steps that keep most, the first `kept_max`.
    """

    records_per_s: float = 0.0
    cpu_share: float = 0.0
    idle_cores: float = 0.0
    free_bytes: int = 0
    kept: tuple[StepKept, ...] = ()


class AppReport(msgspec.Struct, frozen=True):
    """An app as a device has it; why: a sentence for people, mostly empty; lacks: sources that the device
    does not have, the first `sources_max` by name; cut: with which it runs, as `reported_cut`, empty where
    nobody has said; measured: of the process that runs it so, None where that is not known yet; reasons: why
    it does not run as it is to, for programs (`AppCode`).
    """

    instance: str
    state: AppState
    why: str = ""
    revision: str = ""
    lacks: tuple[str, ...] = ()
    cut: str = ""
    measured: Measured | None = None
    reasons: tuple[Reason, ...] = ()


class SecretReport(msgspec.Struct, frozen=True):
    """A secret that is asked for. version: that the device has, 0 for none; why: a sentence, where it does
    not have the one that is asked for.
    """

    app: str
    name: str
    version: int
    why: str = ""


class RunningProgram(msgspec.Struct, frozen=True):
    """The program of a device. version: of Geartrain; code: its hash, empty for the one that is installed;
    machine: which programs can run there: Python and processor, such as `3.11 aarch64`; can: what not
    every program and device does.
    """

    version: str = ""
    code: str = ""
    machine: str = ""
    can: tuple[str, ...] = CAN


class Reported(msgspec.Struct, frozen=True):
    """What a device says. session: of its connection; life, number: the how manieth report of the how manieth
    life of its parent process; serial, digest: of the desired state that is applied, 0 and empty for none;
    program: the version of the device's program; why: a newer desired state is not applied for this reason;
    program_code, machine, can: as in `RunningProgram`; program_why: why the one that is asked for does not
    run; program_went_back: it was tried, in vain; secrets: those that are asked for; certificate: the
    device's, DER, where secrets are asked for.
    """

    device: str
    session: bytes
    life: int
    number: int
    serial: int = 0
    digest: bytes = b""
    apps: tuple[AppReport, ...] = ()
    program: str = ""
    why: str = ""
    program_code: str = ""
    program_why: str = ""
    machine: str = ""
    can: tuple[str, ...] = ()
    program_went_back: bool = False
    secrets: tuple[SecretReport, ...] = ()
    certificate: bytes = b""

    @property
    def order(self) -> tuple[int, int]:
        """Where it stands among the reports of its device."""
        return self.life, self.number


class Kept(msgspec.Struct, frozen=True):
    """What a device keeps on its disk: how often its parent process was started, and the newest desired state
    as it came (empty for none).
    """

    life: int = 0
    state: bytes = b""


def reported_cut(cut: str) -> str:
    """A cut as a report names it: itself, or what stands for it where it is too long for a report."""
    return cut if len(cut) <= CUT_CHARS else hashlib.sha256(cut.encode()).hexdigest()


def state_digest(state: bytes) -> bytes:
    """What stands for an encoded `State` in reports: blake2b, 16 bytes; empty for none."""
    return hashlib.blake2b(state, digest_size=DIGEST_BYTES).digest() if state else b""
