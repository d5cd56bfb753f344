"""Values that Spark carries to its Python processes, and that only a process that uses them opens.

They stand around the functions and tasks of a query. For each query Spark starts processes that only plan:
one asks the log for its end, and one for each stage asks what state there is. They need neither the user's
modules nor the runtime. Those imports would take most of their life, and with it of a query's start.

Guarantees: what is opened is what was sealed; Spark's own serializer does both.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from pyspark.serializers import CloudPickleSerializer

T = TypeVar("T")


class Sealed(Generic[T]):
    """A value as bytes, until it is asked for."""

    def __init__(self, value: T) -> None:
        """Raises Spark's error for what it cannot carry."""
        self._raw: bytes = CloudPickleSerializer().dumps(value)  # type: ignore[no-untyped-call]
        self._opened: list[T] = []

    def __getstate__(self) -> bytes:
        return self._raw

    def __setstate__(self, raw: bytes) -> None:
        self._raw, self._opened = raw, []

    def open(self) -> T:
        """The value, put together once in each process."""
        if not self._opened:
            self._opened.append(CloudPickleSerializer().loads(self._raw))  # type: ignore[no-untyped-call]
        return self._opened[0]
