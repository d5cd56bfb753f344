"""The properties of librdkafka that a source or a sink of Kafka is given, checked before anything connects.

Also what both say where a broker does not let their user in.

Guarantees: no password stands in an option. What the source or sink has to say itself cannot be overruled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from geartrain.errors import ConfigError


def client_properties(
    where: str, given: Mapping[str, str], path: Path | None, ours: Collection[str]
) -> dict[str, str]:
    """All properties of a client.

    Args:
        where: how the sentence of an error begins.
        given: properties as an option has them.
        path: a file of lines `NAME=VALUE` that stand above these, the place for passwords; None for none.
        ours: names that are not for a user to say.

    Returns:
        The properties by name, those of the file above the others.

    Raises:
        ConfigError: for a secret among `given`, a file that cannot be read, or a name that is among `ours`.

    >>> client_properties("sink alerts", {"linger.ms": "20"}, None, ())
    {'linger.ms': '20'}
    """
    if secret := next((name for name in given if "password" in name or "secret" in name), None):
        raise ConfigError(f"{where}: properties hold {secret}: write it to a file, and set properties_file")
    found = {**given, **_in_file(where, path)}
    if said := next((name for name in ours if name in found), None):
        raise ConfigError(f"{where}: {said} is for the {where.split(maxsplit=1)[0]} to say: leave it out")
    return found


def refused_user(brokers: str) -> str:
    """What is said where brokers refuse who asks; what they answer is left out, since it may hold a secret.

    >>> refused_user("kafka-1:9092")
    'Kafka at kafka-1:9092 refuses the user: correct sasl.username, sasl.password or sasl.mechanism'
    """
    return f"Kafka at {brokers} refuses the user: correct sasl.username, sasl.password or sasl.mechanism"


def _in_file(where: str, path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: properties_file {path} cannot be read: {error}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, equal, value = line.partition("=")
            if not equal:  # the line itself may be a secret
                raise ConfigError(f"{where}: properties_file {path}, line {number}: write NAME=VALUE")
            found[name.strip()] = value.strip()
    return found
