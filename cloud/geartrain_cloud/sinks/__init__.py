"""Sinks: where records come to rest, each write one transaction with the positions it brings the sink to."""
