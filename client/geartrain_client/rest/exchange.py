"""One request and its answer, over the standard library's HTTP client.

Between the commands and the platform. Guarantees: it ends within its time, however slowly the other side
speaks, and takes no more than `ANSWER_BYTES_MAX`. It follows no redirect and uses no proxy of the
environment, so the token goes to the door alone, and in clear only within this machine. Whatever goes wrong
on the way is an `UnreachableError`.
"""

from __future__ import annotations

import http.client
import shutil
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from geartrain.errors import ConfigError
from geartrain_client.errors import UnreachableError
from geartrain_client.rest.door import CA, LOCK_FILE, Door

ANSWER_BYTES_MAX = 64 << 20
OK = 200
FULL_BYTES = 1 << 16
"""A disk with less room is full for whoever writes to it."""
_CHUNK = 65_536
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME = (62, 64)
"""What OpenSSL calls a certificate's faults, as `SSLCertVerificationError.verify_code`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of an answer."""

    status: int
    body: bytes


def exchange(
    door: Door, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
) -> Answer:
    """Send a request and read the answer whole; raises `UnreachableError`, and `ConfigError` where the token
    would go in clear to another machine, or where the authority's file cannot be used.
    """
    _check_hidden(door)
    end_s = time.monotonic() + timeout_s
    with _asked(door, method, path, headers, body, timeout_s) as (connection, response):
        return Answer(response.status, _read(response, connection, end_s))


def lines_of(
    door: Door, path: str, headers: Mapping[str, str], bytes_max: int, silence_s: float
) -> Iterator[bytes | Answer]:
    """The lines of an answer that does not end, as they come, without their ends; or an answer that refuses.

    bytes_max: of a line; silence_s: for how long nothing may come. Raises as `exchange` does.
    """
    _check_hidden(door)
    with _asked(door, "GET", path, headers, None, silence_s) as (connection, response):
        if response.status != OK:
            yield Answer(response.status, _read(response, connection, time.monotonic() + silence_s))
            return
        while line := response.readline(bytes_max):
            if not line.endswith(b"\n"):
                raise http.client.HTTPException(f"a line of more than {bytes_max:,} bytes, or half a line")
            yield line.rstrip(b"\r\n")


def _check_hidden(door: Door) -> None:
    """Raises `ConfigError` where others could read the token."""
    if door.shows_its_token:
        raise ConfigError(
            f"{door.url} is not encrypted, and others on the way could read the token: name the platform by "
            "https://, or ask on its own machine"
        )


@contextmanager
def _asked(
    door: Door, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
) -> Iterator[tuple[http.client.HTTPConnection, http.client.HTTPResponse]]:
    """A request that was sent, and its answer, of which the body is still to be read."""
    connection = _connection(door, timeout_s)
    try:
        connection.request(method, door.path + path, body, dict(headers))
        yield connection, connection.getresponse()
    except TimeoutError:
        raise UnreachableError(
            f"the platform at {door.url} has not answered within {timeout_s:g} s: try again, or see its log",
            timed_out=True,
        ) from None
    except ssl.SSLError as error:
        raise UnreachableError(f"the platform at {door.url} {_fault(error, door.host)}") from None
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(_not_there(door, error)) from None
    finally:
        connection.close()


def _connection(door: Door, timeout_s: float) -> http.client.HTTPConnection:
    if door.secure:
        context = _context(door)
        return http.client.HTTPSConnection(door.host, door.port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(door.host, door.port, timeout=timeout_s)


def _context(door: Door) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=door.ca or None)
    except OSError as error:  # ssl.SSLError, too
        why = "is no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        raise ConfigError(
            f"the authority of {door.url}, {door.ca}: {why}: name the right file with {CA}"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _fault(error: ssl.SSLError, host: str) -> str:
    """What is wrong with the other side's TLS, and what to do."""
    if error.reason == "WRONG_VERSION_NUMBER":
        return "does not speak TLS: is it http:// there?"
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"does not come to an agreement over TLS ({error.reason or error})"
    if error.verify_code in (_EXPIRED, _NOT_YET):
        state = "has expired" if error.verify_code == _EXPIRED else "is not valid yet"
        return f"shows a certificate that {state}: renew it there, or set this machine's clock"
    if error.verify_code in _OTHER_NAME:
        return f"shows a certificate that is not for {host}: name the platform as its certificate does"
    return (
        "shows a certificate of an authority that is not trusted here "
        f"({error.verify_message}): name the file of its authority with {CA}"
    )


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
    if door.folder and is_up(door.folder):
        trouble = _trouble(door.folder)
        return f"the platform at {door.url} does not answer ({why}), though gear up runs: {trouble}"
    todo = "start it with gear up" if door.folder else "start it with gear up there, or name another --url"
    return f"the platform at {door.url} does not answer ({why}): {todo}"


def is_up(folder: Path) -> bool:
    """Whether a `gear up` has the state folder; False where that cannot be seen."""
    from geartrain.adapters.file_lock import is_held  # which Windows lacks, where no gear up runs

    try:
        return is_held(folder / LOCK_FILE)
    except OSError:
        return False


def _trouble(folder: Path) -> str:
    """What may keep the platform's control from answering, as far as its folder shows."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"{folder} cannot be used: {error.strerror or error}"
    if free < FULL_BYTES:
        return f"the disk of {folder} is full: make room, and it goes on by itself"
    return f"its control is starting, or {folder / 'logs' / 'control.log'} says why it is not"
