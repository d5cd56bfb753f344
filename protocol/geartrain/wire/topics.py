"""The topics of a fleet: `geartrain/v1/<bucket>/<device>/<flow>/up` and `/ack`, `/down` and `/downack` for
what the cloud sends to a device, `/ask` and `/told` for questions. A device's control lane is
`.../<device>/desired` and `.../<device>/reported`.

A device's bucket is a pure function of its name. So several ingest processes share a fleet by buckets and all
of a device's batches reach one of them, in order. Names are plain: none holds a wildcard or a level.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache

from geartrain.errors import WireError

ROOT = "geartrain/v1"
BUCKETS = 64
KNOWN_MAX = 16_384
"""Names and topics remembered as good ones: the same come again with every batch."""

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""The form of a device's, a flow's and a channel's name."""
_UP = rf"{ROOT}/([0-9a-f]{{2}})/([^/]*)/([^/]*)/up"
_REPORTED = rf"{ROOT}/([0-9a-f]{{2}})/([^/]*)/reported"
_TOLD = rf"{ROOT}/([0-9a-f]{{2}})/([^/]*)/([^/]*)/told"
_DOWNACK = rf"{ROOT}/([0-9a-f]{{2}})/([^/]*)/([^/]*)/downack"


@lru_cache(KNOWN_MAX)
def check_name(kind: str, name: str) -> str:
    """Return `name`; raises `WireError` unless it can name a device or a flow (as `kind` says) in a topic."""
    if not NAME.fullmatch(name):
        shown = repr(name if len(name) <= 80 else name[:77] + "...")
        raise WireError(f"{kind} {shown}: use a name of 1 to 64 letters, digits, '_', '.' and '-'")
    return name


@lru_cache(KNOWN_MAX)
def bucket(device: str) -> str:
    """The bucket of a device: crc32 of its name modulo 64, as two hexadecimal digits; raises `WireError`."""
    return f"{zlib.crc32(check_name('device', device).encode()) % BUCKETS:02x}"


def up_topic(device: str, flow: str) -> str:
    """Where a device sends the batches of a flow; raises `WireError`."""
    return f"{ROOT}/{bucket(device)}/{device}/{check_name('flow', flow)}/up"


@lru_cache(KNOWN_MAX)
def ack_topic(device: str, flow: str) -> str:
    """Where ingest answers them; raises `WireError`."""
    return f"{ROOT}/{bucket(device)}/{device}/{check_name('flow', flow)}/ack"


def desired_topic(device: str) -> str:
    """Where a device is told what to run; raises `WireError`."""
    return f"{ROOT}/{bucket(device)}/{device}/desired"


def reported_topic(device: str) -> str:
    """Where a device says what it runs; raises `WireError`."""
    return f"{ROOT}/{bucket(device)}/{device}/reported"


def reported_filter() -> str:
    """The filter of the `reported` topics of all devices."""
    return f"{ROOT}/+/+/reported"


def parse_reported(topic: str) -> str:
    """The device of a `reported` topic; raises `WireError`, also when the bucket is not the device's."""
    found = re.fullmatch(_REPORTED, topic)
    if not found:
        raise WireError(f"topic {topic[:200]!r} is not one that devices report on")
    return _check_bucket(topic, found[1], found[2])


def flow_down_topic(device: str, flow: str) -> str:
    """Where a device gets the batches of a flow that the cloud sends to it; raises `WireError`."""
    return f"{ROOT}/{bucket(device)}/{device}/{check_name('flow', flow)}/down"


def downack_topic(device: str, flow: str) -> str:
    """Where a device answers them; raises `WireError`."""
    return f"{ROOT}/{bucket(device)}/{device}/{check_name('flow', flow)}/downack"


def ask_topic(device: str, flow: str) -> str:
    """Where a flow on a device is asked for its state; raises `WireError`."""
    return f"{ROOT}/{bucket(device)}/{device}/{check_name('flow', flow)}/ask"


def told_topic(device: str, flow: str) -> str:
    """Where it answers; raises `WireError`."""
    return f"{ROOT}/{bucket(device)}/{device}/{check_name('flow', flow)}/told"


def told_filter() -> str:
    """The filter of the `told` topics of all flows on all devices."""
    return f"{ROOT}/+/+/+/told"


def parse_told(topic: str) -> tuple[str, str]:
    """(device, flow) of a `told` topic; raises `WireError`, also when the bucket is not the device's."""
    return _parse(_TOLD, topic, "answer questions on")


def up_filter(bucket: str = "+") -> str:
    """The filter of all `up` topics of one bucket (two hexadecimal digits), or of all; raises `WireError`."""
    if bucket != "+" and not (re.fullmatch("[0-9a-f]{2}", bucket) and int(bucket, 16) < BUCKETS):
        raise WireError(f"bucket {bucket!r}: use two hexadecimal digits from 00 to {BUCKETS - 1:02x}, or +")
    return f"{ROOT}/{bucket}/+/+/up"


@lru_cache(KNOWN_MAX)
def parse_up(topic: str) -> tuple[str, str]:
    """(device, flow) of an `up` topic; raises `WireError`, also when the bucket is not the device's."""
    return _parse(_UP, topic, "send batches to")


def downack_filter(flow: str) -> str:
    """The filter of all `downack` topics of one flow; raises `WireError`."""
    return f"{ROOT}/+/+/{check_name('flow', flow)}/downack"


def parse_downack(topic: str) -> tuple[str, str]:
    """(device, flow) of a `downack` topic; raises `WireError`, also when the bucket is not the device's."""
    return _parse(_DOWNACK, topic, "answer the cloud on")


def _parse(form: str, topic: str, what: str) -> tuple[str, str]:
    found = re.fullmatch(form, topic)
    if not found:
        raise WireError(f"topic {topic[:200]!r} is not one that devices {what}")
    return _check_bucket(topic, found[1], found[2]), check_name("flow", found[3])


def _check_bucket(topic: str, found: str, device: str) -> str:
    if found != bucket(device):
        raise WireError(f"topic {topic[:200]!r}: the bucket of device {device} is {bucket(device)}")
    return device
