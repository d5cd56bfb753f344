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
_FORM = (
    'such as "holding 100 float32", "input 7 int16 scale 0.1", "holding 2 uint32 words little", '
    '"holding 9 bit 3", "holding 20 text 8" or "coil 4"'
)

Value = int | float | bool | str


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
    """

    table: str
    address: int
    count: int = 1
    kind: str = ""
    bit: int = 0
    scale: Decimal | None = None
    is_little: bool = False

    def value(self, raw: bytes) -> Value:
        """The value of its bytes: two a register, high byte first, or one a bit."""
        if self.table in _BITS:
            return bool(raw[0])
        if self.is_little:
            raw = b"".join(raw[at : at + 2] for at in range(len(raw) - 2, -1, -2))
        if self.kind == "bit":
            return bool(int.from_bytes(raw, "big") >> self.bit & 1)
        if self.kind == "text":
            return raw.rstrip(b"\0 ").decode("ascii")
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
        except UnicodeDecodeError:
            raise ValueError(f"field {name}: its text is not ASCII") from None


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
    except (ValueError, IndexError, InvalidOperation) as error:
        why = f" ({error})" if type(error) is ValueError else ""
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
    said = dict(zip(rest[::2], rest[1::2], strict=True))
    if unknown := set(said) - {"scale", "words"}:
        raise ValueError(f"{min(unknown)} is neither scale nor words")
    if count < 1 or address + count > 65_536 or said.get("words", "big") not in ("big", "little"):
        raise ValueError("it ends behind 65535, or words is neither big nor little")
    scale = Decimal(said["scale"]) if "scale" in said else None
    if scale is not None and (kind not in _TYPES or not scale.is_finite()):
        raise ValueError("scale is a number, and of numbers")
    return Register(table, address, count, kind, bit, scale, said.get("words") == "little")


def _whole(text: str, most: int) -> int:
    if not text.isdecimal() or not text.isascii() or int(text) > most:
        raise ValueError(f"{text} is no number from 0 to {most}")
    return int(text)
