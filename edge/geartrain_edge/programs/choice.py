"""Which program a device runs: the one that is on trial, or the one that has shown that it works.

Under the launcher and the parent of a device's agents, without I/O. Guarantees: a program is on trial until
it has reached the platform. If that does not come within its tries, the former one runs again, and the
new one is not tried a second time unless another was asked for in between. Starts count before they are made,
so a device that goes down with a new program comes back to the former one. What was installed on the device
has no files here. It is the last that is left, and where it is asked for, it is on trial as others are. A
newer one that is installed later takes the place of an older program.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

INSTALLED = "installed"
"""Stands for the program that was installed on the device, by `pip` or on its card."""
_VERSION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9}){0,9})(.*)")
_BEFORE = ("a", "b", "rc", ".dev")
SHORT = 12
"""So many digits of a program's hash are named to people."""
UNHEARD = "it ended before it had reached the platform"


@dataclass(frozen=True, slots=True)
class Choice:
    """What is known. proved: the program that has shown that it works; tried: the one on trial, empty for
    none; tries: its starts so far; refused: the one that went back; why: what was wrong with `tried` or
    `refused`; ran: the apps that ran when `tried` was asked for, and have to run with it; beside: the version
    that is installed on the device, as the last start found it, empty for not known.
    """

    proved: str = INSTALLED
    tried: str = ""
    tries: int = 0
    refused: str = ""
    why: str = ""
    ran: tuple[str, ...] = ()
    beside: str = ""

    @property
    def codes(self) -> set[str]:
        """The programs that this rests on."""
        return {self.proved, self.tried} - {INSTALLED, ""}


def asked(choice: Choice, program: str, ran: tuple[str, ...]) -> Choice:
    """`program` is asked for, and is here; ran: the apps that run now."""
    if program == choice.proved:
        return replace(choice, tried="", tries=0, refused="", why="")
    if program in (choice.tried, choice.refused):
        return choice
    return replace(choice, tried=program, tries=0, refused="", why="", ran=ran)


def other_asked(choice: Choice, program: str) -> Choice:
    """`program` is asked for: what went back before it may be tried again after it."""
    if program and choice.refused not in ("", program):
        return replace(choice, refused="", why="")
    return choice


def installed(choice: Choice, version: str, of: Callable[[str], str]) -> Choice:
    """What is installed on the device is of `version`: where it has come since the last start, older programs
    give way to it.

    of: the version of a program, empty where it is not known.
    """
    if version == choice.beside:
        return choice
    is_known, choice = bool(choice.beside), replace(choice, beside=version)
    if not is_known:
        return choice
    why = f"version {version} was installed on the device after it"
    if choice.tried not in ("", INSTALLED) and is_newer(version, of(choice.tried)):
        choice = went_back(choice, choice.tried, why)
    if choice.proved != INSTALLED and is_newer(version, of(choice.proved)):
        is_asked = not choice.tried and not choice.refused
        gone, choice = choice.proved, replace(choice, proved=INSTALLED)
        if is_asked:
            choice = replace(choice, refused=gone, why=why)
    return choice


def is_newer(version: str, other: str) -> bool:
    """Whether a version of Geartrain comes after another one; not where one of them cannot be read.

    >>> is_newer("0.10.0", "0.9"), is_newer("0.3.0rc1", "0.3"), is_newer("0.3", "0.3.0rc1"), is_newer("1", "")
    (True, False, True, False)
    """
    found, against = _order(version), _order(other)
    return found is not None and against is not None and found > against


def _order(version: str) -> tuple[tuple[int, ...], bool] | None:
    """Where a version stands: its numbers, and those before a release come before it."""
    found = _VERSION.match(version)
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers), not found[2].startswith(_BEFORE)


def next_start(choice: Choice, is_whole: Callable[[str], bool], tries_max: int) -> tuple[Choice, str]:
    """The program that is to be started now, and what is to be noted, durably, before that.

    is_whole: whether a program is there and undamaged, and where it is damaged takes it away.
    """
    if choice.tried and choice.tries >= tries_max:
        choice = went_back(choice, choice.tried, choice.why or UNHEARD)
    if choice.tried:
        choice = replace(choice, tries=choice.tries + 1)
        if choice.tried == INSTALLED or is_whole(choice.tried):
            return choice, choice.tried
        choice = replace(choice, why="its files are damaged")
    if choice.proved == INSTALLED or is_whole(choice.proved):
        return choice, choice.proved
    return replace(choice, proved=INSTALLED), INSTALLED


def not_started(choice: Choice, program: str) -> Choice:
    """`program` cannot be started at all."""
    if program == choice.proved:
        return replace(choice, proved=INSTALLED)
    return went_back(choice, program, "it cannot be started")


def noted(choice: Choice, program: str, why: str) -> Choice:
    """What was wrong with a start of `program`."""
    return replace(choice, why=why) if program and program == choice.tried else choice


def went_back(choice: Choice, program: str, why: str) -> Choice:
    """`program` is given up, where it is on trial."""
    if not program or program != choice.tried:
        return choice
    return replace(choice, tried="", tries=0, refused=program, why=why, ran=())


def passed(choice: Choice, program: str) -> Choice:
    """`program` has reached the platform, and its apps run."""
    if not program or program != choice.tried:
        return choice
    return Choice(proved=program, beside=choice.beside)


def spared(choice: Choice, program: str) -> Choice:
    """`program` was asked to end, by a person or the system: that start does not count."""
    return replace(choice, tries=max(choice.tries - 1, 0)) if program and program == choice.tried else choice


def short(program: str) -> str:
    """A program for people."""
    return "the installed program" if program == INSTALLED else f"program {program[:SHORT]}"
