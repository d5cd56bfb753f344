"""The columns of a CSV file, found by their names; and the options that would find those that are missing.

Under every source that reads CSV. Guarantees: a file that lacks a column is refused in one sentence. Where
the first lines show how the file is written, that sentence names the options that read it; nothing is
guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import islice, product
from typing import Final

import msgspec

from geartrain.errors import SourceError
from geartrain_devices.csv_rows import PLAIN, CsvOptions, Row, is_value, read_header, read_rows
from geartrain_devices.text_files import open_text

_DELIMITERS: Final = (",", ";", "\t", "|", " ")
_HEAD_LINES: Final = 50
"""So many lines are searched for the names of the columns."""
_LINE_BYTES_MAX: Final = 1 << 16
_NAMES_MAX: Final = 50


def column_index(
    path: str, header: Sequence[str], column: str, options: CsvOptions = PLAIN, needed: Iterable[str] = ()
) -> int:
    """Where a column stands in the header.

    Args:
        path: the file, for errors.
        header: the names of its columns.
        column: the one that is meant.
        options: how the file was read.
        needed: all columns that are needed, by which the right options are found.

    Returns:
        Its index.

    Raises:
        SourceError: when it is missing or there twice.
    """
    if header.count(column) == 1:
        return header.index(column)
    if column in header:
        raise SourceError(f"file {path} has more than one column {column!r}: rename all but one")
    listed = ", ".join(repr(name) for name in islice(header, _NAMES_MAX))
    advice = _advice(path, header, column, options, {*needed, column})
    raise SourceError(f"file {path} has no column {column!r}; its columns: {listed}{advice}")


def field_at(row: Row, index: int) -> str:
    """The text of a field that could be read, else the empty text: for choosing rows by their partition."""
    return row.fields[index] if index < len(row.fields) else ""


def partition_values(path: str, column: str) -> list[str]:
    """The distinct values of a column, sorted, without the missing one: what can be dealt to devices."""
    index = column_index(path, read_header(path), column)
    with closing(read_rows(path)) as rows:
        next(rows, None)
        return sorted({field_at(row, index) for row in rows} - {""})


def _advice(path: str, header: Sequence[str], column: str, options: CsvOptions, needed: set[str]) -> str:
    """Which options would find a column, as the end of a sentence; empty where none would."""
    if not options.header:
        return ": names = [...] must name each column"
    head = _head(path, options)
    for number, delimiter in product(range(len(head)), dict.fromkeys((options.delimiter, *_DELIMITERS))):
        names = {name.strip().strip("\"'").strip() for name in head[number].split(delimiter)}
        if needed <= names:
            return _other_options(head[:number], delimiter, options)
    alike = next((name for name in header if name.casefold() == column.casefold()), None)
    if alike is not None:
        return f": name the field as the file does, {alike!r}, letter by letter"
    if any(is_value(name) for name in header):
        return ": where its first line is a row, set header = false and names = [...]"
    return ": where these are other names for them, set names = [...]" if len(header) >= len(needed) else ""


def _other_options(before: list[str], delimiter: str, options: CsvOptions) -> str:
    """What to set where the header stands behind the lines `before`, and has that delimiter."""
    seems, wanted = [], []
    if delimiter != options.delimiter:
        seems.append(f"separated by {delimiter!r}")
        wanted.append(f"delimiter = {_quoted(delimiter)}")
    if len(before) > options.skip_lines:
        seems.append(f"in line {len(before) + 1}")
        are_comments = all(line.startswith("#") for line in before[options.skip_lines :])
        wanted.append('comment = "#"' if are_comments else f"skip_lines = {len(before)}")
    return f": the header seems to be {' and '.join(seems)}: set {' and '.join(wanted)}" if wanted else ""


def _head(path: str, options: CsvOptions) -> list[str]:
    """The first lines of a file."""
    with open_text(path, options.encoding) as lines:
        head = [raw for _, raw, _ in islice(lines.lines(_LINE_BYTES_MAX), _HEAD_LINES)]
        return [raw.decode(lines.coding.name, "replace").rstrip("\r\n") for raw in head]


def _quoted(text: str) -> str:
    """As a configuration file has it."""
    return msgspec.json.encode(text).decode()
