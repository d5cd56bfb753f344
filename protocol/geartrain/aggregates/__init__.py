"""Aggregates: what windows and keyed streams compute of many records, mergeable, and free of order."""

from geartrain.aggregates.count import count
from geartrain.aggregates.distinct import distinct
from geartrain.aggregates.first import first
from geartrain.aggregates.last import last
from geartrain.aggregates.maximum import maximum
from geartrain.aggregates.mean import mean
from geartrain.aggregates.mergeable import AggregateSpec, Mergeable, Selector
from geartrain.aggregates.minimum import minimum
from geartrain.aggregates.quantile import quantile
from geartrain.aggregates.top_n import top_n
from geartrain.aggregates.total import total
from geartrain.aggregates.variance import variance

__all__ = [
    "AggregateSpec",
    "Mergeable",
    "Selector",
    "count",
    "distinct",
    "first",
    "last",
    "maximum",
    "mean",
    "minimum",
    "quantile",
    "top_n",
    "total",
    "variance",
]
