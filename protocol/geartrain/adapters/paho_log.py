"""What paho says to its log of a connection that fails: the one reader of its sentences, and of OpenSSL's.

Beside the MQTT client. paho tells the cause of a lost connection to its log alone, and OpenSSL's alert stands
in that text alone. Guarantees: a text of another form is no cause.
"""

from __future__ import annotations

import re

_RECEIVE_FAILED = "failed to receive on socket: "
_ALERT = re.compile(r"ALERT_([A-Z_]*CERTIFICATE[A-Z_]*|UNKNOWN_CA|ACCESS_DENIED)")


def read_failure(line: str) -> str | None:
    """Why nothing more could be received, by a line of paho's log; None where it says something else."""
    return line.removeprefix(_RECEIVE_FAILED) if line.startswith(_RECEIVE_FAILED) else None


def read_alert(text: str) -> str:
    """The TLS alert by which the other side refuses a certificate, in words; empty where there is none."""
    found = _ALERT.search(text)
    return "" if found is None else found[1].replace("_", " ").lower()
