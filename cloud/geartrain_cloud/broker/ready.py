"""Whether a broker answers: a free port to put it on, and a real MQTT connection as the check.

It is used before anything else is started. A listening port alone proves nothing: it may belong to another
program, and a broker may listen before it serves.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack

from geartrain_cloud.errors import BrokerError

LOOPBACK = "127.0.0.1"
OTHER_PORT = "stop what listens there, or give another --port"
"""What to do about a port that another program has."""
_CONNACK = 0x20
_PORTS = range(20_000, 32_768)
"""Below the ports that systems give to outgoing connections: Linux from 32,768, others from 49,152."""
_TRIES = 100


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now, and no outgoing connection will take.

    A broker keeps its port for as long as `gear up` runs, and leaves it for the moment in which it is started
    anew. The system may give any port of its own range to a connection in that moment. Where `_TRIES` ports
    outside of that range are taken, it is one of the system's nevertheless.
    """
    for _ in range(_TRIES):
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        if is_free(port):
            return port
    with socket.create_server((LOOPBACK, 0)) as probe:
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a TCP port of the loopback interface can be listened on now."""
    try:
        with socket.create_server((LOOPBACK, port)):
            return True
    except OSError:
        return False


def refusal(
    host: str, port: int, timeout_s: float = 2.0, context: ssl.SSLContext | None = None
) -> str | None:
    """Connect as an MQTT 3.1.1 client and disconnect: None when the broker accepts, else why not."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as plain, ExitStack() as stack:
            connection = plain
            if context is not None:
                connection = stack.enter_context(context.wrap_socket(plain, server_hostname=host))
            connection.sendall(_connect_packet(f"gear-{secrets.token_hex(6)}"))
            answer = _read_exactly(connection, 4)
            connection.sendall(b"\xe0\x00")
    except TimeoutError:
        return f"it did not answer within {timeout_s:g} s"
    except OSError as error:
        return error.strerror or str(error)
    if answer[0] != _CONNACK:
        return "what answers there does not speak MQTT"
    return None if answer[3] == 0 else f"it refused the connection with code {answer[3]}"


def is_ready(host: str, port: int) -> bool:
    """Whether an MQTT broker accepts a connection now."""
    return refusal(host, port) is None


def wait_until_ready(
    host: str,
    port: int,
    *,
    timeout_s: float,
    gone: Callable[[], str | None] = lambda: None,
    context: ssl.SSLContext | None = None,
) -> None:
    """Return once the broker accepts connections, over TLS where there is a `context`.

    gone: says why there is no use in waiting any longer (its process ended), else None. Raises `BrokerError`
    with that, or with the last refusal when `timeout_s` has passed.
    """
    deadline = time.monotonic() + timeout_s
    while (reason := refusal(host, port, context=context)) is not None:
        if (ended := gone()) is not None:
            raise BrokerError(ended)
        if time.monotonic() >= deadline:
            raise BrokerError(
                f"no MQTT broker answers at {host}:{port} ({reason}): start one there, or choose another "
                "with --broker"
            )
        time.sleep(0.05)


def _connect_packet(client_id: str) -> bytes:
    """MQTT 3.1.1 CONNECT: clean session, keepalive 10 s, no user."""
    name = client_id.encode()
    body = b"\x00\x04MQTT\x04\x02\x00\x0a" + len(name).to_bytes(2, "big") + name
    return bytes([0x10, len(body)]) + body


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("it closed the connection")
        data += part
    return data
