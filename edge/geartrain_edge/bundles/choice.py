"""Which code of an app a device runs: the one that is wanted, or the one that has shown that it works.

Under the parent of a device's agents, without I/O. Guarantees: code that takes the place of other code is on
trial until its first commit of records. If it fails before, the former one runs again, and the new one is not
tried a second time unless other code was wanted in between. After that commit it stays. Starts count before
they are made, so a device that goes down with new code comes back to the old.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from geartrain.control.app_reasons import AppCode
from geartrain.control.states import App, Wanted
from geartrain.errors.reason import NO_REASON, Reason, make_reason

SHORT = 12
"""So many digits of a code's hash are named to people."""


class TrialPolicy(msgspec.Struct, frozen=True):
    """When code is given up. Times in seconds.

    deadline_s: a process that makes no step for so long hangs, and a start that has lived so long is no
    failed one unless it is seen to fail; tries_max: starts on trial that may come to nothing, and failures in
    a row after which proven code is left alone; memory_bytes_max: what a process may take, 0 for any.
    """

    deadline_s: float = 60.0
    tries_max: int = 3
    memory_bytes_max: int = 256 << 20


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one instance.

    proved: the app as it ran when it last committed records; begun: as it was started last; tried: the code
    on trial, empty for none; tries: its starts so far that came to nothing; refused: the code that went back,
    and why.
    """

    proved: App | None = None
    begun: App | None = None
    tried: str = ""
    tries: int = 0
    refused: str = ""
    why: str = ""

    @property
    def codes(self) -> set[str]:
        """The code that this rests on."""
        return {self.tried} - {""} | ({self.proved.code} if self.proved else set())


class Chosen(msgspec.Struct, frozen=True):
    """What follows from a choice. run: what runs now, None for nothing; fetch: the code that is missing,
    empty for none; reason: why another app runs than is wanted.
    """

    choice: Choice
    run: App | None
    fetch: App | None = None
    reason: Reason = NO_REASON


def choose(choice: Choice, wanted: App, is_here: Callable[[str], bool], mark: str) -> Chosen:
    """What runs where `wanted` is wanted; is_here: whether the bundle of a code is unpacked; mark: the code
    that has committed records.
    """
    choice = marked(choice, mark)
    if choice.refused and choice.refused != wanted.code:
        choice = replace(choice, refused="", why="")
    proved = choice.proved
    if proved is not None and proved.code == wanted.code:
        choice = replace(choice, proved=_running(wanted), tried="", tries=0)
    elif proved is not None and choice.refused == wanted.code:
        former = replace(proved, wanted=wanted.wanted)
        codes = {"code": short(wanted.code), "former": short(former.code)}
        reason = make_reason(AppCode.WENT_BACK, **codes, why=choice.why)
        return _of(choice, former, is_here, reason)
    elif proved is not None and is_here(wanted.code):
        if choice.tried != wanted.code:
            choice = replace(choice, tried=wanted.code, tries=0)
    elif proved is not None:
        meanwhile = replace(proved, wanted=wanted.wanted) if is_here(proved.code) else None
        return Chosen(replace(choice, tried="", tries=0), meanwhile, wanted)
    return _of(choice, wanted, is_here)


def started(choice: Choice, app: App) -> Choice:
    """A process of `app` is about to start."""
    tries = choice.tries + 1 if app.code == choice.tried else choice.tries
    return replace(choice, begun=_running(app), tries=tries)


def lived(choice: Choice, code: str) -> Choice:
    """A process of `code` has lived through the deadline: its start does not count."""
    return replace(choice, tries=max(choice.tries - 1, 0)) if code == choice.tried else choice


def unlived(choice: Choice, code: str) -> Choice:
    """A process of `code` that had lived through the deadline came to nothing after all."""
    return replace(choice, tries=choice.tries + 1) if code == choice.tried else choice


def marked(choice: Choice, mark: str) -> Choice:
    """The code `mark` has committed records, which counts if it is the one that was started last."""
    begun, proved = choice.begun, choice.proved
    if begun is None or begun.code != mark or (proved is not None and proved.code == mark):
        return choice
    return replace(choice, proved=begun, tried="", tries=0)


def failed(choice: Choice, code: str, why: str, policy: TrialPolicy, *, is_final: bool) -> Choice:
    """A process of `code` came to nothing; is_final: another start would not help."""
    if not code or code != choice.tried or not (is_final or choice.tries >= policy.tries_max):
        return choice
    return replace(choice, tried="", tries=0, refused=code, why=why)


def short(code: str) -> str:
    """A code's hash for people."""
    return code[:SHORT]


def _of(choice: Choice, app: App, is_here: Callable[[str], bool], reason: Reason = NO_REASON) -> Chosen:
    here = is_here(app.code)
    return Chosen(choice, app if here else None, None if here else app, reason)


def _running(app: App) -> App:
    """An app without whether it drains just now."""
    return replace(app, wanted=Wanted.RUN)
