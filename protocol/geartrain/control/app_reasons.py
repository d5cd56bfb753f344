"""Why an app does not run on a device as it is to: the codes that its report carries, and their sentences.

Between the parent of a device's agents, which finds them, and control, which compares them. Guarantees: who
has to act on a report reads its codes alone; its sentence is for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from geartrain.errors.reason import Reason


class AppCode(StrEnum):
    """Why an app does not run as it is to.

    AWAITS_STATE: a device that was given another cut runs its former steps; `unmoved`: why what it claimed
    last did not come, absent for the first time. STATE_STAYS: the same, and it claims no more; `unmoved` says
    what to do. WENT_BACK: the code that it is to run has failed on trial: `code` and `former` are the starts
    of both hashes, `why` is what failed.
    """

    AWAITS_STATE = "awaits_state"
    STATE_STAYS = "state_stays"
    WENT_BACK = "went_back"


def has_code(reasons: Iterable[Reason], *codes: AppCode) -> bool:
    """Whether one of the reasons has one of the codes."""
    return any(reason.code in codes for reason in reasons)


def app_sentence(reason: Reason) -> str:
    """A reason of an app, for a person; empty for no reason."""
    details = reason.details
    if reason.code == AppCode.AWAITS_STATE:
        return _with_unmoved(
            "runs its former steps until the state of those that come to it is there", details
        )
    if reason.code == AppCode.STATE_STAYS:
        return _with_unmoved("keeps its former steps, and asks for no state any more", details)
    if reason.code == AppCode.WENT_BACK:
        return f"bundle {details['code']} went back to {details['former']}: {details['why']}"
    return reason.code.replace("_", " ")


def _with_unmoved(sentence: str, details: Mapping[str, Any]) -> str:
    return f"{sentence}: {details['unmoved']}" if "unmoved" in details else sentence
