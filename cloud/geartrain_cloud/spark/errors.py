"""What can stop a query of Spark's or the host; each error is one sentence."""

from __future__ import annotations

from geartrain.errors import GeartrainError


class QueryError(GeartrainError):
    """A query cannot start or go on; names the query, what is wrong and what to do."""


class BreakerError(QueryError):
    """A flow made too many dead letters and stays stopped until a person says to go on."""


class RefusedError(QueryError):
    """The host must not run here, and a new start does not help: another one does, or a file of its own is
    missing or of another release.
    """


class TornError(QueryError):
    """A checkpoint that lacks something; where: the file, and what is wrong with it."""

    def __init__(self, sentence: str, where: str) -> None:
        super().__init__(sentence)
        self.where = where
