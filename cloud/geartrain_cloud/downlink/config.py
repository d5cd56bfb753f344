"""The configuration of the sender: the flow, its outbox, the broker, and how it sends.

Read once, before anything else. Guarantees: whatever is wrong with the file raises one `ConfigError` that
names the file and the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from geartrain.adapters.configuration import read_as
from geartrain.adapters.tls import Broker, BrokerTable, broker_of
from geartrain.errors import ConfigError, GeartrainError
from geartrain.wire.topics import check_name
from geartrain_cloud.downlink.sender import SenderSettings

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Path_ = Annotated[str, msgspec.Meta(min_length=1)]
_DEFAULT = SenderSettings()
PUBACK_MS = 10_000
"""How long the broker may take for the puback of a batch, where nobody says otherwise."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    flow: str
    outbox: Path_
    state: Path_
    broker: str | BrokerTable = "127.0.0.1:1883"
    window: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = _DEFAULT.window
    window_bytes: Positive = _DEFAULT.window_bytes
    resend_ms: Positive = _DEFAULT.resend_ms
    resend_ms_max: Positive = _DEFAULT.resend_ms_max
    poll_ms: Positive = _DEFAULT.poll_ms
    backoff_ms_max: Positive = _DEFAULT.backoff_ms_max
    puback_ms: Positive = PUBACK_MS


@dataclass(frozen=True, slots=True)
class DownConfig:
    """A checked file. flow: its name; outbox: the file that the driver writes; state: the folder of
    status.json; puback_ms: how long the broker may take for the puback of a batch until the connection is
    made anew.
    """

    flow: str
    outbox: Path
    state: Path
    broker: Broker
    settings: SenderSettings
    puback_ms: int


def read_config(path: Path) -> DownConfig:
    """The configuration in the TOML file `path`; relative paths are taken from its folder.

    Raises `ConfigError`.
    """
    found, folder = read_as(path, _File), path.absolute().parent
    try:
        check_name("flow", found.flow)
        broker = broker_of(found.broker, folder)
    except GeartrainError as error:
        raise ConfigError(f"{path}: {error}") from None
    if found.resend_ms > found.resend_ms_max:
        raise ConfigError(f"{path}: resend_ms is larger than resend_ms_max: make it smaller")
    settings = SenderSettings(
        window=found.window,
        window_bytes=found.window_bytes,
        resend_ms=found.resend_ms,
        resend_ms_max=found.resend_ms_max,
        poll_ms=found.poll_ms,
        backoff_ms_max=found.backoff_ms_max,
    )
    return DownConfig(
        found.flow, folder / found.outbox, folder / found.state, broker, settings, found.puback_ms
    )
