"""Plain sensors over MQTT: what they publish to a topic, as records.

A source without positions: what was published while the agent was away is gone, but for what the broker has
retained. Guarantees: a broken connection is opened again for ever, with growing pauses. A payload that is no
such record leaves as a dead letter with its bytes. A retained message is one record, however often the broker
sends it (`retained`). With TLS, the broker's certificate and name are always checked.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.adapters.tls import BrokerTable, context_of
from geartrain.concurrency.client_id import ID_BYTES, client_id
from geartrain.concurrency.connecting import DENIED_S, Backoff, Connector
from geartrain.declarations.options import Count, FilePath, Port, SecretText
from geartrain.errors import ConfigError, NetError, SourceError, TakenOverError
from geartrain.ports import Net
from geartrain.ports.net import Incoming
from geartrain.source import Source, Split
from geartrain_devices.json_fields import now_us
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.last_payloads import LastPayloads
from geartrain_devices.live import LiveBufferSplit
from geartrain_devices.no_record import NoRecordError, code_of
from geartrain_devices.payloads import PayloadKind, Payloads

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

_BACKOFF = Backoff(1.0, 30.0, denied_s=DENIED_S)
_TOPIC_BYTES_MAX = _ID_BYTES_MAX = 65_535
RETAINED = "mqtt_retained_passed_over"
EMPTY = "mqtt_empty_passed_over"
TAKEN_OVER = "sessions_taken_over"


class MqttTopic(ValueOptions, Source[T]):
    """Records of type `T` from the payloads that sensors publish to a topic.

    How its times and numbers are written, the options of `ValueOptions` say.

    Args:
        topic: a filter, `+` and `#` allowed.
        host: of the sensors' broker.
        port: of the sensors' broker.
        user: by which the broker knows this client, empty for none.
        password: of that user, as `secret:NAME`.
        tls: whether the connection is encrypted.
        ca: the file of the certificate authority; empty for the system's.
        certificate: the file of the client's certificate.
        key: the file of its private key.
        client_id: the id to connect with, for a broker whose rules name it; empty for one of the source's
            own, which no other app or device has.
        payload: what a payload is: `json`, `text`, `number` or `bytes`.
        encoding: of payloads that are text, empty for UTF-8, or what a byte-order mark says.
        retained: what a message gives that the broker had retained: `once`, a record the first time that it
            comes; `ignore`, none; `always`, one at each subscription.
        time: the path of the event time in a payload, empty where the time of arrival is meant.
        fields: paths by field. `$topic[1]` is the second level of the topic, `$value` a payload that is no
            object.
        out_of_orderness_ms: how far a record may lie behind the newest and not be late.
    """

    pausable: ClassVar[bool] = False
    since_1970 = True

    topic: str = ""
    host: str = "127.0.0.1"
    port: Port = 1883
    user: str = ""
    password: SecretText = ""
    tls: bool = False
    ca: FilePath = ""
    certificate: FilePath = ""
    key: FilePath = ""
    client_id: str = ""
    payload: PayloadKind = "json"
    encoding: str = ""
    retained: Literal["once", "ignore", "always"] = "once"
    time: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    out_of_orderness_ms: Count = 0

    def check_settings(self, step: str, out: type[T]) -> None:
        """As of a `Source`."""
        where = f"source {step}"
        if problem := _filter_problem(self.topic):
            raise SourceError(f"{where}: topic = {self.topic!r} {problem}")
        if "\0" in self.client_id or len(self.client_id.encode(errors="replace")) > _ID_BYTES_MAX:
            raise SourceError(
                f"{where}: client_id holds a NUL, or is longer than {_ID_BYTES_MAX} bytes: give a shorter one"
            )
        Payloads(where, out, self.payload, self.time, self, self.fields, self.encoding)

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the option."""
        where = f"source {step}"
        if not self.topic:
            raise SourceError(f'{where} has no topic: set topic = "sensors/+/data" under [sources.{step}]')
        if not self.host:
            raise SourceError(f'{where}: host is empty: name the broker, such as host = "127.0.0.1"')
        self.check_settings(step, out)
        payloads = Payloads(where, out, self.payload, self.time, self, self.fields, self.encoding)
        try:
            context = context_of(
                BrokerTable("", self.tls, self.ca, self.certificate, self.key), Path(), f"sources.{step}"
            )
        except ConfigError as error:
            raise SourceError(str(error)) from None
        net = AiomqttNet(
            self.host,
            self.port,
            username=self.user or None,
            password=str(self.password) or None,
            tls_context=context,
            keeps_id=bool(self.client_id),
        )
        bound_us = self.out_of_orderness_ms * 1_000
        return [TopicSplit(device, step, net, self.topic, payloads, self.retained, self.client_id, bound_us)]


class TopicSplit(LiveBufferSplit):
    """What comes on one subscription."""

    def __init__(
        self,
        device: str,
        step: str,
        net: Net,
        topic: str,
        payloads: Payloads,
        retained: str,
        own_id: str = "",
        out_of_orderness_us: int = 0,
    ) -> None:
        """own_id: what the user wants to connect with, empty for what `name_client` says."""
        super().__init__(device, step, lambda _: self._listen(), out_of_orderness_us=out_of_orderness_us)
        self._net, self._topic, self._payloads, self._retained = net, topic, payloads, retained
        self._is_named = bool(own_id)
        self._last = LastPayloads()
        self._dropped = 0
        # Where nobody names it, as in a test, it is still no other's.
        own_id = own_id or client_id("source", os.urandom(ID_BYTES).hex())
        self._connector = Connector(SystemClock(), SystemRandomness(), _BACKOFF, own_id)

    @property
    def client_id(self) -> str:
        """What it connects with."""
        return self._connector.client_id

    def name_client(self, client_id: str) -> None:
        """As of a `ClientSplit`; an id that the user has set stands above it."""
        if not self._is_named:
            self._connector.client_id = client_id

    def take_notes(self, notes: Mapping[bytes, bytes]) -> None:
        """As of a `NotingSplit`."""
        self._last.restore(notes)

    async def _listen(self) -> None:
        """Push every payload of the topic until cancelled."""
        await self._connector.stay(self._session, self._hear_lost)

    def _hear_lost(self, error: NetError) -> None:
        if isinstance(error, TakenOverError):
            self.count(TAKEN_OVER)
        if news := self._connector.news(error):
            _LOG.warning("source %s: %s", self.label, news)

    async def _session(self) -> None:
        async with self._net.connect(self._connector.client_id) as connection:
            await connection.subscribe(self._topic)
            self._connector.is_connected = True
            async for publish in connection.incoming():
                self._connector.succeeded()
                self._take_publish(publish)
                self._tell_dropped()

    def _take_publish(self, publish: Incoming) -> None:
        topic, payload = publish.topic, publish.payload
        if not payload:  # so a retained message is removed from the broker
            self.count(EMPTY)
            self.note(self._last.forget(topic))
            return
        is_known = self._retained == "once" and self._last.is_last(topic, payload)
        if publish.is_retained and (is_known or self._retained == "ignore"):
            self.count(RETAINED)
            return
        if self.push(payload, partial(self._read, topic)) and self._retained == "once":
            self.note(self._last.remember(topic, payload))

    def _tell_dropped(self) -> None:
        counters: Mapping[str, int] = getattr(self._net, "counters", {})
        total = counters.get("incoming_dropped", 0)
        if total > self._dropped:
            self.lost(total - self._dropped, "because the queue of the connection was full")
            self._dropped = total

    def _read(self, topic: str, raw: bytes) -> tuple[int, Any]:
        try:
            time_us, record = self._payloads.read(topic, raw)
        except ValueError as error:
            raise NoRecordError(f"topic {topic}: {error}", code_of(error)) from None
        return now_us() if time_us is None else time_us, record


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
