"""How large the results of a group's last micro-batch were: what its writer tells its source.

They run in two processes. Guarantees: the file is read whole or not at all. No result of a flow depends on
the file, so it is not made durable, and one that is missing or damaged says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from geartrain.adapters.files import write_private

_ENCODE = msgspec.json.encode
_DECODE = msgspec.json.Decoder(dict[str, tuple[int, int]]).decode


class SizesFile:
    """The file, for one group."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Mapping[str, tuple[int, int]]:
        """By generation, the rows of the log that it read and the bytes of its results."""
        try:
            return _DECODE(self._path.read_bytes())
        except (OSError, msgspec.DecodeError):
            return {}

    def write(self, sizes: Mapping[str, tuple[int, int]]) -> None:
        """Say so of the micro-batch that has just ended; raises `OSError`."""
        write_private(self._path, _ENCODE(sizes))
