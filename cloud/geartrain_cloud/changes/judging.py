"""Whether the devices of a canary do well: a function of what is known of them.

Under the rounds in control that look at canaries. Guarantees: what a device says of its own failure counts at
once. All else is settled when the time is over: then the canary is taken on, or goes back with a reason.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from geartrain_cloud.log.brought import Brought

RESTARTS_MAX = 3
"""So many starts anew of a device's app are one too many."""
LETTERS_MIN, LETTERS_TIMES = 10, 2
"""Dead letters of a device that are borne, and so many times the mean of the other devices on top."""
LATE_MIN, LATE_MORE = 100, 0.1
"""Late records of a device that are borne, and by so much its share of them may be above the others'."""
SILENT_MIN = 100
"""So many records of an other device in the mean, and who sends none has fallen silent."""


class Standing(msgspec.Struct, frozen=True):
    """A device of a canary. state: of the app there, as it says itself, "" for nothing; why: what it says of
    it; went_back: the code that it is to run has failed on trial there; has_crossed: it runs what it is to
    run; is_online: it is in contact; restarts: how often the app was started anew since; letters: dead
    letters that it has sent since; held: why ingest leaves with it what it sends, "" where it takes all;
    brought: records that it has sent since, and before.
    """

    device: str
    state: str = ""
    why: str = ""
    went_back: bool = False
    has_crossed: bool = False
    is_online: bool = True
    restarts: int = 0
    letters: int = 0
    held: str = ""
    brought: Brought = Brought()

    @property
    def late_share(self) -> float:
        """How much of what it has sent since came too late."""
        return _share(self.brought.late, self.brought.records)


class Others(msgspec.Struct, frozen=True):
    """The devices that stay as they are. letters, records: of one in the mean; late_share: of all."""

    letters: float = 0.0
    records: float = 0.0
    late_share: float = 0.0


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a canary, and why."""

    is_good: bool
    why: str


def in_words(seconds: float) -> str:
    """A time for people."""
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def others_of(
    letters: Mapping[str, int], brought: Mapping[str, Brought], canaries: Sequence[str], count: int
) -> Others:
    """What the other devices have sent; letters, brought: by device; count: how many others there are."""
    those = [one for device, one in brought.items() if device not in canaries]
    records, late = sum(one.records for one in those), sum(one.late for one in those)
    bad = sum(number for device, number in letters.items() if device not in canaries)
    return Others(bad / max(count, 1), records / max(count, 1), _share(late, records))


def _share(late: int, records: int) -> float:
    return late / max(late + records, 1)


def judged(
    found: Sequence[Standing], others: Others, time: str, *, is_over: bool, ends: bool = False
) -> Verdict | None:
    """What becomes of a canary, None while that is open.

    time: how long the canary is looked at, in words; is_over: that time is over, without it only dead letters
    are compared; ends: the app's sources come to their end, so that devices may end.
    """
    for one in found:
        if why := _fault(one, others.letters, ends=ends):
            return Verdict(False, f"device {one.device} {why}")
    if not is_over:
        return None
    there = [one for one in found if one.is_online or (ends and one.state == "ended")]
    if not there:
        return Verdict(False, f"none of its {len(found):,} devices was in contact after {time}")
    for one in there:
        if why := _unfit(one, others, time):
            return Verdict(False, f"device {one.device} {why}")
    return Verdict(True, f"{len(there):,} of {len(found):,} devices have run it well for {time}")


def _fault(one: Standing, mean: float, *, ends: bool) -> str:
    """What a device has done wrong by now, "" for nothing."""
    if one.state == "failed":
        return f"has failed: {one.why}"
    if one.state == "ended" and not ends:
        return "has come to its end" + (f": {one.why}" if one.why else "")
    if one.went_back:
        return f"does not run it: {one.why}"
    if one.restarts >= RESTARTS_MAX:
        return f"was started anew {one.restarts} times: {one.why or 'see gear logs'}"
    if one.letters > LETTERS_MIN + LETTERS_TIMES * mean:
        return f"has sent {one.letters:,} dead letters, and other devices {mean:.1f} each"
    return ""


def _unfit(one: Standing, others: Others, time: str) -> str:
    """What keeps a device from being fit when the time is over, "" for nothing."""
    if not one.has_crossed:
        return f"has not gone over within {time}" + (f": {one.why}" if one.why else "")
    if one.held:
        return f"keeps what it sends: {one.held}"
    sent = one.brought
    if sent.late > LATE_MIN and one.late_share > others.late_share + LATE_MORE:
        return (
            f"sends {one.late_share:.0%} of its records too late, and other devices {others.late_share:.0%}"
        )
    if not sent.records and sent.before and others.records >= SILENT_MIN and one.state != "ended":
        return f"sends no records any more, and other devices have sent {others.records:,.1f} each"
    return ""
