"""Whether the system knows the user who runs this, as Java must before Spark can start.

Before `gear up` starts anything, and wherever a Java is chosen. Guarantees: a user without an entry is
refused in one sentence; nothing is changed.
"""

from __future__ import annotations

import os
import pwd

from geartrain.errors import MistakeError


def check_system_user() -> None:
    """Raise `MistakeError` where the system has no entry of the user who runs this process.

    Containers may run under any number, which /etc/passwd does not have. Hadoop, on which Spark stands, then
    ends at once (HADOOP-19401).
    """
    number = os.getuid()
    try:
        pwd.getpwuid(number)
    except KeyError:
        raise MistakeError(
            f"Spark's Java asks the system for the name of its user, and the number {number} has none: add a "
            f"line for {number} to /etc/passwd (a container's entrypoint or nss_wrapper can), or run as a "
            "user who has one"
        ) from None
