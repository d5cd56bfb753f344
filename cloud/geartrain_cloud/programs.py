"""Programs of the machine, such as mosquitto and java: the one place where they are looked for.

The broker, Spark and `gear doctor` use it. Guarantees: a program is found on PATH, and where a distribution
puts it off a user's PATH. `GEARTRAIN_WITHOUT` hides programs, so that a machine that has them can show how
Geartrain runs without them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

WITHOUT = "GEARTRAIN_WITHOUT"
"""The environment variable that hides programs: their names with commas between, such as `java,mosquitto`."""

SBIN = ("/usr/local/sbin", "/usr/sbin", "/opt/homebrew/sbin")
"""Where Debian and Homebrew put services, off a user's PATH."""


def find_program(name: str, folders: Iterable[str] = ()) -> str | None:
    """The path of the program `name`, looked for on PATH and then in `folders`; None if it is not there."""
    if is_hidden(name):
        return None
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


def is_hidden(name: str) -> bool:
    """Whether the environment says to take the program `name` as not installed."""
    return name in {hidden.strip() for hidden in os.environ.get(WITHOUT, "").split(",")}
