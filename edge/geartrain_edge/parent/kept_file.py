"""The file in which a device keeps its desired state: `desired.bin` in its state folder, 0600.

Guarantees: a crash leaves the old content or the new one, and what `save` returned from is durable. A damaged
file is an error and is never taken for an empty one.
"""

from __future__ import annotations

from pathlib import Path

from geartrain.adapters.files import make_private_folder, read_durably, write_durable
from geartrain.control.codec import decode_kept, encode_kept
from geartrain.control.states import Kept
from geartrain.errors import DiskError, WireError

KEPT_FILE = "desired.bin"


class KeptFile:
    """`KeptStore` over a file in the folder `state`. It is small and seldom written: no thread is needed."""

    def __init__(self, state: Path) -> None:
        self._path = state / KEPT_FILE

    async def load(self) -> Kept:
        """What was saved last."""
        try:
            data = read_durably(self._path)
        except FileNotFoundError:
            return Kept()
        except OSError as error:
            raise DiskError(f"{self._path} cannot be read: {error.strerror or error}") from None
        try:
            return decode_kept(data)
        except WireError as error:
            raise DiskError(
                f"{self._path} is damaged ({error}): move it away, and the platform sends it again"
            ) from None

    async def save(self, kept: Kept) -> None:
        """Replace it."""
        try:
            make_private_folder(self._path.parent)
            write_durable(self._path, encode_kept(kept))
        except OSError as error:
            reason = error.strerror or str(error)
            raise DiskError(f"{self._path} cannot be written: {reason}: make room on its disk") from None
