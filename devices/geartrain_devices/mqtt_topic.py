"""Plain sensors over MQTT: the JSON that they publish to a topic, as records.

A source without positions: what was published while the agent was away is gone (the broker's own queue is not
asked, for it loses without a word). Guarantees: a broken connection is opened again for ever, with growing
pauses. A payload that is no such record leaves as a dead letter with its bytes. With TLS, the broker's
certificate and name are always checked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.tls import BrokerTable, context_of
from geartrain.declarations.options import Count, FilePath, Port
from geartrain.errors import ConfigError, NetError, SourceError
from geartrain.source import Source, Split
from geartrain_devices.json_fields import JsonFields, now_us
from geartrain_devices.live import LiveBufferSplit

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

_PAUSE_S_MAX = 30.0
_TOPIC_BYTES_MAX = 65_535


class MqttTopic(Source[T]):
    """Records of type `T` from the JSON payloads that sensors publish to a topic.

    Args:
        topic: a filter, `+` and `#` allowed.
        host: of the sensors' broker.
        port: of the sensors' broker.
        tls: whether the connection is encrypted.
        ca: the file of the certificate authority; empty for the system's.
        certificate: the file of the client's certificate.
        key: the file of its private key.
        time: the path of the event time in a payload, empty where the time of arrival is meant.
        time_unit: of a time that is a number: `s`, `ms` or `us` since 1970 UTC.
        fields: paths by field. `$topic[1]` is the second level of the topic, `$value` a payload that is no
            object.
        out_of_orderness_ms: how far a record may lie behind the newest and not be late.
    """

    pausable: ClassVar[bool] = False
    since_1970 = True

    topic: str = ""
    host: str = "127.0.0.1"
    port: Port = 1883
    tls: bool = False
    ca: FilePath = ""
    certificate: FilePath = ""
    key: FilePath = ""
    time: str = ""
    time_unit: str = "s"
    fields: dict[str, str] = field(default_factory=dict)
    out_of_orderness_ms: Count = 0

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the option."""
        if not self.topic:
            raise SourceError(
                f'source {step} has no topic: set topic = "sensors/+/data" under [sources.{step}]'
            )
        if problem := _filter_problem(self.topic):
            raise SourceError(f"source {step}: topic = {self.topic!r} {problem}")
        if not self.host:
            raise SourceError(f'source {step}: host is empty: name the broker, such as host = "127.0.0.1"')
        fields = JsonFields(f"source {step}", out, self.time, self.time_unit, self.fields)
        try:
            context = context_of(
                BrokerTable("", self.tls, self.ca, self.certificate, self.key), Path(), f"sources.{step}"
            )
        except ConfigError as error:
            raise SourceError(str(error)) from None
        net = AiomqttNet(self.host, self.port, tls_context=context)
        drive = partial(_listen, net, f"{device}-{step}", self.topic, fields)
        bound_us = self.out_of_orderness_ms * 1_000
        return [LiveBufferSplit(f"{device}/{step}", drive, out_of_orderness_us=bound_us)]


async def _listen(
    net: AiomqttNet, client_id: str, topic: str, fields: JsonFields, split: LiveBufferSplit
) -> None:
    """Push every payload of `topic` until cancelled."""
    pause_s, dropped = 1.0, 0
    while True:
        try:
            async with net.connect(client_id) as connection:
                await connection.subscribe(topic)
                async for publish in connection.incoming():
                    pause_s = 1.0
                    split.push(publish.payload, partial(_read, fields, publish.topic))
                    if (total := net.counters["incoming_dropped"]) > dropped:
                        split.lost(total - dropped, "because the queue of the connection was full")
                        dropped = total
        except NetError as error:
            _LOG.warning("source %s: %s; again in %.0f s", split.name, error, pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)


def _filter_problem(topic: str) -> str:
    """Why a text is no topic filter of MQTT, and what one looks like; empty for one that is."""
    levels = topic.split("/")
    if "\0" in topic or len(topic.encode(errors="replace")) > _TOPIC_BYTES_MAX:
        return f"is no topic: it holds a NUL, or is longer than {_TOPIC_BYTES_MAX} bytes"
    if "#" in topic and (levels[-1] != "#" or "#" in "/".join(levels[:-1])):
        return "is no topic filter: # is the last level, as in sensors/#"
    if any("+" in level and level != "+" for level in levels):
        return "is no topic filter: + is a whole level, as in sensors/+/data"
    return ""


def _read(fields: JsonFields, topic: str, raw: bytes) -> tuple[int, Any]:
    try:
        time_us, record = fields.read(raw, topic)
    except ValueError as error:
        raise ValueError(f"topic {topic}: {error}") from None
    return now_us() if time_us is None else time_us, record
