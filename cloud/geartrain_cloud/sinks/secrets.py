"""Secrets that sinks in the data centre ask for: `secret:NAME` for a header, a property or a password.

Between a sink's options and the connection that is made with them. Guarantees: a value is read right before
it is used, so that a new one needs no new revision. Options, revisions, marks and sentences hold the
reference alone. A file that others may read is not taken. One that is missing is waited for by name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from geartrain.declarations.secrets import PREFIX, secret_name
from geartrain.errors import ConfigError
from geartrain_cloud.sinks.layout import AwayError, TableError

BYTES_MAX = 65_536
ASKING = frozenset(("WebhookSink", "KafkaSink", "PostgresTable"))
"""The kinds of sinks that may ask for secrets."""


class SinkSecrets:
    """Those of one app, in `folder`: a file for each; None where nobody brings any."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def value(self, sink_id: str, name: str) -> str:
        """The value of a secret; raises `AwayError`, which says by name what is waited for."""
        where = f"sink {sink_id!r} waits for secret {name}"
        if self._folder is None:
            raise TableError(
                f"sink {sink_id!r} asks for secret {name}, and there are none here: a platform brings them, "
                "by gear secret set"
            )
        path = self._folder / name
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
            with os.fdopen(handle, "rb") as file:
                mode = os.fstat(handle).st_mode
                data = file.read(BYTES_MAX + 1) if stat.S_ISREG(mode) else b""
            text = data.decode().removesuffix("\n").removesuffix("\r")
        except FileNotFoundError:
            raise AwayError(f"{where}: set it with gear secret set") from None
        except (OSError, UnicodeDecodeError):
            raise AwayError(f"{where}: its file cannot be read, or is no text: set it anew") from None
        if not stat.S_ISREG(mode) or mode & 0o077:
            raise AwayError(f"{where}: others may read its file, or it is none: set it anew")
        if not text or len(data) > BYTES_MAX or text.startswith(PREFIX):
            raise AwayError(f"{where}: its file holds no value: set it anew")
        return text

    def all(self, sink_id: str, asked: Mapping[str, str]) -> dict[str, str]:
        """The values of what is asked for, under the same names; raises `AwayError`."""
        return {option: self.value(sink_id, name) for option, name in asked.items()}


NONE = SinkSecrets()
"""Of who runs a flow without a platform."""


def asked_in(where: str, options: Mapping[str, str]) -> dict[str, str]:
    """By option, the name of the secret that stands in its place; raises `TableError` for what is no name."""
    try:
        found = {option: secret_name(value, f"{where}: {option}") for option, value in options.items()}
    except ConfigError as error:
        raise TableError(str(error)) from None
    return {option: name for option, name in found.items() if name}


def without(options: Mapping[str, str], asked: Iterable[str]) -> dict[str, str]:
    """The options that are what they say."""
    return {option: value for option, value in options.items() if option not in set(asked)}
