"""Which program a device runs: the one that is on trial, or the one that has shown that it works.

Under the launcher and the parent of a device's agents, without I/O. Guarantees: a program is on trial until
it has reached the platform. If that does not come within its tries, the former one runs again, and the
new one is not tried a second time unless another was asked for in between. Starts count before they are made,
so a device that goes down with a new program comes back to the former one. What was installed on the device
has no files here. It is the last that is left, and where it is asked for, it is on trial as others are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

INSTALLED = "installed"
"""Stands for the program that was installed on the device, by `pip` or on its card."""
SHORT = 12
"""So many digits of a program's hash are named to people."""
UNHEARD = "it ended before it had reached the platform"


@dataclass(frozen=True, slots=True)
class Choice:
    """What is known. proved: the program that has shown that it works; tried: the one on trial, empty for
    none; tries: its starts so far; refused: the one that went back; why: what was wrong with `tried` or
    `refused`; ran: the apps that ran when `tried` was asked for, and have to run with it.
    """

    proved: str = INSTALLED
    tried: str = ""
    tries: int = 0
    refused: str = ""
    why: str = ""
    ran: tuple[str, ...] = ()

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
    return Choice(proved=program)


def spared(choice: Choice, program: str) -> Choice:
    """`program` was asked to end, by a person or the system: that start does not count."""
    return replace(choice, tries=max(choice.tries - 1, 0)) if program and program == choice.tried else choice


def short(program: str) -> str:
    """A program for people."""
    return "the installed program" if program == INSTALLED else f"program {program[:SHORT]}"
