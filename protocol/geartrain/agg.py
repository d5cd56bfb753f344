"""The aggregates that come with Geartrain, for windows and keyed streams: `from geartrain import agg`.

An aggregate names a field of a record or a function of it, and a step computes one value of many records. All
of them merge, and none depends on the order of arrival: every cut of a flow gives the same bits. A value None
is skipped. A user's own aggregate is a subclass of `Aggregate`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geartrain.aggregates.count import Count, CountAll
from geartrain.aggregates.distinct import LIMIT, CountDistinct, CountDistinctEstimate
from geartrain.aggregates.mean import Mean
from geartrain.aggregates.mergeable import Aggregate, AggregateSpec, Selector
from geartrain.aggregates.placed import First, Last
from geartrain.aggregates.quantile import Quantile
from geartrain.aggregates.ranking import Max, Min
from geartrain.aggregates.top_n import TopGiven, TopN
from geartrain.aggregates.total import Sum
from geartrain.aggregates.variance import Variance

__all__ = [
    "Aggregate",
    "AggregateSpec",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "quantile",
    "sum",
    "top_n",
    "variance",
]


def count(of: str | Callable[[Any], Any] | None = None) -> AggregateSpec:
    """How many records there are, or how many have a value.

    Args:
        of: a field, or a function of the record. Only records whose value there is not None are then counted.
            Without it, every record is.

    Returns:
        An aggregate whose result is an int, 0 without records.

    >>> from geartrain import agg
    >>> agg.count("price").selector.field
    'price'
    """
    return (CountAll() if of is None else Count()).of(of)


def sum(of: str | Callable[[Any], Any] | None = None) -> AggregateSpec:
    """The exact sum, rounded once: the same in any order and under any cut.

    The sum of ints is an int, of Decimals a Decimal, and of floats the float nearest to the exact sum
    (Shewchuk, "Adaptive Precision Floating-Point Arithmetic", 1997). It is NaN or infinite where a value is,
    and infinite beyond the largest float.

    Args:
        of: a field, or a function of the record, that holds numbers; without it, the record is the number.

    Returns:
        An aggregate whose result is a number of the values' type, None without values. A sum that does not
        fit its field is a dead letter.

    Raises:
        FlowError: when the flow is built, for a field that does not hold numbers.

    >>> from geartrain import agg
    >>> sums = agg.sum("price").aggregate
    >>> sums.result(sums.add_all(sums.create(), [1e100, 1.0, -1e100], [], []))
    1.0
    """
    return Sum().of(of)


def mean(of: str | Callable[[Any], Any] | None = None) -> AggregateSpec:
    """The arithmetic mean: the float nearest to the exact one, in any order and under any cut.

    Args:
        of: a field, or a function of the record, that holds numbers; without it, the record is the number.

    Returns:
        An aggregate whose result is a float, None without values.

    Raises:
        FlowError: when the flow is built, for a field that does not hold numbers.

    >>> from geartrain import agg
    >>> means = agg.mean("price").aggregate
    >>> means.result(means.add_all(means.create(), [0.1, 0.2, 0.3], [], []))
    0.2
    """
    return Mean().of(of)


def variance(of: str | Callable[[Any], Any] | None = None, *, ddof: int = 0) -> AggregateSpec:
    """The variance: the float nearest to the exact one, in any order and under any cut.

    Args:
        of: a field, or a function of the record, that holds numbers; without it, the record is the number.
        ddof: degrees of freedom to take off: 0 for the variance of all there is, 1 for that of a sample.

    Returns:
        An aggregate whose result is a float, None without values. It is NaN when a value is NaN or infinite,
        or when there are `ddof` values or fewer.

    Raises:
        FlowError: for another `ddof` than 0 and 1, and for a field that does not hold numbers.

    >>> from geartrain import agg
    >>> variances = agg.variance("price").aggregate
    >>> variances.result(variances.add_all(variances.create(), [1e9 + 1, 1e9 + 2, 1e9 + 3], [], []))
    0.6666666666666666
    """
    return Variance(ddof).of(of)


def min(of: str | Callable[[Any], Any] | None = None) -> AggregateSpec:
    """The least value of numbers, text, bytes or times. -0.0 is less than 0.0.

    Args:
        of: a field, or a function of the record; without it, the record is the value.

    Returns:
        An aggregate whose result has the values' type, None without values. NaN is skipped, unless there is
        nothing else.

    Raises:
        FlowError: when the flow is built, for a field whose values have no order.

    >>> from geartrain import agg
    >>> least = agg.min("price").aggregate
    >>> least.result(least.add_all(least.create(), [0.0, -0.0], [], []))
    -0.0
    """
    return Min().of(of)


def max(of: str | Callable[[Any], Any] | None = None) -> AggregateSpec:
    """The greatest value of numbers, text, bytes or times. 0.0 is greater than -0.0.

    Args:
        of: a field, or a function of the record; without it, the record is the value.

    Returns:
        An aggregate whose result has the values' type, None without values. NaN is skipped, unless there is
        nothing else.

    Raises:
        FlowError: when the flow is built, for a field whose values have no order.

    >>> from geartrain import agg
    >>> greatest = agg.max("price").aggregate
    >>> greatest.result(greatest.add_all(greatest.create(), [0.0, -0.0], [], []))
    0.0
    """
    return Max().of(of)


def first(of: str | Callable[[Any], Any] | None = None) -> AggregateSpec:
    """The value of the first record, by event time and then by origin.

    Args:
        of: a field, or a function of the record; records whose value there is None are skipped. Without it,
            the value is the record.

    Returns:
        An aggregate whose result has the values' type, None without values.

    >>> from geartrain import agg
    >>> from geartrain.records.batch import Origin
    >>> ends = agg.first("price").aggregate
    >>> acc = ends.add(ends.create(), "later", 20, Origin("split", 0))
    >>> ends.result(ends.add(acc, "earlier", 10, Origin("split", 1)))
    'earlier'
    """
    return First().of(of)


def last(of: str | Callable[[Any], Any] | None = None) -> AggregateSpec:
    """The value of the last record, by event time and then by origin.

    Args:
        of: a field, or a function of the record; records whose value there is None are skipped. Without it,
            the value is the record.

    Returns:
        An aggregate whose result has the values' type, None without values.

    >>> from geartrain import agg
    >>> from geartrain.records.batch import Origin
    >>> ends = agg.last("price").aggregate
    >>> acc = ends.add(ends.create(), "later", 20, Origin("split", 0))
    >>> ends.result(ends.add(acc, "earlier", 10, Origin("split", 1)))
    'later'
    """
    return Last().of(of)


def top_n(
    of: str | Callable[[Any], Any], n: int, *, give: str | Callable[[Any], Any] | None = None
) -> AggregateSpec:
    """A list of the `n` largest values, the largest first; equal ones in canonical order of their records.

    Args:
        of: a field, or a function of the record, by which records are ranked.
        n: the length of the list, 1 to 10,000.
        give: another field or function; the list then holds its values for the same records.

    Returns:
        An aggregate whose result is a list, shorter than `n` where there are fewer values.

    Raises:
        FlowError: for an `n` out of range, and for a field whose values have no order.

    >>> from geartrain import agg
    >>> from geartrain.records.batch import Origin
    >>> tops = agg.top_n("price", 2).aggregate
    >>> places = [Origin("split", i) for i in range(3)]
    >>> tops.result(tops.add_all(tops.create(), [3, 9, 5], [10, 20, 30], places))
    [9, 5]
    """
    if give is None:
        return TopN(n).of(of)
    return AggregateSpec(TopGiven(n), Selector.of(of), Selector.of(give))


def count_distinct(
    of: str | Callable[[Any], Any] | None = None, *, exact: bool = True, limit: int = LIMIT
) -> AggregateSpec:
    """How many different values there are. -0.0 is 0.0, and NaN is one value.

    An exact count keeps all values in the state of each key and window, which is for thousands of them, not
    millions. The estimate takes 4 kB: HyperLogLog with 4,096 registers (Flajolet and others, 2007) and Ertl's
    estimator (arXiv 1702.01284). Its standard error is 1.6 %, and it is the same under any cut.

    Args:
        of: a field, or a function of the record; without it, the record is the value.
        exact: False for the estimate.
        limit: how many values an exact count keeps, 1 or more. With more of them, the result of a window is a
            dead letter, and its state is let go. Without a window, each record with one value too many is.

    Returns:
        An aggregate whose result is an int, 0 without values.

    Raises:
        FlowError: for a `limit` below 1, and for a field whose values cannot be told apart.

    >>> from geartrain import agg
    >>> agg.count_distinct("symbol").aggregate.result({b"sGT", b"sHAL"})
    2
    """
    return (CountDistinct(limit) if exact else CountDistinctEstimate()).of(of)


def quantile(
    of: str | Callable[[Any], Any] | None = None, q: float = 0.5, *, error: float = 0.01
) -> AggregateSpec:
    """The `q`-quantile, estimated; the same bits in any order and under any cut.

    Of n values in ascending order it means the one at index floor(q * (n - 1)), counted from 0. So q = 0 is
    the smallest, and q = 1 the largest. The median of an even number of values is the lower of the two in the
    middle. Nothing is interpolated between two values. NumPy calls this `method="lower"`. The result lies
    within `error` of that value.

    The algorithm is DDSketch (Masson, Rim, Lee, VLDB 2019) with the linearly interpolated mapping.

    Args:
        of: a field, or a function of the record, that holds numbers; without it, the record is the number.
        q: which quantile, 0 to 1; 0.5 is the median.
        error: how far the result may lie from the quantile, relative to its value, 0.0001 to 0.5.

    Returns:
        An aggregate whose result is a float, None without values. NaN is skipped, unless there is nothing
        else.

    Raises:
        FlowError: for a `q` or an `error` out of range, and for a field that does not hold numbers.

    >>> from geartrain import agg
    >>> medians = agg.quantile("price").aggregate
    >>> 1.98 < medians.result(medians.add_all(medians.create(), [1.0, 2.0, 3.0, 9.0], [], [])) < 2.02
    True
    """
    return Quantile(q, error).of(of)
