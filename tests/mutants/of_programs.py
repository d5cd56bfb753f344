"""Faults planted where a device's own program is chosen: starts not counted, silence taken for success."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from dataclasses import replace
from typing import Any

from geartrain_edge.parent import upgrading
from geartrain_edge.parent.upgrading import Upgrade
from geartrain_edge.programs import choice as choosing
from geartrain_edge.programs.choice import INSTALLED
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.program_fleet import ProgramFleet


def _run(seed: int) -> object:
    return ProgramFleet(seed).run()


def _start_not_counted(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def next_start(choice: Any, *rest: Any) -> Any:
            after, program = right(choice, *rest)
            return (replace(after, tries=choice.tries) if program == choice.tried else after), program

        return next_start

    patches.replace(choosing, "next_start", make)


def _proved_unheard(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def tries(upgrade: Upgrade) -> bool:
            upgrade._is_heard = True
            return bool(await right(upgrade))

        return tries

    patches.replace(Upgrade, "_try", make)


def _damage_not_seen(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def next_start(choice: Any, is_whole: Any, tries_max: int) -> Any:
            return right(choice, bool, tries_max)

        return next_start

    patches.replace(choosing, "next_start", make)


def _former_let_go(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def prepare(upgrade: Upgrade, program: str) -> bool:
            if program != INSTALLED and not upgrade._shelf.has(program):
                await upgrade._shelf.fetch("", {program})
            return bool(await right(upgrade, program))

        return prepare

    patches.replace(Upgrade, "_prepare", make)


def _tried_again(patches: Patches) -> None:
    def make(right: Any) -> Any:
        return lambda choice, program: replace(choice, refused="", why="")

    patches.replace(upgrading, "other_asked", make)


def _back_not_said(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def say(upgrade: Upgrade, why: str, *, went_back: bool = False) -> None:
            right(upgrade, why)

        return say

    patches.replace(Upgrade, "_say", make)


def _installed_not_tried(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def asked(choice: Any, program: str, ran: Any) -> Any:
            return choice if program == INSTALLED else right(choice, program, ran)

        return asked

    patches.replace(upgrading, "asked", make)


OF_PROGRAMS = [
    Mutant("start of a program not counted", _start_not_counted, _run),
    Mutant("silent program taken for one that works", _proved_unheard, _run),
    Mutant("damaged program started", _damage_not_seen, _run),
    Mutant("former program let go while it is needed", _former_let_go, _run),
    Mutant("program that went back tried again", _tried_again, _run),
    Mutant("device does not say that its program went back", _back_not_said, _run),
    Mutant("way back to the installed program not gone", _installed_not_tried, _run),
]
