"""What the control store holds, as data: apps and their instances, devices, assignments and reports.

Between the store, REST and the reconciler. Guarantees: the words of state are those of the glossary, and no
others.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from geartrain.control.app_reasons import AppCode, has_code
from geartrain.errors.reason import Reason
from geartrain.graph.graph import CLAIMS
from geartrain_cloud.changes.fitting import CAPACITY
from geartrain_cloud.hosting.wanted import SLOTS, Isolation

ONLINE_US = 150_000_000
"""A device that has said nothing for so long is taken to be offline: one in contact reports every minute."""

Options = dict[str, dict[str, Any]]
"""Options by step id and name."""


class State(StrEnum):
    """Of an instance: what it has come to."""

    SUBMITTED = "submitted"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    ENDED = "ended"
    REPLAYING = "replaying"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether nothing of the instance runs any more."""
        return self is State.ENDED

    @property
    def has_whole_log(self) -> bool:
        """Whether devices give nothing more: a replay of what has ended concerns the host alone."""
        return self in (State.ENDED, State.REPLAYING)


class Wanted(StrEnum):
    """Of an instance: what a person has asked for last."""

    RUNNING = "running"
    KILLED = "killed"


class Mode(StrEnum):
    """How an instance is killed."""

    DRAIN = "drain"
    NOW = "now"


class Channel(msgspec.Struct, frozen=True):
    """A stream that crosses the cut: its id, the sources above it, and the schema's id.

    partitioned_by: the field of whose values each is said to live on one device, "" for none; former: the
    schemas, as their texts, of its records in former revisions, where these were others; given_up: the
    layouts of those of them whose records are dead letters.
    """

    id: str
    sources: list[str]
    schema: str = ""
    partitioned_by: str = ""
    former: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()


class SourceOutline(msgspec.Struct, frozen=True):
    """A source of the flow, and whether it comes to an end.

    devices: a selector of the app's devices that have it, "" for all; joins: whether a device that runs the
    app may get it, since it gives what happens now, and no step below it keeps anything there; since: the
    number of the revision that it came with, 0 for one of the submit; waits: whether nothing of it is lost
    while nobody reads.
    """

    id: str
    bounded: bool
    devices: str = ""
    joins: bool = False
    since: int = 0
    waits: bool = True


class Outline(msgspec.Struct, frozen=True):
    """What control must know of a flow that is cut: it comes from a short-lived process that loads it.

    flow: the flow's own name; down: whether something comes down to devices; revision: the hash of the
    document; document: the revision document as JSON text, "" where there is none; code: the hash of the
    flow's files, "" where nobody has said; shuffles: those one after another in the data centre; bundled:
    whether that code is a signed bundle, rather than what is installed; former: before the last update. base:
    the app's cut, by the steps that no other one on the devices reads, "" where nobody has said; cuts: those
    that devices may have beside it; without: the steps that were removed from the flow,
    with what hangs below them; drain: steps that lose their state by it put out first what they hold;
    follows: the number of the revision that it comes after where it passes over others, else 0; crosses:
    devices go over to it at a commit, once it is in force; begin: from where the steps `attached`, which are
    new in it, read the log, "" for the place where it comes into force. channels: also those of former
    revisions, by which devices send that have not gone over; gone: the sources of former revisions that this
    one has not, of which such devices send, each with the revision by which it came. anew: sinks beside
    tables that each run writes in a folder of its own, none where nobody has said. parts: by step what its
    code rests on, None where nobody has said.
    """

    flow: str
    channels: list[Channel]
    sources: list[SourceOutline]
    revision: str
    down: bool = False
    document: str = ""
    code: str = ""
    shuffles: int = 0
    bundled: bool = False
    former: Outline | None = None
    base: str = ""
    cuts: tuple[str, ...] = ()
    follows: int = 0
    without: tuple[str, ...] = ()
    drain: bool = False
    crosses: bool = False
    begin: str = ""
    attached: tuple[str, ...] = ()
    gone: dict[str, int] = {}
    anew: tuple[str, ...] = ()
    parts: dict[str, dict[str, str]] | None = None

    @property
    def given_up(self) -> dict[str, tuple[str, ...]]:
        """By channel the layouts of former types whose records are dead letters."""
        return {channel.id: channel.given_up for channel in self.channels if channel.given_up}

    @property
    def sends(self) -> bool:
        """Whether the app has an outbox: something comes down to devices, or they may claim state."""
        return self.down or any(channel.id == CLAIMS for channel in self.channels)

    @property
    def bounded(self) -> bool:
        """Whether every source comes to an end."""
        return all(source.bounded for source in self.sources)


class CutRule(msgspec.Struct, frozen=True):
    """The cut of devices that a selector matches when they get the app, "" for the app's own. adaptive: it
    follows what is measured of them, within `capacity`, a share of one core.
    """

    devices: str
    cut: str
    adaptive: bool = False
    capacity: float = CAPACITY


class Instance(msgspec.Struct, frozen=True):
    """One life of an app.

    flow: `module:name`; cut: as for a plan; selector: which devices; options: by step; device_options: by
    device, over these; why: a sentence for a state that needs one; attempt: goes up by one whenever it
    is to go on after it has failed; isolation: `own` where
    its cloud part has a query to itself. revision: the number of the newest that the log is to have or has,
    which is the one that these fields tell of and that devices run; drops: the steps that lost what they had
    kept by it; made_us: when it was asked for. cut_rules: which devices get another cut, the last that
    matches; of those that run it, the assignments say it. slots: over how many its keys are dealt in the
    data centre. retain_s, retain_bytes, retain_tables_s: how long its rows stay in the log, and in tables; 0
    for as long as the platform's configuration says.
    """

    instance: str
    name: str
    flow: str
    cut: str
    selector: str
    options: Options
    device_options: dict[str, Options]
    outline: Outline
    wanted: Wanted
    state: State
    mode: Mode
    purge: bool
    why: str
    run: int
    attempt: int
    submitted_us: int
    changed_us: int
    isolation: Isolation = "shared"
    revision: int = 1
    drops: tuple[str, ...] = ()
    made_us: int = 0
    cut_rules: tuple[CutRule, ...] = ()
    slots: int = SLOTS
    retain_s: float = 0.0
    retain_bytes: int = 0
    retain_tables_s: float = 0.0

    @property
    def is_to_run(self) -> bool:
        """Whether it is to run, and has not come to its end."""
        return self.wanted is Wanted.RUNNING and not self.state.has_whole_log


class Planned(msgspec.Struct, frozen=True):
    """A revision of an instance that its own fields do not tell of: a former one, or the next.

    The fields are those of the instance.
    """

    instance: str
    number: int
    flow: str
    cut: str
    options: Options
    device_options: dict[str, Options]
    outline: Outline
    drops: tuple[str, ...]
    made_us: int


class CanaryStage(StrEnum):
    """How far a canary is: it waits for its number, runs on its devices, and is then taken on or back."""

    WAITS = "waits"
    RUNS = "runs"
    PROMOTED = "promoted"
    BACK = "went back"

    @property
    def is_decided(self) -> bool:
        """Whether it is settled what becomes of it."""
        return self in (CanaryStage.PROMOTED, CanaryStage.BACK)


class Canary(msgspec.Struct, frozen=True):
    """A revision that some devices of an instance run before the others do.

    number: of the revision, by which the data centre and the other devices stay what they are; selector:
    which devices were asked for, devices: which these were then; for_s: how long they are looked at;
    began_us: since when they are told, 0 for not yet; positions: of the log by partition, soon after that;
    why: it was promoted or went back; stay: the other devices are told the number before, as long as nothing
    else has become of the app; runs: what the devices run.
    """

    instance: str
    number: int
    stage: CanaryStage
    selector: str
    devices: tuple[str, ...]
    for_s: float
    began_us: int
    positions: dict[str, int]
    why: str
    stay: bool
    runs: Planned

    @property
    def until_us(self) -> int:
        """When it is promoted by itself."""
        return self.began_us + int(self.for_s * 1_000_000)


class Device(msgspec.Struct, frozen=True):
    """A device that was added. serial: of what it is to run; applied: the serial that it has reported, 0 for
    none; seen_us: when it last reported; local: it runs on this machine.
    """

    device: str
    labels: dict[str, str]
    local: bool = False
    retired: bool = False
    serial: int = 0
    applied: int = 0
    seen_us: int = 0


class Report(msgspec.Struct, frozen=True):
    """What a device has said of an instance: `state` one of starting, running, drained, failed, finished;
    lacks: the sources that it does not have; cut: with which it runs, as `reported_cut`, "" where it is not
    said; revision: the hash of the one that it runs, number: of that, 0 where it is not known; reasons: why
    it does not run as it is to (`AppCode`).
    """

    device: str
    instance: str
    state: str
    why: str = ""
    version: str = ""
    serial: int = 0
    lacks: tuple[str, ...] = ()
    cut: str = ""
    revision: str = ""
    number: int = 0
    reasons: tuple[Reason, ...] = ()

    @property
    def awaits_state(self) -> bool:
        """Whether the device runs its former steps since state has not come to it."""
        return has_code(self.reasons, AppCode.AWAITS_STATE, AppCode.STATE_STAYS)


class CutChange(msgspec.Struct, frozen=True):
    """What devices of an instance get once its revision `number` is in force: that revision, where its
    outline says that they go over to it, and other cuts.

    cuts: by device, "" for the app's own; rules: for devices that get the app later.
    """

    instance: str
    number: int
    cuts: dict[str, str]
    rules: tuple[CutRule, ...] = ()


class Submission(msgspec.Struct, frozen=True):
    """What `POST /apps` asks for, checked."""

    name: str
    flow: str
    cut: str
    selector: str
    options: Options = {}
    device_options: dict[str, Options] = {}
    isolation: Isolation = "shared"
    cut_rules: tuple[CutRule, ...] = ()
    retain_s: float = 0.0
    retain_bytes: int = 0
    retain_tables_s: float = 0.0


def merged(options: Options, over: Options) -> Options:
    """Options with those of `over` in their place."""
    return {step: {**options.get(step, {}), **over.get(step, {})} for step in {**options, **over}}
