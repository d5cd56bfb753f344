"""The peers at work: what a user would take instead, each given the same items and user's functions.

A peer's run is a source of items in memory, the chain that the work builds, and a list of what leaves. They
come by the extra `bench`; nothing here is imported where one is missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

BATCH = 256
"""Items that bytewax is given at a time: as many as the agent reads of a split."""


def through_bytewax(items: Sequence[Any], build: Callable[[Any, Any], Any]) -> list[Any]:
    """Run `build(operators, stream)` over the items with one worker in this process."""
    operators = importlib.import_module("bytewax.operators")
    testing = importlib.import_module("bytewax.testing")
    dataflow = importlib.import_module("bytewax.dataflow").Dataflow("bench")
    out: list[Any] = []
    stream = operators.input("items", dataflow, _bytewax_source(items))
    operators.output("out", build(operators, stream), testing.TestingSink(out))
    testing.run_main(dataflow)
    return out


def _bytewax_source(items: Sequence[Any]) -> Any:
    """Slices of a list; the source that bytewax brings for tests looks at each item by itself."""
    inputs = importlib.import_module("bytewax.inputs")

    class Partition(inputs.StatelessSourcePartition):  # type: ignore[misc, name-defined]
        """The next slice at each call."""

        def __init__(self) -> None:
            self._at = 0

        def next_batch(self) -> list[Any]:
            """The next slice."""
            if self._at >= len(items):
                raise StopIteration
            self._at += BATCH
            return list(items[self._at - BATCH : self._at])

    class Source(inputs.DynamicSource):  # type: ignore[misc, name-defined]
        """One partition, because there is one worker."""

        def build(self, step_id: str, worker_index: int, worker_count: int) -> Partition:
            """The partition."""
            return Partition()

    return Source()


def through_streamz(items: Sequence[Any], build: Callable[[Any], Any]) -> list[Any]:
    """Emit the items into `build(stream)`, one by one, as streamz has it."""
    source = importlib.import_module("streamz").Stream()
    out: list[Any] = []
    build(source).sink(out.append)
    for item in items:
        source.emit(item)
    return out


def through_reactivex(items: Sequence[Any], *operators: Any) -> list[Any]:
    """Subscribe to the items through the given operators."""
    out: list[Any] = []
    importlib.import_module("reactivex").from_iterable(items).pipe(*operators).subscribe(out.append)
    return out


def rx(name: str, *arguments: Any) -> Any:
    """An operator of reactivex."""
    return getattr(importlib.import_module("reactivex.operators"), name)(*arguments)
