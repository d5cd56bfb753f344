"""The reference's aggregates: each worked out anew from the list of all values, by its definition.

Sums are exact fractions, rounded once; ranks come from sorting; what an estimate estimates is worked out from
the definition of its buckets and registers. `values` below are (value, record) in canonical order, None and
the records that are dead letters left out.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from typing import Any

from geartrain.records.batch import Origin
from tests.reference.rows import Row

Values = Sequence[tuple[Any, Row]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def result(spec: Any, values: Values) -> Any:
    """What the aggregate `spec` gives; raises what a user's own aggregate raises."""
    if not spec.aggregate.built_in:
        return _own(spec.aggregate, values)
    return _RESULTS[type(spec.aggregate).__name__](spec, values)


def takes(spec: Any, value: Any, row: Row, *, added: bool) -> Any:
    """`value`, or an exception where the aggregate does not take it; added: whether the record is in any
    window, so that a user's own aggregate is asked.
    """
    name = type(spec.aggregate).__name__
    if name in _NUMERIC and type(value) not in (bool, int, float, Decimal):
        raise TypeError(f"{name} takes numbers")
    if added and not spec.aggregate.built_in and value is not None:
        spec.aggregate.add(spec.aggregate.create(), value, row.time, _origin(row))
    return value


def _own(mergeable: Any, values: Values) -> Any:
    if not values:
        return None
    accumulator = mergeable.create()
    for value, row in values:
        accumulator = mergeable.add(accumulator, value, row.time, _origin(row))
    return mergeable.result(accumulator)


def _origin(row: Row) -> Origin:
    return Origin(row.name, row.number, row.path)


def _unless_none(work: Callable[[Any, list[Any]], Any]) -> Callable[[Any, Values], Any]:
    return lambda spec, values: work(spec, [v for v, _ in values]) if values else None


def _rounded(exact: Fraction) -> float:
    """The nearest float, one zero, and infinity beyond the largest."""
    try:
        return float(exact) or 0.0
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _beyond(values: list[Any]) -> float | None:
    """NaN or an infinity, where a sum of `values` is one."""
    odd = {v for v in values if isinstance(v, float) and math.isinf(v)}
    if any(v != v for v in values) or len(odd) == 2:
        return math.nan
    return next(iter(odd), None)


def _total(spec: Any, values: list[Any]) -> Any:
    kinds = {type(v) for v in values}
    if float in kinds:
        beyond = _beyond(values)
        return _rounded(sum(map(Fraction, values), Fraction())) if beyond is None else beyond
    if Decimal in kinds:
        scale = max(-int(v.as_tuple().exponent) for v in values if isinstance(v, Decimal))
        exact = sum(map(Fraction, values), Fraction())
        return Decimal(int(exact * 10**scale)).scaleb(-scale)
    return sum(values)


def _mean(spec: Any, values: list[Any]) -> float:
    beyond = _beyond(values)
    return _rounded(sum(map(Fraction, values), Fraction()) / len(values)) if beyond is None else beyond


def _variance(spec: Any, values: list[Any]) -> float:
    count, ddof = len(values), spec.aggregate.ddof
    if count <= ddof or _beyond(values) is not None:
        return math.nan
    exact = list(map(Fraction, values))
    mean = sum(exact, Fraction()) / count
    return _rounded(sum((v - mean) ** 2 for v in exact) / Fraction(count - ddof))


def rank(value: Any) -> tuple[Any, ...]:
    """What values that are not NaN are compared by."""
    if isinstance(value, (bool, int, float, Decimal)):
        infinite = 0 if math.isfinite(value) else (1 if value > 0 else -1)
        kind = (bool, int, float, Decimal).index(type(value))
        negative = isinstance(value, float) and value == 0 and math.copysign(1, value) < 0
        return 0, infinite, Fraction(0 if infinite else value), kind, not negative
    return 1 + (str, bytes, datetime).index(type(value)), value


def _extreme(choose: Callable[..., Any]) -> Callable[[Any, list[Any]], Any]:
    def work(spec: Any, values: list[Any]) -> Any:
        numbers = [v for v in values if v == v]
        return choose(numbers, key=rank) if numbers else math.nan

    return work


def _top(spec: Any, values: Values) -> list[Any] | None:
    numbers = [pair for pair in values if pair[0] == pair[0]]
    ranked = sorted(numbers, key=lambda pair: rank(pair[0]), reverse=True)  # stable: ties stay in order
    ranked += [pair for pair in values if pair[0] != pair[0]]
    chosen = ranked[: spec.aggregate.n]
    if not values:
        return None
    return [value if spec.give is None else select(spec.give, row) for value, row in chosen]


def select(selector: Any, row: Row) -> Any:
    """The value of a record that a selector means; raises what its function raises."""
    if selector.function is not None:
        return selector.function(row.value)
    return row.value if selector.field is None else getattr(row.value, selector.field)


def form(value: Any) -> bytes:
    """Equal for values that are one to `distinct`; what an estimate hashes, so the bytes of `identity`."""
    if isinstance(value, bool):
        return b"b" + bytes([value])
    if isinstance(value, int):
        return b"i%d" % value
    if isinstance(value, float):
        return b"f" + struct.pack(">d", math.nan if value != value else value or 0.0)
    if isinstance(value, str):
        return b"s" + value.encode()
    if isinstance(value, bytes):
        return b"y" + value
    if isinstance(value, datetime):
        return b"t%d" % ((value - _EPOCH) // timedelta(microseconds=1))
    if isinstance(value, Decimal):
        exact = Fraction(value)
        return b"d%d/%d" % (exact.numerator, exact.denominator)
    return b"e" + str(value.name).encode()


def _distinct(spec: Any, values: Values) -> int:
    found = len({form(value) for value, _ in values})
    if found > spec.aggregate.limit:
        raise ValueError("too many")
    return found


def _estimate(spec: Any, values: Values) -> int:
    registers = [0] * 4096
    for value, _ in values:
        bits = f"{int.from_bytes(blake2b(form(value), digest_size=8).digest(), 'big'):064b}"
        at, rest = int(bits[:12], 2), bits[12:]
        registers[at] = max(registers[at], 1 + len(rest) - len(rest.lstrip("0")))
    return round(_ertl(registers))


def _ertl(registers: list[int]) -> float:
    """Algorithm 6 of arXiv 1702.01284."""
    m, q = len(registers), 52
    count = Counter(registers)
    z = m * _tau(1 - count[q + 1] / m)
    for k in range(q, 0, -1):
        z = 0.5 * (z + count[k])
    z += m * _sigma(count[0] / m)
    return m * m / (2 * math.log(2) * z)


def _sigma(x: float) -> float:
    if x == 1.0:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z, y = z + x * y, y + y
    return z


def _tau(x: float) -> float:
    if x in (0.0, 1.0):
        return 0.0
    y, z, before = 1.0, 1.0 - x, -1.0
    while z != before:
        x, before, y = math.sqrt(x), z, 0.5 * y
        z -= (1.0 - x) ** 2 * y
    return z / 3.0


def _quantile(spec: Any, values: list[Any]) -> float:
    numbers = sorted(float(v) for v in values if v == v)
    if not numbers:
        return math.nan
    found = numbers[int(spec.aggregate.q * (len(numbers) - 1))]
    if found == 0 or math.isinf(found):
        return found or 0.0
    m = 1
    while 1 / (2 * m + 1) > spec.aggregate.error:
        m *= 2
    fraction, exponent = math.frexp(abs(found))
    j = int((2 * fraction - 1) * m)
    a, b = 1 + j / m, 1 + (j + 1) / m
    return math.copysign(math.ldexp(2 * a * b / (a + b), exponent - 1), found)


_NUMERIC = ("Sum", "Mean", "Variance", "Quantile")
_RESULTS: dict[str, Callable[[Any, Values], Any]] = {
    "Count": lambda spec, values: len(values),
    "CountAll": lambda spec, values: len(values),
    "Sum": _unless_none(_total),
    "Mean": _unless_none(_mean),
    "Variance": _unless_none(_variance),
    "Min": _unless_none(_extreme(min)),
    "Max": _unless_none(_extreme(max)),
    "First": _unless_none(lambda spec, values: values[0]),
    "Last": _unless_none(lambda spec, values: values[-1]),
    "TopN": _top,
    "TopGiven": _top,
    "CountDistinct": _distinct,
    "CountDistinctEstimate": _estimate,
    "Quantile": _unless_none(_quantile),
}
