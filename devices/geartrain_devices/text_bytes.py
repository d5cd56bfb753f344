"""Bytes become text: byte-order marks, encodings, and what is no text at all. Only this module decides.

Under every source that reads text: files, logs, messages and lines. A mark at the start of a text says how
the text is written, and stands above the option `encoding`. Without a mark and without the option, text is
UTF-8. Nothing else is guessed. Guarantees: what is returned holds no U+FEFF at its start, no NUL, and nothing
in place of bytes that could not be read. Other bytes raise `NotTextError`, whose sentence names the byte and
the option.
"""

from __future__ import annotations

import codecs
from functools import lru_cache
from typing import Final

import msgspec

from geartrain.errors import SourceError
from geartrain_devices.no_record import NoRecordError

_MARKS: Final = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\x00\x00", "utf-32-le"),  # before UTF-16, whose mark it begins with: no text begins with NUL
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_MARK_STARTS: Final = (b"\xef", b"\xff", b"\xfe", b"\x00")
START_BYTES: Final = 256
"""So many bytes of a text's start are enough to decide how the text is written."""

_UNIT_BYTES: Final = {"utf-16-le": 2, "utf-16-be": 2, "utf-32-le": 4, "utf-32-be": 4}
_NEEDS_A_MARK: Final = {"utf-16": ("utf-16-le", "utf-16-be"), "utf-32": ("utf-32-le", "utf-32-be")}
# Of these, each ASCII character is its own byte, and the byte of a line's end is part of no other character.
# By the names that Python gives them: to look them all up would load the table of each, a megabyte a process.
_LIKE_ASCII: Final = frozenset(
    (
        *("utf-8", "ascii", "koi8-r", "koi8-u", "mac-roman", "gbk", "gb18030", "big5", "euc_jp", "euc_kr"),
        *("shift_jis", "cp932", "cp437", "cp850", "cp852", "cp858", "cp866"),
        *(f"iso8859-{number}" for number in range(1, 17) if number != 12),
        *(f"cp{number}" for number in range(1250, 1259)),
    )
)


NOT_TEXT: Final = "not_text"
"""The code of bytes with a NUL."""
NOT_UTF8: Final = "not_utf8"
"""The code of bytes that are not UTF-8, where no option and no mark says what else they are."""
NOT_ENCODED: Final = "not_encoded"
"""The code of bytes that are not of the encoding that an option or a mark names."""
TEXT_CODES: Final = frozenset((NOT_TEXT, NOT_UTF8, NOT_ENCODED))


class NotTextError(NoRecordError):
    """Bytes that are no text of their encoding: one sentence, and a code for `Reject.code`.

    Args:
        text: the sentence, of which the bytes are "it".
        code: one of `TEXT_CODES`.
        seems: the encoding that the bytes seem to have, empty where they seem to have none.
    """

    def __init__(self, text: str, code: str, seems: str = "") -> None:
        super().__init__(text, code)
        self.seems = seems


class TextCoding(msgspec.Struct, frozen=True):
    """How the bytes of one text are written.

    Args:
        name: the encoding, as Python calls it: `utf-8`, `utf-16-le`, `cp1252`.
        mark: the byte-order mark that the text begins with, empty where it has none.
    """

    name: str = "utf-8"
    mark: bytes = b""

    @property
    def unit_bytes(self) -> int:
        """Bytes of the smallest character: a character begins at multiples of so many."""
        return _UNIT_BYTES.get(self.name, 1)

    @property
    def line_feed(self) -> bytes:
        """The bytes of a line's end."""
        return "\n".encode(self.name)

    @property
    def own_mark(self) -> bytes:
        """The byte-order mark of this encoding, empty where it has none."""
        return next((mark for mark, name in _MARKS if name == self.name), b"")

    def find(self, character: bytes, data: bytes | bytearray, start: int = 0) -> int:
        """Where the next such character begins.

        Args:
            character: its bytes, as `line_feed`.
            data: bytes of the text, which begin with a whole character.
            start: the index to look from.

        Returns:
            Its index in `data`, -1 where there is none.
        """
        at = data.find(character, start)
        while at % len(character) > 0 and at >= 0:
            at = data.find(character, at + 1)
        return at

    def decode(self, raw: bytes) -> str:
        """A part of the text, without its mark; raises `NotTextError`."""
        try:
            text = raw.decode(self.name)
        except UnicodeDecodeError as error:
            place = f"at its byte {error.start + 1} (0x{raw[error.start]:02x})"
            if self.name == "utf-8":
                advice = 'set encoding to that of the text, such as encoding = "cp1252"'
                raise NotTextError(f"it is not UTF-8 text, {place}: {advice}", NOT_UTF8) from None
            advice = "set encoding to that of the text"
            raise NotTextError(f"it is not {self.name} text, {place}: {advice}", NOT_ENCODED) from None
        if "\0" in text:
            raise _nul_error(raw)
        return text

    def without_end(self, raw: bytes) -> bytes:
        """A line without the line feed and the carriage returns at its end."""
        if self.unit_bytes == 1:
            return raw.rstrip(b"\r\n")
        for character in ("\n".encode(self.name), "\r".encode(self.name)):
            while raw.endswith(character):
                raw = raw.removesuffix(character)
        return raw

    def is_blank(self, raw: bytes) -> bool:
        """Whether a part of the text is spaces and ends of lines, or nothing."""
        return not (raw if self.unit_bytes == 1 else raw.decode(self.name, "replace")).strip()

    def to_utf8(self, raw: bytes) -> bytes:
        """A part of the text as UTF-8; raises `NotTextError`. What is UTF-8 already is not checked."""
        return raw if self.name == "utf-8" else self.decode(raw).encode()


UTF_8: Final = TextCoding()


def coding_of(start: bytes, encoding: str = "") -> TextCoding:
    """How a text is written.

    Args:
        start: its first bytes, `START_BYTES` of them where it has so many.
        encoding: the option, checked by `check_encoding`; empty for UTF-8.

    Returns:
        What its mark says, or else the option.

    Raises:
        NotTextError: with a sentence, where it seems to be UTF-16 or UTF-32 and neither says so; or no text.
    """
    if start.startswith(_MARK_STARTS):
        for mark, name in _MARKS:
            if start.startswith(mark):
                return TextCoding(name, mark)
    name = _codec_name(encoding) if encoding else "utf-8"
    if name in _NEEDS_A_MARK:
        ways = " or ".join(f'"{way}"' for way in _NEEDS_A_MARK[name])
        seems = _wide_name(start)
        advice = f'"{seems}"' if seems else ways
        raise NotTextError(f"it has no byte-order mark: set encoding = {advice}", NOT_ENCODED)
    if name not in _UNIT_BYTES and 0 in start.partition(b"\n")[0]:
        raise _nul_error(start)
    return UTF_8 if name == "utf-8" else TextCoding(name)


def may_begin_mark(start: bytes) -> bool:
    """Whether these are the first bytes of a byte-order mark of which more may come, or no bytes."""
    return any(mark != start and mark.startswith(start) for mark, _ in _MARKS)


def decode_text(raw: bytes, encoding: str = "") -> str:
    """A whole text, such as a message, by its mark or the option `encoding`; raises `NotTextError`."""
    coding = coding_of(raw[:START_BYTES], encoding)
    return coding.decode(raw[len(coding.mark) :])


def as_utf8(raw: bytes, encoding: str = "") -> bytes:
    """The same as UTF-8 without a mark, for what reads bytes, as decoders of JSON do.

    Text that is meant to be UTF-8 is not checked. Raises `NotTextError`.
    """
    coding = coding_of(raw[:START_BYTES], encoding)
    return coding.to_utf8(raw[len(coding.mark) :] if coding.mark else raw)


def check_encoding(where: str, encoding: str) -> None:
    """Raise `SourceError`, which begins with `where`, unless the encoding is one that can be read."""
    if encoding and not _codec_name(encoding):
        raise SourceError(
            f"{where}: encoding = {encoding!r} cannot be read: name one such as utf-8, utf-16-le, latin-1, "
            "cp1252, shift-jis or gb18030"
        )


def is_encoding(encoding: str) -> bool:
    """Whether the encoding is one that can be read."""
    return bool(encoding) and bool(_codec_name(encoding))


def not_utf8(raw: bytes) -> str | None:
    """Where `raw` stops being UTF-8, as half a sentence with the byte's number, from 1; None for UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 text, at its byte {error.start + 1} (0x{raw[error.start]:02x})"
    return None


@lru_cache(maxsize=64)
def _codec_name(encoding: str) -> str:
    """The name of an encoding as Python has it, empty where it is none that can be read."""
    plain = encoding.strip().lower().replace("_", "-").replace(" ", "-")
    plain = {"utf16": "utf-16", "utf32": "utf-32"}.get(plain, plain)
    if plain in _NEEDS_A_MARK:
        return plain
    try:
        name = codecs.lookup(plain).name
    except (LookupError, ValueError):
        return ""
    name = "utf-8" if name == "utf-8-sig" else name
    return name if name in _LIKE_ASCII or name in _UNIT_BYTES else ""


def _wide_name(start: bytes) -> str:
    """The encoding whose NULs stand where these bytes have theirs; empty where there is none such."""
    columns = [start[place::4] for place in range(4)]
    if len(start) >= 8:
        if not any(columns[2]) and not any(columns[3]) and all(columns[0]):
            return "utf-32-le"
        if not any(columns[0]) and not any(columns[1]) and all(columns[3]):
            return "utf-32-be"
    for name, letters, others in (
        ("utf-16-le", start[0::2], start[1::2]),
        ("utf-16-be", start[1::2], start[0::2]),
    ):
        if all(letters) and others.count(0) * 2 > len(others):
            return name
    return ""


def _nul_error(raw: bytes) -> NotTextError:
    seems = _wide_name(raw[:START_BYTES])
    if seems:
        kind = seems[:6].upper()
        text = f'it seems to be {kind} text without a byte-order mark: set encoding = "{seems}"'
    else:
        text = f"it holds a NUL at its byte {raw.index(0) + 1}, as a binary file does"
    return NotTextError(text, NOT_TEXT, seems)
