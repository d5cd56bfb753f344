"""The secrets of an app on its device: waited for by name, put into its sources, watched while they are open.

Between the agent and a folder with a file for each secret. Guarantees: a value is in the memory of the app's
process alone, in the sources that asked for it. A file that others may read is not taken. The sentence of an
error never holds a value as it was given.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from geartrain.declarations.secrets import PREFIX
from geartrain.graph.graph import Graph
from geartrain.ports import Clock
from geartrain.runtime.secrets import secrets_of, with_secrets
from geartrain_edge.errors import SecretError

BYTES_MAX = 65_536
"""The size of a secret."""
LOOK_S = 1.0
"""A secret that is missing, or may change, is looked for so often, in seconds."""
_HIDDEN = "(secret)"
_HEAD_CHARS = 8
"""What begins like a value so far is taken for it: sentences are cut short."""


class SecretStore(Protocol):
    """Where an app's secrets lie."""

    def read(self, name: str) -> str:
        """The value of a secret; raises `SecretError`, which says in half a sentence why there is none."""


class FolderSecrets:
    """`SecretStore` of a folder: a secret is the file of its name, without its last line end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> str:
        """The file's text. It must be a plain file of 1 byte to 64 KiB of UTF-8 that only its owner reads."""
        path = self._folder / name
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(handle, "rb") as file:
                mode = os.fstat(handle).st_mode
                data = file.read(BYTES_MAX + 1) if stat.S_ISREG(mode) else b""
        except FileNotFoundError:
            raise SecretError(f"it is to be the file {path} (on a platform: gear secret set)") from None
        except OSError as error:
            raise SecretError(f"{path} cannot be read: {error.strerror or error}") from None
        if not stat.S_ISREG(mode):
            raise SecretError(f"{path} is no plain file")
        if mode & 0o077:
            raise SecretError(f"others may read it: run chmod 600 {path}")
        return _text(path, data)


def _text(path: Path, data: bytes) -> str:
    try:
        text = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SecretError(f"{path} is no text in UTF-8") from None
    if not text or len(data) > BYTES_MAX:
        raise SecretError(f"{path} must hold 1 to {BYTES_MAX:,} bytes")
    if text.startswith(PREFIX):
        raise SecretError(f"{path} names another secret instead of holding one")
    return text


class Secrets:
    """The secrets of one app, over its sources' life."""

    def __init__(self, store: SecretStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._values: dict[str, str] = {}

    async def put_into(self, graph: Graph, waits: Callable[[str], bool]) -> Graph | None:
        """`graph` with its secrets, once all of them are there.

        waits: told what is waited for, "" at the end; it returns whether to wait on. Returns None where it
        is not. Raises `ConfigError` for a reference that cannot be one.
        """
        names = secrets_of(graph)
        while why := self._take(names):
            if not waits(why):
                return None
            await self._clock.sleep(LOOK_S)
        waits("")
        return with_secrets(graph, self._values) if names else graph

    def _take(self, names: tuple[str, ...]) -> str:
        """Read what is missing; returns what is waited for, "" for nothing."""
        for name in names:
            try:
                self._values[name] = self._store.read(name)
            except SecretError as error:
                return f"waits for secret {name}: {error}"
        return ""

    async def watch(self) -> None:
        """Raise `SecretError` once a secret has another value. One that is gone or unfit changes nothing."""
        while self._values:
            await self._clock.sleep(LOOK_S)
            for name, value in self._values.items():
                try:
                    is_new = self._store.read(name) != value
                except SecretError:
                    continue
                if is_new:
                    raise SecretError(f"secret {name} has a new value, with which the sources open again")

    def hide_in(self, error: BaseException) -> None:
        """Take the values out of what an error says, also where it has only their beginning."""
        text = said = str(error)
        for value in sorted(self._values.values(), key=len, reverse=True):
            text = _without(text, value)
        if text != said:
            error.args = (text,)


def _without(text: str, value: str) -> str:
    head, start = value[:_HEAD_CHARS], 0
    while (at := text.find(head, start)) >= 0:
        same = next(
            (n for n, (one, two) in enumerate(zip(text[at:], value, strict=False)) if one != two), None
        )
        end = at + (min(len(value), len(text) - at) if same is None else same)
        text = f"{text[:at]}{_HIDDEN}{text[end:]}"
        start = at + len(_HIDDEN)
    return text
