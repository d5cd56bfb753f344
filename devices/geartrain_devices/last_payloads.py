"""What a topic said last: by this a retained message is known again when a broker sends it once more.

Below `geartrain_devices.mqtt_topic`. A broker sends what it has retained at every subscription, so also after
each broken connection and each start of the agent. Guarantees: of each topic the digest of the last payload
is noted in the spool, together with that payload's record. So many topics are remembered, and no more; the
topic whose payload has not changed for longest is forgotten first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

TOPICS_MAX = 10_000
_DIGEST_BYTES = 16
_NUMBER_BYTES = 8


class LastPayloads:
    """The last payloads of the topics of one source, as digests."""

    def __init__(self, topics_max: int = TOPICS_MAX) -> None:
        self._topics_max = topics_max
        self._digests: OrderedDict[bytes, bytes] = OrderedDict()
        self._number = 0

    def restore(self, notes: Mapping[bytes, bytes]) -> None:
        """Remember what a former life has noted."""
        whole = {
            topic: noted for topic, noted in notes.items() if len(noted) == _NUMBER_BYTES + _DIGEST_BYTES
        }
        for topic, noted in sorted(whole.items(), key=lambda item: item[1]):
            self._digests[topic] = noted[_NUMBER_BYTES:]
            self._number = int.from_bytes(noted[:_NUMBER_BYTES], "big")

    def is_last(self, topic: str, payload: bytes) -> bool:
        """Whether the payload is the last one that the topic said."""
        return self._digests.get(_digest(topic.encode())) == _digest(payload)

    def remember(self, topic: str, payload: bytes) -> dict[bytes, bytes | None]:
        """Take a payload for the last one of its topic; returns the notes of that."""
        key, digest = _digest(topic.encode()), _digest(payload)
        if self._digests.get(key) == digest:
            return {}
        self._number += 1
        self._digests[key] = digest
        self._digests.move_to_end(key)
        notes: dict[bytes, bytes | None] = {key: self._number.to_bytes(_NUMBER_BYTES, "big") + digest}
        if len(self._digests) > self._topics_max:
            notes[self._digests.popitem(last=False)[0]] = None
        return notes

    def forget(self, topic: str) -> dict[bytes, bytes | None]:
        """Know nothing of the topic any more; returns the notes of that."""
        key = _digest(topic.encode())
        return {} if self._digests.pop(key, None) is None else {key: None}


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
