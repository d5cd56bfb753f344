"""Whether the devices of a canary do well: a function of what is known of them.

Under the rounds in control that look at canaries. Guarantees: what a device says of its own failure counts at
once. All else is settled when the time is over: then the canary is taken on, or goes back with a reason.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from geartrain.control.states import WENT_BACK

RESTARTS_MAX = 3
"""So many starts anew of a device's app are one too many."""
LETTERS_MIN, LETTERS_TIMES = 10, 2
"""Dead letters of a device that are borne, and so many times the mean of the other devices on top."""


class Standing(msgspec.Struct, frozen=True):
    """A device of a canary. state: of the app there, as it says itself, "" for nothing; why: what it says of
    it; has_crossed: it runs what it is to run; is_online: it is in contact; restarts: how often the app was
    started anew since; letters: dead letters that it has sent since; held: why ingest leaves with it what it
    sends, "" where it takes all.
    """

    device: str
    state: str = ""
    why: str = ""
    has_crossed: bool = False
    is_online: bool = True
    restarts: int = 0
    letters: int = 0
    held: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a canary, and why."""

    is_good: bool
    why: str


def in_words(seconds: float) -> str:
    """A time for people."""
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def others_mean(letters: Mapping[str, int], canaries: Sequence[str], others: int) -> float:
    """How many dead letters an other device has sent in the mean; letters: by device; others: how many."""
    return sum(count for device, count in letters.items() if device not in canaries) / max(others, 1)


def judged(
    found: Sequence[Standing], mean: float, time: str, *, is_over: bool, ends: bool = False
) -> Verdict | None:
    """What becomes of a canary, None while that is open.

    mean: dead letters of an other device; time: how long the canary is looked at, in words; is_over: that
    time is over; ends: the app's sources come to their end, so that devices may end.
    """
    for one in found:
        if why := _fault(one, mean, ends=ends):
            return Verdict(False, f"device {one.device} {why}")
    if not is_over:
        return None
    there = [one for one in found if one.is_online or (ends and one.state == "ended")]
    if not there:
        return Verdict(False, f"none of its {len(found):,} devices was in contact after {time}")
    for one in there:
        if why := _unfit(one, time):
            return Verdict(False, f"device {one.device} {why}")
    return Verdict(True, f"{len(there):,} of {len(found):,} devices have run it well for {time}")


def _fault(one: Standing, mean: float, *, ends: bool) -> str:
    """What a device has done wrong by now, "" for nothing."""
    if one.state == "failed":
        return f"has failed: {one.why}"
    if one.state == "ended" and not ends:
        return "has come to its end" + (f": {one.why}" if one.why else "")
    if WENT_BACK in one.why:
        return f"does not run it: {one.why}"
    if one.restarts >= RESTARTS_MAX:
        return f"was started anew {one.restarts} times: {one.why or 'see gear logs'}"
    if one.letters > LETTERS_MIN + LETTERS_TIMES * mean:
        return f"has sent {one.letters:,} dead letters, and other devices {mean:.1f} each"
    return ""


def _unfit(one: Standing, time: str) -> str:
    """What keeps a device from being fit when the time is over, "" for nothing."""
    if not one.has_crossed:
        return f"has not gone over within {time}" + (f": {one.why}" if one.why else "")
    if one.held:
        return f"keeps what it sends: {one.held}"
    return ""
