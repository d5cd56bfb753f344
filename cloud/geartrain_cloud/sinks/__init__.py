"""Sinks: where records are kept, each write in one transaction with the positions it brings the sink to."""
