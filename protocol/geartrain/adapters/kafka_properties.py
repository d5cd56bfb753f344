"""The file of properties that a source or a sink of Kafka is given, and what librdkafka says of trouble.

Beside the clients of Kafka; `geartrain.declarations.kafka` says which properties a user may give.

Guarantees: what librdkafka says becomes a sentence that says what to do. None holds a line of the file.
"""

from __future__ import annotations

from pathlib import Path

from geartrain.errors import ConfigError


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
