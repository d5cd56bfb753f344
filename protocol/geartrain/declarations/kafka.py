"""What a user may give a source or a sink of Kafka: addresses of brokers, and properties of librdkafka.

Asked before anything connects. Guarantees: no password stands in an option. What the source or sink has to
say itself cannot be overruled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from geartrain.errors import ConfigError
from geartrain.printable import is_word


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


def check_brokers(where: str, brokers: str) -> None:
    """Refuse addresses of Kafka's brokers that cannot be; none at all pass.

    Args:
        where: how the sentence begins, such as `sink 'out'`.
        brokers: addresses with commas between them.

    Raises:
        ConfigError: an address has no name, or a port that is none.
    """
    for address in brokers.split(",") if brokers.strip() else ():
        _, _, rest = address.strip().rpartition("://")  # librdkafka takes a protocol before a name
        host, _, port = rest.rpartition(":") if ":" in rest and not rest.endswith("]") else (rest, "", "9092")
        is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) <= 65_535
        if not is_word(host) or not is_port:
            raise ConfigError(
                f"{where}: brokers = {brokers!r}: {address!r} is no address of a broker: write "
                "kafka-1:9092,kafka-2:9092"
            )
