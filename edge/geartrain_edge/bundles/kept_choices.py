"""The file in which a device keeps what it has chosen: `choices.json` in `STATE/bundles`, 0600.

Under the parent. Guarantees: a crash leaves the old content or the new one, and what `save` returned from is
durable. A damaged file is an error and is never taken for an empty one.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from geartrain.adapters.files import read_durably, write_durable
from geartrain.errors import DiskError
from geartrain_edge.bundles.choice import Choice

FILE = "choices.json"
BYTES_MAX = 16 << 20

Choices = Mapping[str, Choice]


class _Content(msgspec.Struct, frozen=True):
    checksum: int
    choices: msgspec.Raw


_decode = msgspec.json.Decoder(_Content).decode
_decode_choices = msgspec.json.Decoder(dict[str, Choice]).decode


class ChoiceStore(Protocol):
    """Where a device keeps its choices, by instance. Both raise `DiskError`."""

    async def load(self) -> dict[str, Choice]:
        """What was saved last, made durable; nothing where nothing was."""
        ...

    async def save(self, choices: Choices) -> None:
        """Replace it; durable when this returns, and all or nothing after a crash."""
        ...


def encode_choices(choices: Choices) -> bytes:
    """Choices as bytes, with a checksum."""
    raw = msgspec.json.encode(dict(sorted(choices.items())))
    return msgspec.json.encode(_Content(zlib.crc32(raw), msgspec.Raw(raw)))


def decode_choices(data: bytes) -> dict[str, Choice]:
    """The choices in these bytes; raises `msgspec.DecodeError`."""
    content = _decode(data)
    if zlib.crc32(bytes(content.choices)) != content.checksum:
        raise msgspec.DecodeError("it does not fit its checksum")
    return _decode_choices(content.choices)


class KeptChoices:
    """`ChoiceStore` over a file. It is small and seldom written: no thread is needed."""

    def __init__(self, root: Path) -> None:
        """`root`: the folder of the device's bundles."""
        self._path = root / FILE

    async def load(self) -> dict[str, Choice]:
        """What was saved last."""
        try:
            data = read_durably(self._path)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DiskError(f"{self._path} cannot be read: {error.strerror or error}") from None
        try:
            return decode_choices(data)
        except msgspec.DecodeError as error:
            raise DiskError(
                f"{self._path} is damaged ({error}): move it away, and each app runs what is wanted of it"
            ) from None

    async def save(self, choices: Choices) -> None:
        """Replace it."""
        try:
            write_durable(self._path, encode_choices(choices))
        except OSError as error:
            reason = error.strerror or str(error)
            raise DiskError(f"{self._path} cannot be written: {reason}: make room on its disk") from None
