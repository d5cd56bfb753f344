"""The ids by which a broker tells its clients apart: one of each connection, and never the same for two.

Beside the record's path: agents, sources, sinks and the platform's processes connect with them. A broker
ends a session when another client connects with its id (MQTT-3.1.4-2), so that two clients with one id end
each other for ever. Guarantees: an id is made of all that tells its client from others. It has at most 23
letters and digits, which every broker has to accept (MQTT-3.1.3-5).
"""

from __future__ import annotations

import hashlib

ROLE_CHARS_MAX = 7
ID_BYTES = 8
"""Random bytes that tell a client from others where nothing else does."""


def client_id(role: str, *who: str) -> str:
    """The id of one client.

    Args:
        role: what connects, for people who read the broker's log: at most 7 letters.
        who: what tells this client from every other of that role, such as a spool's epoch, device, app and
            step. The same texts give the same id, also after a restart.

    Returns:
        The role and a hash of `who`.

    >>> client_id("source", "spool-1", "truck-7", "orders", "scans")
    'sourcebbffc9eef7e7c6d3'
    """
    digest = hashlib.blake2b("\0".join(who).encode(errors="surrogatepass"), digest_size=ID_BYTES)
    return f"{role[:ROLE_CHARS_MAX]}{digest.hexdigest()}"
