"""Text of others, escaped: compared with what Python itself writes of each character."""

from __future__ import annotations

import sys

import pytest

from geartrain.printable import printable


def test_every_character_prints_or_is_escaped_as_python_writes_it() -> None:
    for first in range(0, sys.maxunicode + 1, 1_000):
        characters = [chr(number) for number in range(first, min(first + 1_000, sys.maxunicode + 1))]
        expected = "".join(c if c.isprintable() else repr(c)[1:-1] for c in characters)
        assert printable("".join(characters)) == expected, f"from {first:#x} on"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("21.5 °C", "21.5 °C"),
        ("a\nb\r\x1b[2Jc", "a\\nb\\r\\x1b[2Jc"),
        ("name\u202etxt.exe", "name\\u202etxt.exe"),
        ("\udc80 no text", "\\udc80 no text"),
        ("", ""),
    ],
)
def test_hostile_text_is_one_harmless_line(text: str, expected: str) -> None:
    assert printable(text) == expected
    assert printable(text).encode().decode() == expected  # a lone surrogate would not encode


@pytest.mark.parametrize(
    ("length", "expected"), [(9, "x" * 9), (10, "x" * 10), (11, "x" * 9 + "…"), (5_000, "x" * 9 + "…")]
)
def test_long_text_is_cut_to_its_length(length: int, expected: str) -> None:
    assert printable("x" * length, 10) == expected


def test_chosen_characters_stay() -> None:
    assert printable("one\n\ttwo\x00", keep="\n") == "one\n\\ttwo\\x00"
