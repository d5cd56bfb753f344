"""The errors of the way down that the protocol package does not define."""

from __future__ import annotations

from geartrain_cloud.sinks.layout import TableError


class OutboxError(TableError):
    """The outbox cannot be opened, read or written."""


class MissingOutboxError(OutboxError):
    """There is no outbox yet."""
