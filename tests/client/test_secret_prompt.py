"""`gear secret set` at a real terminal: it asks for the value, and does not show what is typed."""

from __future__ import annotations

import os
import pty
import select
import sys

from tests.waiting import Wait

VALUE = b"planted-9Qk2-typed"
ASKS = """
import hashlib
from geartrain_client.cli.secrets import read_value
print("digest", hashlib.sha256(read_value("db_password", None).encode()).hexdigest()[:8])
"""


def test_a_value_that_is_typed_is_not_shown() -> None:
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-c", ASKS])  # noqa: S606 - this very Python
    said, wait, is_typed = b"", Wait("the digest of the value"), False
    while b"digest" not in said:
        wait.check(said)
        if select.select([terminal], [], [], 1.0)[0]:
            said += os.read(terminal, 1_024)
        if not is_typed and b"value of db_password (not shown): " in said:
            os.write(terminal, VALUE + b"\n")
            is_typed = True
    os.close(terminal)
    os.waitpid(child, 0)
    assert VALUE not in said
