"""One request and its answer, over the standard library's HTTP client.

Between the commands and the platform. Guarantees: it ends within its time, however slowly the other side
speaks, and takes no more than `ANSWER_BYTES_MAX`. It follows no redirect and uses no proxy of the
environment, so the token goes to the door alone. Whatever goes wrong on the way is an `UnreachableError`.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass

from geartrain_client.errors import UnreachableError
from geartrain_client.rest.door import Door

ANSWER_BYTES_MAX = 64 << 20
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of an answer."""

    status: int
    body: bytes


def exchange(
    door: Door, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
) -> Answer:
    """Send a request and read the answer whole; raises `UnreachableError`."""
    end_s = time.monotonic() + timeout_s
    connection = _connection(door, timeout_s)
    try:
        connection.request(method, door.path + path, body, dict(headers))
        response = connection.getresponse()
        return Answer(response.status, _read(response, connection, end_s))
    except TimeoutError:
        raise UnreachableError(
            f"the platform at {door.url} has not answered within {timeout_s:g} s: try again, or see its log",
            timed_out=True,
        ) from None
    except ssl.SSLError as error:
        raise UnreachableError(
            f"the platform at {door.url} shows a certificate that does not hold ({error.reason or error}): "
            "name its authority with SSL_CERT_FILE"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(_not_there(door, error)) from None
    finally:
        connection.close()


def _connection(door: Door, timeout_s: float) -> http.client.HTTPConnection:
    if door.secure:
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(door.host, door.port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(door.host, door.port, timeout=timeout_s)


def _read(response: http.client.HTTPResponse, connection: http.client.HTTPConnection, end_s: float) -> bytes:
    parts: list[bytes] = []
    count = 0
    while True:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left_s)
        part = response.read1(_CHUNK)
        if not part:
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            return b"".join(parts)
        count += len(part)
        if count > ANSWER_BYTES_MAX:
            raise http.client.HTTPException(f"an answer of more than {ANSWER_BYTES_MAX:,} bytes")
        parts.append(part)


def _not_there(door: Door, error: Exception) -> str:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, ConnectionRefusedError):
        why = "nobody listens there"
    todo = "start it with gear up" if door.from_file else "start it with gear up there, or name another --url"
    return f"the platform at {door.url} does not answer ({why}): {todo}"
