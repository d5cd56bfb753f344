"""The rows of a CSV file: which bytes are a row, and which texts stand in it.

Under every source that reads CSV. From top to bottom: the options that say how a file is written, the rows,
how a row is split. Guarantees: each byte of a file is part of a row or of a line that is passed over and
counted. Where rows begin depends on the bytes of the file alone. A quote that is not closed ends with its
line: the rows after that line are read. A quoted field may have several lines, and a row 1 MiB.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import closing
from dataclasses import field
from typing import Final

import msgspec

from geartrain.declarations.options import Count
from geartrain.errors import SourceError
from geartrain_devices.no_record import NOT_A_RECORD
from geartrain_devices.text_bytes import NotTextError, TextCoding, check_encoding
from geartrain_devices.text_files import TextLines, open_text
from geartrain_devices.written_times import TimeOptions, Times

ROW_BYTES_MAX: Final = 1 << 20
"""Bytes of one row, quoted newlines included."""

UNCLOSED_QUOTE: Final = "unclosed_quote"
"""The code of a line with a quote that no later line can close."""
TEXT_AFTER_QUOTE: Final = "text_after_quote"
"""The code of a row in which text follows a closing quote."""
LONE_CARRIAGE_RETURN: Final = "lone_carriage_return"
"""The code of a row with a carriage return in its middle, outside of quotes."""
TOO_LONG: Final = "too_long"
"""The code of a row that is longer than `ROW_BYTES_MAX`."""
TAB_WRITTEN: Final = "\\t"
"""How a tab is written on a command line, where it cannot be typed."""
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)


class CsvOptions(TimeOptions):
    """How CSV files are written: the options of every source that reads them, with those of times.

    Args:
        delimiter: the character between two columns. A first line such as `sep=;` stands above it.
        quote: the character around texts that hold a delimiter or a line's end, doubled within; empty: none.
        header: the first line names the columns.
        names: the names of the columns, where no line has them, or in place of those that the header has.
        skip_lines: lines at the start of the file that are passed over.
        comment: lines that begin so are passed over; empty: none.
        trailing_delimiter: rows may end in a delimiter, which is no column of its own.
        line_end: `""` where a line ends in LF or CR LF, `"\\r"` where it ends in CR alone.
        decimal: the character before the decimals of a number.
        thousands: the character between the thousands of a number; empty: none.
        null_values: texts that mean that a value is missing, beside the empty one.
        nan: whether nan, inf and infinity are read in fields of type float.
        encoding: how the text is written where no byte-order mark says so; empty for UTF-8.
    """

    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    names: list[str] = field(default_factory=list)
    skip_lines: Count = 0
    comment: str = ""
    trailing_delimiter: bool = False
    line_end: str = ""
    decimal: str = "."
    thousands: str = ""
    null_values: list[str] = field(default_factory=list)
    nan: bool = False
    encoding: str = ""

    def check_csv(self, where: str) -> None:
        """Raise `SourceError`, which begins with `where`, for an option that cannot be."""
        check_encoding(where, self.encoding)
        Times(where, self)
        for name in ("delimiter", "decimal", "quote", "thousands"):
            value, is_needed = getattr(self, name), name in ("delimiter", "decimal")
            value = "\t" if name == "delimiter" and value == TAB_WRITTEN else value
            if (len(value) != 1 and (is_needed or value)) or value in ("\r", "\n", "\0"):
                what = "one character" if is_needed else 'one character, or "" for none'
                raise SourceError(f"{where}: {name} = {value!r} must be {what}")
            if name in ("decimal", "thousands") and value and value in "+-0123456789eE":
                raise SourceError(f"{where}: {name} = {value!r} is a part of numbers: set another character")
        if self.quote in (self.delimiter, self.decimal, self.thousands) and self.quote:
            raise SourceError(
                f"{where}: quote = {self.quote!r} has another meaning, too: set another character"
            )
        if self.thousands == self.decimal:
            raise SourceError(
                f"{where}: thousands and decimal are both {self.decimal!r}: set another character"
            )
        if self.delimiter in (self.decimal, self.thousands) and not self.quote:
            raise SourceError(f"{where}: numbers hold the delimiter {self.delimiter!r}: set quote as well")
        if self.line_end not in ("", "\r"):
            raise SourceError(f'{where}: line_end = {self.line_end!r} must be "" or "\\r"')
        if any(character in self.comment for character in "\r\n\0"):
            raise SourceError(f"{where}: comment = {self.comment!r} must be a part of a line")
        if not self.header and not self.names:
            raise SourceError(
                f"{where}: header = false needs names = [...], the names of the columns in order"
            )
        doubled = next((name for name in self.names if self.names.count(name) > 1), None)
        if doubled is not None:
            raise SourceError(f"{where}: names has {doubled!r} more than once")


PLAIN: Final = CsvOptions()
"""A file with a header, commas and quotes."""


class Row(msgspec.Struct, frozen=True):
    """One row: `line` it begins on (from 1), raw bytes without the line's end, its fields as text.

    size: of its bytes with the line's end, of which `raw` may hold only the first. problem: why it is no
    record, with its `code`; None where it can be one. `fields` of a row with a problem may be empty.
    """

    line: int
    raw: bytes
    fields: list[str]
    size: int
    problem: str | None = None
    code: str = NOT_A_RECORD


class PlainRows(msgspec.Struct, frozen=True):
    """Rows that follow each other, of which each is one line of text without quotes.

    line: of the first of them; fields: of each its texts; data: all bytes, with line feeds between rows.
    """

    line: int
    fields: list[list[str]]
    data: bytes

    def rows(self) -> list[Row]:
        """Each by itself."""
        raws = self.data.split(b"\n")
        return [
            Row(line, raw.rstrip(b"\r"), fields, len(raw) + 1)
            for line, (raw, fields) in enumerate(zip(raws, self.fields, strict=True), self.line)
        ]


class PassedOver(msgspec.Struct):
    """Lines that are no rows: blank ones, comments, and those at the start; bytes: of all these."""

    blank: int = 0
    comments: int = 0
    at_start: int = 0
    bytes: int = 0


def read_rows(
    path: str, options: CsvOptions = PLAIN, passed_over: PassedOver | None = None
) -> Generator[Row, None, None]:
    """The header of a file and then its rows.

    Args:
        path: the file.
        options: how it is written, checked by `check_csv`.
        passed_over: where the lines are counted that are no rows.

    Yields:
        A row with the names of the columns, without spaces around them; then every row that is not blank.

    Raises:
        SourceError: when the file cannot be read, or does not name its columns.
    """
    with open_text(path, options.encoding) as lines:
        yield from _RowReader(path, lines, options, passed_over or PassedOver()).read()


def read_blocks(
    path: str, options: CsvOptions = PLAIN, size_bytes: int | None = None
) -> Generator[Row | PlainRows, None, None]:
    """The rows of a file without its header, those that are plain by many.

    Args:
        path: the file.
        options: how it is written, checked by `check_csv`.
        size_bytes: how much of the file is read, None for all.

    Yields:
        What `read_rows` gives, in its order.

    Raises:
        SourceError: as of `read_rows`.
    """
    with open_text(path, options.encoding, size_bytes) as lines:
        yield from _RowReader(path, lines, options, PassedOver()).read_blocks()


def read_header(path: str, options: CsvOptions = PLAIN) -> list[str]:
    """The names of a file's columns, without spaces around them; raises `SourceError`."""
    with closing(read_rows(path, options)) as rows:
        return next(rows).fields


def is_value(name: str) -> bool:
    """Whether what should be a column's name is a number or a time."""
    return name[:1].isdigit() and not any(map(str.isalpha, name.replace("T", "").replace("Z", "")))


class _RowReader:
    """The rows of one open file."""

    def __init__(self, path: str, lines: TextLines, options: CsvOptions, passed_over: PassedOver) -> None:
        self._path, self._lines, self._options, self._passed_over = path, lines, options, passed_over
        self._coding: TextCoding = lines.coding
        self._delimiter = "\t" if options.delimiter == TAB_WRITTEN else options.delimiter
        self._quote = options.quote.encode(self._coding.name) if options.quote else b""
        self._stray = "\n" if options.line_end else "\r"
        self._columns: list[str] = []
        if options.line_end:
            lines.line_end = options.line_end.encode(self._coding.name)

    def read(self) -> Generator[Row, None, None]:
        """The header and then each row."""
        self._pass_over_start()
        header = self._header()
        self._columns = header.fields
        yield header
        yield from self._rows()

    def read_blocks(self) -> Generator[Row | PlainRows, None, None]:
        """Each row below the header, those that are plain by many."""
        self._pass_over_start()
        self._columns = self._header().fields
        rows = self._rows()
        while True:
            block = self._lines.whole_lines(ROW_BYTES_MAX)
            plain = self._plain_rows(block) if block else None
            if plain is not None:
                self._lines.advance(self._lines.at + len(block) + 1, len(plain.fields))
                yield plain
                continue
            end = self._lines.number + block.count(b"\n") + 1
            while self._lines.number < end:
                row = next(rows, None)
                if row is None:
                    return
                yield row

    def _plain_rows(self, block: bytes) -> PlainRows | None:
        """The rows of whole lines, None where one of them has to be looked at by itself."""
        options, data = self._options, block
        if options.line_end or options.trailing_delimiter or self._coding.unit_bytes > 1:
            return None
        if b"\r" in block:
            if block.count(b"\r") != block.count(b"\r\n") + block.endswith(b"\r"):
                return None
            data = block.replace(b"\r\n", b"\n").removesuffix(b"\r")
        comment = options.comment.encode(self._coding.name, "replace")
        if any(part and part in data for part in (self._quote, comment)):
            return None
        if data.startswith(b"\n") or data.endswith(b"\n") or b"\n\n" in data or not data:
            return None
        try:
            text = self._coding.decode(data)
        except NotTextError:
            return None
        delimiter = self._delimiter
        return PlainRows(self._lines.number, [line.split(delimiter) for line in text.split("\n")], block)

    def _pass_over_start(self) -> None:
        """Take the delimiter from a first line such as `sep=;`, and pass over it and the lines to skip."""
        lines, skipped = self._lines, 0
        end = lines.find_end(lines.at, ROW_BYTES_MAX)
        first = lines.data[lines.at : end] if end > lines.at else b""
        found = _SEPARATOR_LINE.fullmatch(first.decode(self._coding.name, "replace").rstrip("\r\n"))
        if found is not None:
            self._delimiter = found[1]
        for _, _, size in lines.lines(0) if found or self._options.skip_lines else ():
            skipped += 1
            self._passed_over.at_start += 1
            self._passed_over.bytes += size
            if skipped >= self._options.skip_lines:
                return
        if skipped < self._options.skip_lines:
            raise SourceError(
                f"file {self._path} has {skipped} lines, fewer than skip_lines = {self._options.skip_lines}"
            )

    def _header(self) -> Row:
        names, is_read = self._options.names, self._options.header
        if not is_read:
            return Row(0, b"", names, 0)
        first = next(self._rows(), None)
        if first is None:
            raise SourceError(f"file {self._path} is empty: its first line must name the columns")
        if first.problem is not None:
            raise SourceError(f"file {self._path}: its first line must name the columns, but {first.problem}")
        found = [name.strip() for name in first.fields]
        if self._options.trailing_delimiter and found[-1] == "":
            found.pop()
        if names and len(names) != len(found):
            raise SourceError(
                f"file {self._path} has {len(found)} columns and names has {len(names)}: name each column"
            )
        if names and any(map(is_value, found)):
            raise SourceError(f"file {self._path}: its first line seems to be a row: set header = false")
        return Row(first.line, first.raw, names or found, first.size)

    def _rows(self) -> Generator[Row, None, None]:
        """Each row from the next line on."""
        lines, decode, comment, quote = self._lines, self._coding.decode, self._options.comment, self._quote
        delimiter, is_narrow = self._delimiter, self._coding.unit_bytes == 1
        while (end := lines.find_end(lines.at, ROW_BYTES_MAX)) != lines.at:
            if end < 0:
                yield self._too_long()
                continue
            raw = lines.data[lines.at : end]
            if quote and quote in raw and not self._is_comment(raw):
                yield self._quoted(raw, end)
                continue
            line = lines.number
            lines.advance(end, 1)
            try:
                text = decode(raw)
            except NotTextError as error:
                yield Row(line, self._coding.without_end(raw), [], len(raw), str(error), error.code)
                continue
            body = text.strip("\r\n") if self._options.line_end else text.rstrip("\r\n")
            if not body:
                self._passed_over.blank += 1
                self._passed_over.bytes += len(raw)
            elif comment and body.startswith(comment):
                self._passed_over.comments += 1
                self._passed_over.bytes += len(raw)
            elif self._stray in body:
                yield self._stray_end(line, raw)
            else:
                kept = raw.rstrip(b"\r\n") if is_narrow else self._coding.without_end(raw)
                yield Row(line, kept, self._fitting(body.split(delimiter)), len(raw))

    def _is_comment(self, raw: bytes) -> bool:
        comment = self._options.comment
        return bool(comment) and self._loose(raw).startswith(comment)

    def _too_long(self) -> Row:
        line = self._lines.number
        raw, size = self._lines.pass_over(ROW_BYTES_MAX)
        return Row(line, raw, [], size, f"it is longer than {ROW_BYTES_MAX} bytes: it has {size}", TOO_LONG)

    def _stray_end(self, line: int, raw: bytes) -> Row:
        if self._options.line_end:
            problem = 'it holds a line feed outside of quotes: leave out line_end = "\\r"'
        else:
            problem = (
                "it holds a carriage return outside of quotes: put the text in quotes, or set "
                'line_end = "\\r" where lines end so'
            )
        return Row(line, self._coding.without_end(raw), [], len(raw), problem, LONE_CARRIAGE_RETURN)

    def _fitting(self, fields: list[str]) -> list[str]:
        """The fields of a row without the empty one behind a trailing delimiter."""
        if self._options.trailing_delimiter and len(fields) == len(self._columns) + 1 and not fields[-1]:
            fields.pop()
        return fields

    def _quoted(self, raw: bytes, end: int) -> Row:
        """The row whose first line, which holds a quote, is `raw` and ends at the index `end` of the window.

        Lines ahead are looked at while a quote is open. Where none of them closes it so that the row has the
        header's columns, the row is its first line.
        """
        lines, start, at, count = self._lines, self._lines.at, end, 1
        row = SplitRow(self._delimiter, self._options.quote, self._loose(raw))
        column = len(row.fields)
        width = len(self._columns)
        while row.is_open and (not width or len(row.fields) < width):
            more = lines.find_end(at, ROW_BYTES_MAX - (at - start))
            if more in (at, -1):
                break
            row.go_on(lines.data[at:more].decode(self._coding.name, "replace"))
            at, count = more, count + 1
        if count > 1 or row.is_open:
            fields = self._fitting(row.fields)
            if row.is_open or row.has_junk or (width and len(fields) != width):
                return self._unclosed(raw, end, column)
        return self._closed(row, lines.data[start:at], at, count)

    def _closed(self, row: SplitRow, raw: bytes, end: int, count: int) -> Row:
        line, kept = self._lines.number, self._coding.without_end(raw)
        self._lines.advance(end, count)
        try:
            self._coding.decode(raw)
        except NotTextError as error:
            return Row(line, kept, [], len(raw), str(error), error.code)
        if row.has_junk:
            column = self._named(len(row.fields) - 1)
            problem = (
                f"text follows the closing quote of {column}: double each quote within quotes, or set "
                'quote = "" where quotes are plain text'
            )
            return Row(line, kept, [], len(raw), problem, TEXT_AFTER_QUOTE)
        if row.has_stray:
            return self._stray_end(line, raw)
        return Row(line, kept, self._fitting(row.fields), len(raw))

    def _unclosed(self, raw: bytes, end: int, column: int) -> Row:
        line = self._lines.number
        self._lines.advance(end, 1)
        problem = (
            f"the quote of {self._named(column)} is not closed: close it, or set "
            'quote = "" where quotes are plain text'
        )
        return Row(line, self._coding.without_end(raw), [], len(raw), problem, UNCLOSED_QUOTE)

    def _named(self, column: int) -> str:
        return f"column {self._columns[column]}" if column < len(self._columns) else f"column {column + 1}"

    def _loose(self, raw: bytes) -> str:
        """Text by which a row can be split, whatever else is wrong with its bytes."""
        text = raw.decode(self._coding.name, "replace")
        return text.lstrip("\n") if self._options.line_end else text


class SplitRow:
    """The fields of a row in which there are quotes.

    A field that begins with a quote ends behind its closing one. A quote elsewhere is plain text.
    """

    def __init__(self, delimiter: str, quote: str, text: str) -> None:
        """text: the row's first line, with its end."""
        self._delimiter, self._quote = delimiter, quote
        self.fields: list[str] = []
        self.is_open = False
        """Whether the last field goes on in the next line."""
        self.has_junk = False
        """Whether text follows a closing quote, where the fields then end."""
        self.has_stray = False
        """Whether a field that is not quoted holds an end of a line."""
        self._parts: list[str] = []
        self._split(text, 0)

    def go_on(self, text: str) -> None:
        """The next line of a row whose quote is open."""
        self._split(text, self._end_of_quoted(text, 0))

    def _split(self, text: str, at: int) -> None:
        """Split from a field's beginning on, or not at all where `at` is -1."""
        body = len(text.rstrip("\r\n"))
        while at >= 0:
            if text.startswith(self._quote, at):
                at = self._end_of_quoted(text, at + 1)
                continue
            end = text.find(self._delimiter, at, body)
            plain = text[at : body if end < 0 else end]
            self.has_stray |= "\r" in plain or "\n" in plain
            self.fields.append(plain)
            at = -1 if end < 0 else end + 1

    def _end_of_quoted(self, text: str, at: int) -> int:
        """Read a quoted field on; where the next field begins, -1 where there is none in this line."""
        quote, body = self._quote, len(text.rstrip("\r\n"))
        while (end := text.find(quote, at)) >= 0:
            self._parts.append(text[at:end])
            if not text.startswith(quote, end + 1):
                self.is_open = False
                self.fields.append("".join(self._parts))
                self._parts = []
                if end + 1 >= body:
                    return -1
                self.has_junk = not text.startswith(self._delimiter, end + 1)
                return -1 if self.has_junk else end + 2
            self._parts.append(quote)
            at = end + 2
        self._parts.append(text[at:])
        self.is_open = True
        return -1
