"""What stands in which register of a Modbus device, as the fields of a record.

Below `geartrain_devices.modbus`, without any line. Guarantees: a value is read in one request, so that its
registers are of one moment. Neighbours are read together, within what one request may ask for; registers
that nobody named are never asked for.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import groupby

import msgspec

from geartrain.errors import SourceError
from geartrain_devices.no_record import NoRecordError
from geartrain_devices.text_bytes import NotTextError, check_encoding, decode_text

REGISTERS_MAX, BITS_MAX = 125, 2_000
"""What one request may ask for."""

TABLES = ("coil", "discrete", "input", "holding")
_BITS = ("coil", "discrete")
_TYPES: Mapping[str, str] = {
    "uint16": "H",
    "int16": "h",
    "uint32": "I",
    "int32": "i",
    "uint64": "Q",
    "int64": "q",
    "float32": "f",
    "float64": "d",
}
_ORDERS: Mapping[str, tuple[bool, bool]] = {
    # By name: whether the lowest register comes first, and whether the low byte of a register does.
    **dict.fromkeys(("ab", "abcd", "abcdefgh"), (False, False)),
    **dict.fromkeys(("cdab", "ghefcdab"), (True, False)),
    **dict.fromkeys(("ba", "badc", "badcfehg"), (False, True)),
    **dict.fromkeys(("dcba", "hgfedcba"), (True, True)),
}
_ENDS = {"big": False, "little": True}
_OPTIONS = ("scale", "order", "words", "bytes", "none", "encoding")
_FORM = (
    'such as "holding 100 float32", "input 7 int16 scale 0.1", "holding 2 uint32 order cdab", '
    '"holding 4 int16 none 0x8000", "holding 9 bit 3", "holding 20 text 8" or "coil 4"'
)

Value = int | float | bool | str | None


class Register(msgspec.Struct, frozen=True):
    """Where a value stands, and how.

    Args:
        table: one of `TABLES`.
        address: of the first register, from 0.
        count: how many registers (or bits) it takes.
        kind: a name of a type, `bit`, `text`, or empty in a table of bits.
        bit: which bit of a register, 0 the lowest.
        scale: what a number is multiplied with.
        is_little: whether the lowest register comes first.
        is_swapped: whether the low byte of each register comes first.
        nones: what stands for no value: the bytes of a number, highest first.
        encoding: of a text, empty for UTF-8.
    """

    table: str
    address: int
    count: int = 1
    kind: str = ""
    bit: int = 0
    scale: Decimal | None = None
    is_little: bool = False
    is_swapped: bool = False
    nones: frozenset[bytes] = frozenset()
    encoding: str = ""

    def value(self, raw: bytes) -> Value:
        """The value of its bytes: two a register as they came, or one a bit; None where they stand for none.
        Raises `ValueError` for a text that is none.
        """
        if self.table in _BITS:
            return bool(raw[0])
        if self.is_swapped:
            raw = b"".join(raw[at : at + 2][::-1] for at in range(0, len(raw), 2))
        if self.is_little:
            raw = b"".join(raw[at : at + 2] for at in range(len(raw) - 2, -1, -2))
        if self.kind == "bit":
            return bool(int.from_bytes(raw, "big") >> self.bit & 1)
        if self.kind == "text":
            return decode_text(raw.partition(b"\0")[0].rstrip(b" "), self.encoding)
        if raw in self.nones:
            return None
        (found,) = struct.unpack(f">{_TYPES[self.kind]}", raw)
        return found if self.scale is None else _scaled(found, self.scale)


def _scaled(found: float, scale: Decimal) -> float:
    if not math.isfinite(found):
        return found
    scaled = Decimal(found) * scale
    return int(scaled) if isinstance(found, int) and scale == scale.to_integral_value() else float(scaled)


class Span(msgspec.Struct, frozen=True):
    """Registers that one request asks for."""

    table: str
    address: int
    count: int

    @property
    def size(self) -> int:
        """Bytes of the answer: two a register, one a bit."""
        return self.count if self.table in _BITS else 2 * self.count


class Layout:
    """The registers of all fields, and the requests that they take."""

    def __init__(self, registers: Mapping[str, Register]) -> None:
        """registers: by field."""
        self._registers = dict(registers)
        self.spans = _spans(list(registers.values()))

    def values(self, raw: bytes) -> dict[str, Value]:
        """The value of each field; raw: the answers of all spans, one after the other."""
        starts, at = [], 0
        for span in self.spans:
            starts.append((span, at))
            at += span.size
        return {name: self._value(name, one, starts, raw) for name, one in self._registers.items()}

    @staticmethod
    def _value(name: str, one: Register, starts: Sequence[tuple[Span, int]], raw: bytes) -> Value:
        span, start = next((span, at) for span, at in starts if _holds(span, one))
        width = span.size // span.count
        begin = start + (one.address - span.address) * width
        try:
            return one.value(raw[begin : begin + one.count * width])
        except NotTextError as error:
            raise NoRecordError(
                f"field {name}: its text {raw[begin : begin + one.count * width]!r} is not "
                f"{one.encoding or 'UTF-8'}: write the encoding behind it, as in "
                f"text {one.count} encoding cp1252",
                error.code,
            ) from None


def _holds(span: Span, one: Register) -> bool:
    inside = span.address <= one.address and one.address + one.count <= span.address + span.count
    return span.table == one.table and inside


def _spans(registers: Sequence[Register]) -> list[Span]:
    found: list[Span] = []
    ordered = sorted(registers, key=lambda one: (one.table, one.address, one.count))
    for table, group in groupby(ordered, key=lambda one: one.table):
        most = BITS_MAX if table in _BITS else REGISTERS_MAX
        begin = end = -1
        for one in group:
            last = max(end, one.address + one.count)
            if begin < 0 or one.address > end or last - begin > most:
                if begin >= 0:
                    found.append(Span(table, begin, end - begin))
                begin, last = one.address, one.address + one.count
            end = last
        found.append(Span(table, begin, end - begin))
    return found


def parse_register(where: str, text: str) -> Register:
    """A register as it is written, such as `holding 100 float32 scale 0.1`; raises `SourceError`."""
    try:
        return _parse(text.split())
    except (ValueError, IndexError, InvalidOperation, SourceError) as error:
        why = f" ({error})" if type(error) in (ValueError, SourceError) else ""
        raise SourceError(f"{where} = {text!r} is no register{why}: write it {_FORM}") from None


def _parse(words: list[str]) -> Register:
    table, address = words[0], _whole(words[1], 65_535)
    if table not in TABLES:
        raise ValueError(f"{table} is none of {', '.join(TABLES)}")
    if table in _BITS:
        if len(words) > 2:
            raise ValueError(f"a {table} has no type")
        return Register(table, address)
    kind, rest = (words[2], words[3:]) if len(words) > 2 else ("uint16", [])
    if kind not in _TYPES and kind not in ("bit", "text"):
        raise ValueError(f"{kind} is none of {', '.join(_TYPES)}, bit, text")
    count, bit = struct.calcsize(f">{_TYPES.get(kind, 'H')}") // 2, 0
    if kind == "bit":
        bit, rest = _whole(rest[0], 15), rest[1:]
    elif kind == "text":
        count, rest = _whole(rest[0], REGISTERS_MAX), rest[1:]
    pairs = list(zip(rest[::2], rest[1::2], strict=True))
    said = dict(pairs)
    if unknown := set(said) - set(_OPTIONS):
        raise ValueError(f"{min(unknown)} is none of {', '.join(_OPTIONS)}")
    if doubled := [name for name in said if name != "none" and [one for one, _ in pairs].count(name) > 1]:
        raise ValueError(f"{doubled[0]} stands twice")
    if count < 1 or address + count > 65_536:
        raise ValueError("it ends behind 65535")
    scale = Decimal(said["scale"]) if "scale" in said else None
    if scale is not None and (kind not in _TYPES or not scale.is_finite()):
        raise ValueError("scale is a number, and of numbers")
    is_little, is_swapped = _order(said, 2 * count if kind in _TYPES else 0)
    nones = frozenset(_none(kind, count, text) for name, text in pairs if name == "none")
    encoding = said.get("encoding", "")
    if encoding and kind != "text":
        raise ValueError("encoding is of texts")
    check_encoding("it", encoding)
    return Register(table, address, count, kind, bit, scale, is_little, is_swapped, nones, encoding)


def _order(said: Mapping[str, str], size: int) -> tuple[bool, bool]:
    """Whether the lowest register comes first, and the low byte of each; size: bytes of a number, else 0."""
    if "order" in said:
        name = said["order"].lower()
        if "words" in said or "bytes" in said:
            raise ValueError("order says what words and bytes say: leave these out")
        if name not in _ORDERS or (size in (2, 4, 8) and len(name) not in (size, 4)):
            raise ValueError(f"order {said['order']} is none of abcd, cdab, badc, dcba")
        return _ORDERS[name]
    for one in ("words", "bytes"):
        if said.get(one, "big") not in _ENDS:
            raise ValueError(f"{one} is neither big nor little")
    return _ENDS[said.get("words", "big")], _ENDS[said.get("bytes", "big")]


def _none(kind: str, count: int, text: str) -> bytes:
    """The bytes of what stands for no value: 0x8000 as the bytes are, -1 as the number, before its scale."""
    if kind not in _TYPES:
        raise ValueError("none is of numbers")
    try:
        if text.lower().startswith("0x"):
            return int(text, 16).to_bytes(2 * count, "big")
        number = float(text) if kind.startswith("float") else int(text)
        return struct.pack(f">{_TYPES[kind]}", number)
    except (ValueError, OverflowError, struct.error):
        raise ValueError(f"none {text} is no {kind}: write 0x8000, or -32768") from None


def _whole(text: str, most: int) -> int:
    if not text.isdecimal() or not text.isascii() or int(text) > most:
        raise ValueError(f"{text} is no number from 0 to {most}")
    return int(text)
