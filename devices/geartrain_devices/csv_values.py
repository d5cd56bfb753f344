"""Values out of the texts of CSV files: numbers, truth, times, and marks that a value is missing.

Under every source that reads CSV. Guarantees: only plain forms are taken (no `1_000`, no hexadecimal, no
digits of other scripts), so that a file means the same to every program that reads it. A text that is no
value is refused with half a sentence that names the option that would read it, if there is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite, isinf
from typing import Any, Final

from geartrain.printable import shortened
from geartrain.records.event_time import to_datetime
from geartrain.schema import Field, FieldType, Logical
from geartrain.schema.logical import DecimalField
from geartrain.schema.storable import are_int64
from geartrain_devices.csv_rows import CsvOptions
from geartrain_devices.no_record import BAD_VALUE, MISSING_VALUE, NAN, NoRecordError
from geartrain_devices.written_times import NoTimeError

_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|inf|infinity)", re.IGNORECASE)
_INT_CHARS_MAX: Final = 20
_BOOLS: Final = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
_NUMBERS: Final = (FieldType.INT64, FieldType.FLOAT64)
_SPACES: Final = " \u00a0\u202f"
"""Between thousands, a space may be one that does not break a line."""
_USUAL_MARKS: Final = frozenset(
    (
        "na",
        "n/a",
        "#n/a",
        "null",
        "none",
        "nil",
        "nan",
        "-",
        "--",
        "---",
        ".",
        "?",
        "missing",
        "(null)",
        "\\n",
    )
)

Parse = Callable[[str], Any]
ParseAll = Callable[[Sequence[str]], list[Any]]


class CsvValues:
    """How the texts of a file become values."""

    def __init__(self, options: CsvOptions, moment: Callable[[str], int]) -> None:
        """moment: the time that a text means, in microseconds since 1970 UTC, for fields that are times."""
        self._decimal, self._thousands = options.decimal, options.thousands
        self._marks = frozenset(options.null_values)
        self._parsers: dict[FieldType, Parse] = {
            FieldType.BOOL: _parse_bool,
            FieldType.INT64: _parse_int,
            FieldType.FLOAT64: _parse_float if options.nan else _parse_finite,
            FieldType.STR: str,
            FieldType.BYTES: str.encode,
            FieldType.DATETIME: _time_parser(moment),
        }
        spaces = f"[{_SPACES}]" if self._thousands in _SPACES else re.escape(self._thousands)
        self._grouped = re.compile(
            rf"(?:[0-9]{{1,3}}(?:{spaces}[0-9]{{3}})+|[0-9]{{1,2}}(?:{spaces}[0-9]{{2}})+{spaces}[0-9]{{3}})"
        )
        self._between = re.compile(spaces)

    def parser(self, field: Field, logical: Logical | None) -> Parse:
        """What reads the texts of one field.

        Args:
            field: of the record.
            logical: its logical type, written as a decimal number, a member's name, or JSON; or None.

        Returns:
            A function of a text that gives the value as a column holds it, which can be sorted on disk. It
            raises `ValueError` with half a sentence that does not name the column.
        """
        parse: Parse = self._parsers[field.type] if logical is None else _lowering(logical)
        if isinstance(logical, DecimalField) or (logical is None and field.type in _NUMBERS):
            parse = self._number_parser(parse)
        marks, is_optional = self._marks, field.optional
        missing = marks | {""} if is_optional else marks
        if not missing:
            return parse

        def parse_marked(text: str) -> Any:
            if text in missing or (marks and text.strip() in marks):
                if is_optional:
                    return None
                problem = (
                    "means a missing value, and the field must have one: let it be None, as in float | None"
                )
                raise NoRecordError(f"{shortened(text)} {problem}", MISSING_VALUE)
            return parse(text)

        return parse_marked

    def column_parser(self, field: Field, logical: Logical | None) -> ParseAll:
        """What reads the texts of one field of many rows.

        Returns:
            A function of texts that gives what `parser` gives of each. It raises `ValueError` where one of
            them has to be read by itself.
        """
        parse, is_plain = self.parser(field, logical), self._decimal == "." and not self._thousands
        parse_all = _PARSE_ALL.get(field.type)
        if logical is not None or parse_all is None or self._marks or not is_plain:
            return lambda texts: list(map(parse, texts))
        return lambda texts: list(map(parse, texts)) if "" in texts else parse_all(texts)

    def _number_parser(self, parse: Parse) -> Parse:
        """What reads numbers as the options have them written."""
        is_plain = self._decimal == "." and not self._thousands

        def parse_number(text: str) -> Any:
            try:
                return parse(text if is_plain else self._plain(text))
            except NoRecordError:  # a number, which the field cannot have
                raise
            except ValueError as error:
                said = str(error) if is_plain else f"{shortened(text)} is not a number as the options have it"
                raise NoRecordError(f"{said}{self._advice(text)}", BAD_VALUE) from None

        return parse_number

    def _plain(self, text: str) -> str:
        """A number with a point and without thousands; raises `ValueError` for another way of writing."""
        text = text.strip()
        sign = text[:1] if text[:1] in ("+", "-") else ""
        whole, point, rest = text[len(sign) :].partition(self._decimal)
        if self._decimal != "." and "." in whole + rest and self._thousands != ".":
            raise ValueError
        if self._thousands and self._between.search(whole):
            if not self._grouped.fullmatch(whole):
                raise ValueError
            whole = self._between.sub("", whole)
        return f"{sign}{whole}.{rest}" if point else sign + whole

    def _advice(self, text: str) -> str:
        """Which option would read a text as a number, as the end of a sentence; empty where none would."""
        plain = text.strip()
        if plain == "":
            return ": let the field be None, as in float | None, where a value may be missing"
        if plain.lower() in _USUAL_MARKS:
            return f': set null_values = ["{plain}"] where it means a missing value'
        ways = [
            f"set {' and '.join(options)}"
            for pattern, options in _WAYS
            if re.fullmatch(pattern, plain) and not self._are_set(options)
        ]
        return f": {' or '.join(ways)}" if ways else ""

    def _are_set(self, options: tuple[str, ...]) -> bool:
        now = (f'decimal = "{self._decimal}"', f'thousands = "{self._thousands}"')
        return all(option in now for option in options)


_WAYS: Final = (
    (r"[+-]?[0-9]*,[0-9]*", ('decimal = ","',)),
    (r"[+-]?[0-9]{1,3}(,[0-9]{2,3})*,[0-9]{3}(\.[0-9]*)?", ('thousands = ","',)),
    (r"[+-]?[0-9]{1,3}(\.[0-9]{3})+(,[0-9]*)?", ('decimal = ","', 'thousands = "."')),
    (r"[+-]?[0-9]{1,3}('[0-9]{3})+(\.[0-9]*)?", ('thousands = "\'"',)),
    (r"[+-]?[0-9]{1,3}([ \u00a0\u202f][0-9]{3})+(\.[0-9]*)?", ('thousands = " "',)),
    (r"[+-]?[0-9]{1,3}([ \u00a0\u202f][0-9]{3})+,[0-9]*", ('decimal = ","', 'thousands = " "')),
    (r"[+-]?[0-9]*\.[0-9]+", ('decimal = "."',)),
)
"""How numbers are written elsewhere, and which options read them."""


def _lowering(logical: Logical) -> Parse:
    """What reads a logical value as its column holds it."""

    def parse(text: str) -> Any:
        value = logical.parse(text)
        return None if value is None else logical.lower(value)

    return parse


def _time_parser(moment: Callable[[str], int]) -> Parse:
    def parse(text: str) -> Any:
        try:
            return to_datetime(moment(text))
        except NoTimeError as error:  # of a field, and not of the row
            raise NoRecordError(str(error), BAD_VALUE) from None

    return parse


def _parse_float(text: str) -> float:
    if not _FLOAT.fullmatch(text.strip()):
        raise ValueError(f"{shortened(text)} is not a number")
    number = float(text)
    if isinf(number) and any(character.isdigit() for character in text):
        raise NoRecordError(f"{shortened(text)} is beyond a float of 64 bits", BAD_VALUE)
    return number


def _parse_finite(text: str) -> float:
    number = _parse_float(text)
    if not isfinite(number):
        advice = "set nan = true to read it, or null_values where it means a missing value"
        raise NoRecordError(f"{shortened(text)} is no finite number: {advice}", NAN)
    return number


def _parse_int(text: str) -> int:
    plain = text.strip()
    if _INT.fullmatch(plain) and len(plain) <= _INT_CHARS_MAX and -(2**63) <= int(plain) < 2**63:
        return int(plain)
    raise ValueError(f"{shortened(text)} is not an integer of 64 bits")


def _parse_bool(text: str) -> bool:
    found = _BOOLS.get(text.strip().lower())
    if found is None:
        raise NoRecordError(f"{shortened(text)} is not true or false", BAD_VALUE)
    return found


def _parse_floats(texts: Sequence[str]) -> list[float]:
    """Of texts that are nothing but finite numbers; raises `ValueError` for others, even for `nan`."""
    if "".join(texts).strip("0123456789+-.eE"):  # what is left begins with another character
        raise ValueError
    numbers = list(map(float, texts))
    if not all(map(isfinite, numbers)):
        raise ValueError
    return numbers


def _parse_ints(texts: Sequence[str]) -> list[int]:
    """The same of integers."""
    if "".join(texts).strip("0123456789+-") or max(map(len, texts)) > _INT_CHARS_MAX:
        raise ValueError
    numbers = list(map(int, texts))
    if not are_int64(numbers):
        raise ValueError
    return numbers


_PARSE_ALL: Final[Mapping[FieldType, ParseAll]] = {
    FieldType.INT64: _parse_ints,
    FieldType.FLOAT64: _parse_floats,
    FieldType.STR: list,
}
