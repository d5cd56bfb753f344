"""References to secrets: an option of a source whose whole value is `secret:NAME`.

A flow, its revision and its settings hold the reference alone. An agent puts the value in its place where the
source opens. Guarantees: a name that is no plain file name is refused in one sentence.
"""

from __future__ import annotations

import re
from typing import Any

from geartrain.errors import ConfigError

PREFIX = "secret:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


def secret_name(value: Any, where: str) -> str:
    """The name of the secret that an option asks for.

    Args:
        value: the option's value, of any type.
        where: how the sentence of an error begins, such as `source quotes: dsn`.

    Returns:
        The name, "" where the value is no reference.

    Raises:
        ConfigError: for a reference whose name cannot be one.

    >>> secret_name("secret:db_password", "source quotes: dsn")
    'db_password'
    >>> secret_name("postgresql://db", "source quotes: dsn")
    ''
    """
    if not isinstance(value, str) or not value.startswith(PREFIX):
        return ""
    return check_secret_name(value.removeprefix(PREFIX), f"{where} = {value[:80]!r}")


def check_secret_name(name: str, where: str) -> str:
    """`name`, where it can be that of a secret, which is a plain file name.

    Args:
        name: any text.
        where: how the sentence of an error begins.

    Returns:
        The name as it is.

    Raises:
        ConfigError: for any other text.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: the name of a secret has 1 to 64 letters, digits, `_`, `-` and `.`, "
            "and begins with a letter or a digit"
        )
    return name
