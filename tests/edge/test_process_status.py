"""What the parent of an agent makes of its status: here, why steps have not come to the device."""

from __future__ import annotations

import msgspec

from geartrain.control.states import AWAITS_STATE, STATE_STAYS
from geartrain_edge.agent.status import status_of
from geartrain_edge.parent.processes import _decode_status


def said(**more: object) -> str:
    """What the parent says of a device that waits for state."""
    status = msgspec.to_builtins(status_of(None, "d1", "heat", "running", "", 0))
    return _decode_status(msgspec.json.encode(status | more)).awaits


def test_a_device_that_waits_for_state_says_why_it_did_not_come_and_whether_it_asks_again() -> None:
    assert said() == ""
    assert said(awaits_state=True) == AWAITS_STATE
    assert said(awaits_state=True, unmoved="it was late") == f"{AWAITS_STATE}: it was late"
    stays = said(awaits_state=True, unmoved="it is too large", claims_no_more=True)
    assert stays == f"{STATE_STAYS}: it is too large"
