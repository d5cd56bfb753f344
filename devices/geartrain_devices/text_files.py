"""Files of text, plain or packed by gzip, and where bytes are not the UTF-8 that they should be.

Under every source that reads text. Guarantees: a file that cannot be read, or whose beginning shows that it
is no text, is one `SourceError` that names it and says what to do.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

from geartrain.errors import SourceError

_NO_TEXT = (
    (b"\x1f\x8b", "is compressed by gzip: give it a name that ends in .gz"),
    (b"\xff\xfe", "is UTF-16 text: write it as UTF-8"),
    (b"\xfe\xff", "is UTF-16 text: write it as UTF-8"),
    (b"PK\x03\x04", "is a zip archive, such as a spreadsheet: write it as text"),
    (b"PAR1", "is a Parquet file: write it as text"),
)
_START_BYTES = 4_096


def open_text(path: str) -> BinaryIO:
    """The file of text at `path`, unpacked where its name ends in `.gz`; to be closed by the caller.

    Raises `SourceError` for a file that cannot be read, and for one whose beginning shows that it is no text.
    """
    try:
        # A folder or a missing file fails here, with the name that the user gave.
        opened = gzip.open(path, "rb") if path.endswith(".gz") else Path(path).open("rb")  # noqa: SIM115
        file = cast("BinaryIO", opened)
        start: bytes = cast(Any, file).peek(_START_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"file {path} cannot be read: {said(error)}") from None
    for mark, what in _NO_TEXT:
        if start.startswith(mark):
            file.close()
            raise SourceError(f"file {path} is not UTF-8 text: it {what}")
    nul = start.partition(b"\n")[0].find(0)
    if nul >= 0:
        file.close()
        raise SourceError(
            f"file {path} is not UTF-8 text: line 1 holds a NUL at byte {nul + 1}, as a binary file does"
        )
    return file


def said(error: Exception) -> str:
    """The reason in an error that a file raised while it was opened or read."""
    return getattr(error, "strerror", None) or str(error)


def not_utf8(raw: bytes) -> str | None:
    """Where `raw` stops being UTF-8, as half a sentence with the byte's number, from 1; None for UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 text, at its byte {error.start + 1} (0x{raw[error.start]:02x})"
    return None
