"""The properties of librdkafka that a user may give a source or a sink of Kafka.

Asked before anything connects. Guarantees: no password stands in an option. What the source or sink has to
say itself cannot be overruled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from geartrain.errors import ConfigError


def client_properties(
    where: str, given: Mapping[str, str], in_file: Mapping[str, str], ours: Collection[str]
) -> dict[str, str]:
    """All properties of a client.

    Args:
        where: how the sentence of an error begins.
        given: properties as an option has them.
        in_file: properties of a file, which stand above these and may be secrets.
        ours: names that are not for a user to say.

    Returns:
        The properties by name, those of the file above the others.

    Raises:
        ConfigError: for a secret among `given`, or a name that is among `ours`.

    >>> client_properties("sink alerts", {"linger.ms": "20"}, {}, ())
    {'linger.ms': '20'}
    """
    if secret := next((name for name in given if "password" in name or "secret" in name), None):
        raise ConfigError(f"{where}: properties hold {secret}: write it to a file, and set properties_file")
    found = {**given, **in_file}
    if said := next((name for name in ours if name in found), None):
        raise ConfigError(f"{where}: {said} is for the {where.split(maxsplit=1)[0]} to say: leave it out")
    return found
