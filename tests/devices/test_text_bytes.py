"""How bytes become text: marks, encodings, and bytes that are no text."""

from __future__ import annotations

import codecs
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.errors import SourceError
from geartrain_devices.text_bytes import (
    _LIKE_ASCII,
    START_BYTES,
    NotTextError,
    as_utf8,
    check_encoding,
    coding_of,
    decode_text,
)
from geartrain_devices.text_files import open_text

WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
ADVICE = "set encoding to that of the text"
MARKS = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}
# A text does not begin with the mark itself, and holds no NUL.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff"), max_size=300)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, name=st.sampled_from(sorted(MARKS)), option=st.sampled_from(["", "utf-8", "latin-1"]))
def test_a_mark_says_how_a_text_is_written_whatever_the_option_says(
    text: str, name: str, option: str
) -> None:
    raw = MARKS[name] + text.encode(name)
    assert decode_text(raw, option) == text
    assert as_utf8(raw, option) == text.encode()


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, name=st.sampled_from(WIDE))
def test_a_wide_text_without_a_mark_is_read_by_its_option_and_never_gives_nuls(text: str, name: str) -> None:
    raw = text.encode(name)
    if not raw.startswith(tuple(MARKS.values())):
        assert decode_text(raw, name) == text
    with suppress(NotTextError):
        assert "\0" not in decode_text(raw)


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("text", ["2019-11-13 04:54:54,DEBUG,hello\r\n", '{"a": 1}', "time;größe\n1;2\n"])
def test_a_wide_text_without_a_mark_is_refused_with_the_option_that_reads_it(name: str, text: str) -> None:
    raw = text.encode(name)
    with pytest.raises(NotTextError) as error:
        decode_text(raw)
    assert str(error.value) == (
        f'it seems to be {name[:6].upper()} text without a byte-order mark: set encoding = "{name}"'
    )
    with pytest.raises(NotTextError, match=f'it has no byte-order mark: set encoding = "{name}"'):
        decode_text(raw, name[:6])
    assert decode_text(raw, name) == text


@pytest.mark.parametrize(
    ("raw", "encoding", "said", "code"),
    [
        (b"abc\xe9", "", f'is not UTF-8 text, at its byte 4 (0xe9): {ADVICE}, such as encoding = "cp1252"',
         "not_utf8"),
        (b"ab\x81", "cp1252", f"is not cp1252 text, at its byte 3 (0x81): {ADVICE}",
         "not_encoded"),
        (b"\xff\xfea\0b", "", f"is not utf-16-le text, at its byte 3 (0x62): {ADVICE}",
         "not_encoded"),
        (b"ab\0\0\0", "", "holds a NUL at its byte 3, as a binary file does", "not_text"),
        (b"line\nab\0", "latin-1", "holds a NUL at its byte 8, as a binary file does", "not_text"),
        (b"", "utf-16", 'has no byte-order mark: set encoding = "utf-16-le" or "utf-16-be"', "not_encoded"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_text_say_where_and_what_to_do(
    raw: bytes, encoding: str, said: str, code: str
) -> None:
    with pytest.raises(NotTextError) as error:
        decode_text(raw, encoding)
    assert (str(error.value), error.value.code) == (f"it {said}", code)


@pytest.mark.parametrize(
    ("encoding", "name"),
    [("", "utf-8"), ("UTF8", "utf-8"), ("utf-8-sig", "utf-8"), ("Latin-1", "iso8859-1"),
     ("windows-1252", "cp1252"), ("UTF-16LE", "utf-16-le"), ("utf_16_be", "utf-16-be"),
     ("Shift_JIS", "shift_jis")],
)  # fmt: skip
def test_an_encoding_has_many_names(encoding: str, name: str) -> None:
    check_encoding("source a", encoding)
    assert coding_of(b"abc", encoding).name == name


@pytest.mark.parametrize(
    "encoding", ["utf-7", "iso2022_jp", "rot13", "base64", "cp037", "no such", "\0", "x" * 900]
)
def test_an_encoding_that_cannot_be_split_into_lines_or_is_none_is_refused(encoding: str) -> None:
    with pytest.raises(SourceError, match=r"source a: encoding = .* cannot be read: name one such as utf-8"):
        check_encoding("source a", encoding)


def test_a_source_loads_the_table_of_no_encoding_that_it_does_not_need() -> None:
    """Each process of a device would have them all: they are a megabyte."""
    code = "import sys, geartrain_devices.csv_replay; print('encodings.big5' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", sorted(_LIKE_ASCII))
def test_a_line_end_is_the_same_byte_in_each_encoding_and_part_of_no_other_character(name: str) -> None:
    assert codecs.lookup(name).name == name
    ascii_text = "".join(map(chr, range(128)))
    assert ascii_text.encode(name) == ascii_text.encode()
    for character in map(chr, (*range(0x80, 0x3100), *range(0x4E00, 0x5200), *range(0xFF00, 0xFFF0))):
        assert not {10, 13} & set(character.encode(name, "ignore"))


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.text("aé\u0a0a\u0d0a\U0001f600 ", max_size=40), max_size=12),
    name=st.sampled_from([*WIDE, "utf-8"]),
    cap=st.integers(1, 60),
    whole=st.booleans(),
)
def test_lines_of_a_file_give_each_byte_once(
    lines: list[str], name: str, cap: int, whole: bool, tmp_path_factory: Any
) -> None:
    """Characters whose bytes hold those of a line's end do not end a line."""
    path = Path(tmp_path_factory.getbasetemp()) / "lines.txt"
    ends = [line + "\n" for line in lines]
    if not whole and ends:
        ends[-1] = ends[-1][:-1] + "x"
    path.write_bytes(MARKS[name] + "".join(ends).encode(name))
    with open_text(str(path)) as file:
        found = list(file.lines(cap))
    expected = [line.encode(name) for line in ends]
    assert [size for *_, size in found] == [len(raw) for raw in expected]
    assert [raw for _, raw, _ in found] == [raw[:cap] for raw in expected]
    assert [number for number, *_ in found] == list(range(1, len(ends) + 1))


@pytest.mark.parametrize("name", ["utf-8", "utf-16-le", "utf-32-be"])
def test_a_line_longer_than_the_window_is_read_whole_or_cut_with_its_size(name: str, tmp_path: Path) -> None:
    path, long = tmp_path / "long.txt", "ab" * 200_000 + "\n"
    path.write_bytes(MARKS[name] + ("short\n" + long + "last").encode(name))
    size = len(long.encode(name))
    for cap in (size, size - 1, START_BYTES):
        with open_text(str(path)) as file:
            found = list(file.lines(cap))
        assert [one[2] for one in found] == [len("short\n".encode(name)), size, len("last".encode(name))]
        assert found[1][1] == long.encode(name)[:cap]
