"""Why a connection could not be made or was cut, in words of our own, whatever library raised the error.

Beside the clients of brokers and of addresses of the web. Guarantees: half a sentence that says what was
found and what to see to. What OpenSSL says of a certificate is quoted, since nothing else tells it.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

REFUSED: Final = "nothing listens there (connection refused): see whether it runs, and on this port"
TIMED_OUT: Final = "its answer has timed out: see whether it runs, and the way there"
UNKNOWN: Final = "it does not answer as it should: see its log"


def failure_of(error: BaseException | None) -> str:
    """What was found, and what to see to.

    Args:
        error: what was raised; None where nothing is known.

    Returns:
        Half a sentence, of which the other side is "it".

    >>> failure_of(ConnectionRefusedError())
    'nothing listens there (connection refused): see whether it runs, and on this port'
    """
    if isinstance(error, TimeoutError):
        return TIMED_OUT
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): see its name, its date and ca"
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS as this side does: see whether its port is one for TLS"
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved: see the name, and the name server of this machine"
    if isinstance(error, ConnectionRefusedError):
        return REFUSED
    if isinstance(error, ConnectionError):
        return "it has cut the connection: see its log"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return f"the connection failed ({os.strerror(error.errno)}): see the network"
    return UNKNOWN
