"""Text of others made harmless: what is not printable is escaped before it reaches a log, a table or a page.

Beside the record's path, wherever a sentence quotes a device, a file, a broker or a user's value. Guarantees:
the result holds no control character, no line break, no bidirectional mark and no lone surrogate. So it
cannot steer a terminal, forge a line of a log, or fail to encode.
"""

from __future__ import annotations

TEXT_CHARS_MAX = 1_000
"""Of one text of others, a record or a reason for example, on one line of a log; the rest is cut off."""


def printable(text: str, chars_max: int | None = None, *, keep: str = "") -> str:
    """Escape every character of `text` that does not print, as Python writes it: `\\n`, `\\x1b`, `\\u202e`.

    Args:
        text: whatever came from outside.
        chars_max: how many characters of `text` are used; a cut text ends in an ellipsis. None: all.
        keep: characters that stay as they are, such as a line break in a trace of our own.

    Returns:
        Printable characters only, and those in `keep`.
    """
    if chars_max is not None and len(text) > chars_max:
        text = text[: chars_max - 1] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def shortened(text: str) -> str:
    """A text as it may stand in a sentence: quoted, escaped and not long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def is_word(text: str) -> bool:
    """Whether `text` is one word of printable ASCII, such as a token or an address; "" is none."""
    return text != "" and text.isascii() and text.isprintable() and " " not in text


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
