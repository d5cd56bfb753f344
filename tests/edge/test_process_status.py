"""What the parent of an agent makes of its status: here, why steps have not come to the device."""

from __future__ import annotations

import msgspec

from geartrain.control.app_reasons import AppCode, app_sentence
from geartrain.errors.reason import NO_REASON, Reason, make_reason
from geartrain_edge.agent.status import status_of
from geartrain_edge.parent.processes import _decode_status


def awaits(**more: object) -> Reason:
    """What the parent says of a device that waits for state."""
    status = msgspec.to_builtins(status_of(None, "d1", "heat", "running", "", 0))
    return _decode_status(msgspec.json.encode(status | more)).awaits


def test_a_device_that_waits_for_state_says_why_it_did_not_come_and_whether_it_asks_again() -> None:
    assert awaits() == NO_REASON
    assert awaits(awaits_state=True) == make_reason(AppCode.AWAITS_STATE)
    late = awaits(awaits_state=True, unmoved="it was late")
    assert late == make_reason(AppCode.AWAITS_STATE, unmoved="it was late")
    assert app_sentence(late).endswith("is there: it was late")
    stays = awaits(awaits_state=True, unmoved="it is too large", claims_no_more=True)
    assert stays == make_reason(AppCode.STATE_STAYS, unmoved="it is too large")
    assert app_sentence(stays).endswith("no state any more: it is too large")
