"""The file of properties that a source or a sink of Kafka is given, and what librdkafka says of trouble.

Beside the clients of Kafka; `geartrain.declarations.kafka` says which properties a user may give.

Guarantees: what librdkafka says becomes a sentence that says what to do. None holds a line of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from geartrain.errors import ConfigError
from geartrain.printable import printable

_SAID_CHARS_MAX = 200


_AWAY = "does not answer: start it, or correct brokers"
_NO_TOPIC = "has no such topic or partition: make it, or correct topic"
_TROUBLES = {
    "_TRANSPORT": _AWAY,
    "_ALL_BROKERS_DOWN": _AWAY,
    "_TIMED_OUT": "has not answered in time: see whether its brokers run, and the way there",
    "_TIMED_OUT_QUEUE": "has not answered in time: see whether its brokers run, and the way there",
    "_MSG_TIMED_OUT": "has not taken a message in time: see whether its brokers run, and the way there",
    "_RESOLVE": "has a name that cannot be resolved: correct brokers, or see the name server of this machine",
    "_SSL": "does not speak TLS as this side does: correct security.protocol, or the files of certificates",
    "UNKNOWN_TOPIC_OR_PART": _NO_TOPIC,
    "_UNKNOWN_TOPIC": _NO_TOPIC,
    "_UNKNOWN_PARTITION": _NO_TOPIC,
    "TOPIC_AUTHORIZATION_FAILED": "does not let this user at the topic: have its rules (ACL) allow that",
    "GROUP_AUTHORIZATION_FAILED": "does not let this user read in a group: have its rules (ACL) allow that",
    "CLUSTER_AUTHORIZATION_FAILED": "does not let this user do that: have its rules (ACL) allow it",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "does not let this user make transactions: have its rules (ACL) "
    "allow that",
    "MSG_SIZE_TOO_LARGE": "takes no message of that size: set max.message.bytes of the topic higher",
    "NOT_ENOUGH_REPLICAS": "has too few replicas in sync: start its other brokers",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "has too few replicas in sync: start its other brokers",
    "LEADER_NOT_AVAILABLE": "has no leader for the topic yet: see whether all its brokers run",
}
"""What is found and what to do, by the name of librdkafka's code."""


class Trouble(Protocol):
    """An error of librdkafka, as `confluent_kafka.KafkaError` is one."""

    def name(self) -> str:
        """The name of its code, such as `_TRANSPORT`."""
        ...

    def str(self) -> str:
        """librdkafka's own words."""
        ...


def trouble_of(brokers: str, error: Trouble) -> str:
    """What is said of an error of librdkafka: by its code, in words of ours.

    Args:
        brokers: where the cluster is.
        error: the error.

    Returns:
        A sentence that says what to do. Which property librdkafka does not take, its own words alone tell:
        they are quoted.
    """
    name = error.name()
    if name == "_INVALID_ARG":
        own = printable(error.str(), _SAID_CHARS_MAX)
        why = f"cannot be asked with these properties ({own}): correct properties or properties_file"
    else:
        why = _TROUBLES.get(name, f"gives the error {name}: see the log of its brokers")
    return f"Kafka at {brokers} {why}"


def refused_user(brokers: str) -> str:
    """What is said where brokers refuse who asks; what they answer is left out, since it may hold a secret.

    >>> refused_user("kafka-1:9092")
    'Kafka at kafka-1:9092 refuses the user: correct sasl.username, sasl.password or sasl.mechanism'
    """
    return f"Kafka at {brokers} refuses the user: correct sasl.username, sasl.password or sasl.mechanism"


def read_properties(where: str, path: Path | None) -> dict[str, str]:
    """The properties in a file of lines `NAME=VALUE`, the place for passwords.

    Args:
        where: how the sentence of an error begins.
        path: the file; None for none.

    Returns:
        The properties by name.

    Raises:
        ConfigError: for a file that cannot be read.
    """
    if path is None:
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"{where}: properties_file {path} cannot be read ({why}): correct its name, or who may read it"
        ) from None
    found = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, equal, value = line.partition("=")
            if not equal:  # the line itself may be a secret
                raise ConfigError(f"{where}: properties_file {path}, line {number}: write NAME=VALUE")
            found[name.strip()] = value.strip()
    return found
