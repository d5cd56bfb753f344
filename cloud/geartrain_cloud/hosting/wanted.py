"""wanted.json: what a host shall run. Control writes it, the host reads it again when it changes.

Beside the record's path. Guarantees: a file that cannot be understood is refused with one sentence, and what
was wanted before stays.
"""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from geartrain.errors import ConfigError
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.platform.followed import FollowedFile

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Isolation = Literal["shared", "own"]
SHARED_STAGES = 2
"""Shuffles one after another of the query that flows share: one more costs every flow half a second."""
SLOTS, SLOTS_MAX = 2, 64
"""For how many tasks at once the keys of a flow are dealt, where nobody has said, and at the most."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class WantedPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one revision of an instance runs in the cloud.

    flow: `module:name`; cut: as for `make_plan`; steps and sources: options by step id. bundle: the folder of
    its unpacked code, "" for what is installed here; drops: the steps whose state goes when it comes into
    force; cuts: those that devices may have beside `cut`, which is the base, each as text; without: the
    steps that are removed from the flow; drain: the steps that lose their state put out first what they hold;
    follows: the number of the one that it comes after, where those between never came into force, 0 for the
    one before it; begin: from where the steps `attached`, which are new in it, read the log: "" for the place
    where it comes into force, `earliest`, or an event time in microseconds; given_up: by channel the layouts
    of former types whose rows are dead letters.
    """

    flow: str
    cut: str | list[str] = "auto"
    steps: dict[str, dict[str, Any]] = {}
    sources: dict[str, dict[str, Any]] = {}
    bundle: str = ""
    drops: tuple[str, ...] = ()
    cuts: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    drain: bool = False
    follows: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    begin: Annotated[str, msgspec.Meta(pattern=r"^(earliest|-?[0-9]{1,20})?$")] = ""
    attached: tuple[str, ...] = ()
    given_up: dict[str, tuple[str, ...]] = {}


class WantedFlow(WantedPlan, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One instance, with the plan of its newest revision.

    revision: the number of that one; former: the plans of those before it, from the first on. tables: the
    SQLite file, whose folder also has the outbox. attempt: goes up by one to bring a flow back that is out.
    end: `drain` where it has finished when all of the log is in its tables; `ended` where it had finished. Of
    that one only the run that is asked for is to be made. rows_max: rows of each key in one micro-batch at
    the most, None for the host's own; letters_percent: the share of dead letters that stops it.

    slots: for how many tasks at once its keys are dealt; where that changes, they are dealt anew while it
    runs. broadcasts: its steps whose table every slot has whole. buckets: into how many parts each keeps its
    state, which stays for an instance's life.
    isolation: `own` for a query to itself, one for each of its runs. run: the pass over its log that is
    asked for; the former one is served until it has caught up.
    """

    tables: str
    revision: Positive = 1
    former: tuple[WantedPlan, ...] = ()
    run: Positive = 1
    attempt: Positive = 1
    end: Literal["", "drain", "ended"] = ""
    rows_max: Positive | None = None
    letters_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 1.0
    slots: Annotated[int, msgspec.Meta(ge=1, le=SLOTS_MAX)] = SLOTS
    broadcasts: tuple[str, ...] = ()
    buckets: Annotated[int, msgspec.Meta(ge=1, le=4_096)] = 8
    isolation: Isolation = "shared"

    def replays(self, served: int) -> bool:
        """Whether a run is to take the place of the one that is served."""
        return self.run > served and self.end != "drain"

    def plan_of(self, revision: int) -> WantedPlan:
        """The plan of one of its revisions."""
        return self if revision >= self.revision else self.former[revision - 1]

    def after(self, revision: int) -> int:
        """The number of the revision that comes after one that runs; those that are passed over are none."""
        number = self.revision
        while (before := self.plan_of(number).follows or number - 1) > revision:
            number = before
        return number

    def request_of(self, revision: int) -> str:
        """The hash of what decides the plan of a revision: where it changes, the flow comes in as a new
        generation.
        """
        plan = self.plan_of(revision)
        asked = [plan.flow, plan.cut, plan.steps, plan.sources, self.attempt]
        asked += [Path(plan.bundle).name] if plan.bundle else []  # its hash, wherever the platform lies
        asked += [list(plan.cuts)] if plan.cuts else []
        asked += [["without", *plan.without]] if plan.without else []
        asked += [["from", plan.begin, *plan.attached]] if plan.begin else []
        asked += [["given up", *map(repr, sorted(plan.given_up.items()))]] if plan.given_up else []
        return sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    serial: int = 0
    flows: dict[str, WantedFlow] = {}


class WantedFile:
    """The file, as the host follows it."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, FollowedFile(path, Wanted)

    def changed(self) -> Wanted | None:
        """What is wanted, if the file has changed since it was last asked; raises `HostError`."""
        try:
            wanted = self._file.changed()
        except ConfigError as error:
            raise HostError(str(error)) from None
        if wanted is None:
            return None
        for name in wanted.flows:
            if not _NAME.fullmatch(name):
                raise HostError(
                    f"{self._path}: instance {name!r}: a name has 1 to 64 letters, digits, '_', '.' and '-'"
                )
            flow = wanted.flows[name]
            if len(flow.former) != flow.revision - 1:
                raise HostError(
                    f"{self._path}: instance {name}: revision {flow.revision} follows {len(flow.former)} "
                    f"former ones: name each of the {flow.revision - 1} before it"
                )
        return wanted
