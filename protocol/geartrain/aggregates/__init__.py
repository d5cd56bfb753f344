"""Aggregates: how many records become one value, in any order. Their face is `geartrain.agg`."""
