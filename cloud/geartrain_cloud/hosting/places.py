"""Where the files of a host and of its groups lie; docs/data_files.md describes each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from geartrain.adapters.files import fsync_path
from geartrain_cloud.platform.places import SECRETS

ASIDE = "spark.aside"
"""A group's former checkpoint, until the next one is set aside or all is made again."""
SHARED = "all"
"""The name of the group that flows share; one that was made in its place has a number behind."""
DIRECT = "direct"
"""The same of the group of flows that have no shuffle."""
_NUMBER = re.compile("[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class HostPlaces:
    """The folder of a host."""

    folder: Path

    @property
    def wanted(self) -> Path:
        """What shall be hosted."""
        return self.folder / "wanted.json"

    @property
    def status(self) -> Path:
        """What is hosted, and how it is."""
        return self.folder / "status.json"

    @property
    def plans(self) -> Path:
        """Pickled queries by their hash, and beside each what it is."""
        return self.folder / "plans"

    @property
    def code(self) -> Path:
        """Users' packages by the hash of their files."""
        return self.folder / "code"

    @property
    def questions(self) -> Path:
        """Questions for the state of flows, and their answers."""
        return self.folder / "questions"

    @property
    def groups(self) -> Path:
        """The folders of all groups."""
        return self.folder / "groups"

    def group(self, name: str) -> GroupPlaces:
        """The folder of a group."""
        return GroupPlaces(self.groups / name, self.plans, self.code)

    def shared(self) -> list[str]:
        """The groups that flows share, by name: the last one takes what comes, the others are being left."""
        return self._named(SHARED) or [SHARED]

    def direct(self) -> list[str]:
        """The groups of flows without a shuffle, by name: only the last one may take what comes."""
        return self._named(DIRECT)

    def _named(self, name: str) -> list[str]:
        """The groups called `name`, or that with a number behind, by number."""
        numbers = dict[int, str]()
        for path in self.groups.iterdir() if self.groups.is_dir() else ():
            first, _, number = path.name.partition("~")
            if first == name and (not number or _NUMBER.fullmatch(number)):
                numbers[int(number or 1)] = path.name
        return [numbers[number] for number in sorted(numbers)]

    def next_name(self, name: str) -> str:
        """What a group is called that is made in the place of those called `name`."""
        found = self._named(name)
        if not found:
            return name
        _, _, number = found[-1].partition("~")
        return f"{name}~{int(number or 1) + 1}"

    def share_anew(self) -> None:
        """Have flows that come share another group, while no host runs; raises `OSError`.

        Nothing is done where that group is there and has not begun.
        """
        newest = self.groups / self.shared()[-1]
        if not newest.is_dir() or not any(newest.iterdir()):
            return
        (self.groups / self.next_name(SHARED)).mkdir(mode=0o700)
        fsync_path(self.groups)


@dataclass(frozen=True, slots=True)
class GroupPlaces:
    """The folder of a group, and what all groups share."""

    folder: Path
    plans: Path
    code: Path

    @property
    def secrets(self) -> Path:
        """The secrets of apps that sinks ask for, in a folder for each app."""
        return self.plans.parent / SECRETS

    @property
    def versions(self) -> Path:
        """The versions of its plan."""
        return self.folder / "versions"

    @property
    def steering(self) -> Path:
        """Which flows are held or out."""
        return self.folder / "steering.json"

    @property
    def questions(self) -> Path:
        """Those that its next micro-batches answer."""
        return self.folder / "questions"

    @property
    def sizes(self) -> Path:
        """How large the results of its last micro-batch were."""
        return self.folder / "sizes.json"

    @property
    def marks(self) -> Path:
        """What its workers run."""
        return self.folder / "running"

    @property
    def failures(self) -> Path:
        """What flows' code has raised, a file for each time."""
        return self.folder / "failures"

    @property
    def suspects(self) -> Path:
        """Generations that are being put out."""
        return self.folder / "suspects"

    def suspect(self, name: str) -> Path:
        """Is there while generation `name` is put out, and says why."""
        return self.suspects / name

    def flow(self, name: str) -> Path:
        """What the host keeps for generation `name`: whether its dead letters stopped it."""
        return self.folder / "flows" / name

    def dropped(self, name: str) -> Path:
        """How many keys' state went when generation `name` came in, a file for each stage and slot."""
        return self.flow(name) / "dropped"

    def moving(self, name: str, stage: int, slot: int) -> Path:
        """What a slot of generation `name` keeps behind a shuffle, while keys are dealt to other slots."""
        return self.flow(name) / "moving" / f"{stage}.{slot}"

    def parked(self, flow: str, run: int) -> Path:
        """Rows that the tables of a flow's run did not take in time."""
        return self.folder / "parked" / (flow if run == 1 else f"{flow}~{run}")
