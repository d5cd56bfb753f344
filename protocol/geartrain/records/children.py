"""The outputs of steps that may emit several records for one: same time, each with a place below its origin;
and of those that emit for none.

Used by flat_map and process while they build their output batch.
"""

from __future__ import annotations

from typing import Any

from geartrain.records.batch import Batch, child_path


class Children:
    """An output batch under construction, in the order of the inputs and of their children."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._times: list[int] = []
        self._names: list[str] = []
        self._numbers: list[int] = []
        self._paths: list[bytes] = []

    def add(self, batch: Batch, row: int, children: list[Any]) -> None:
        """Append the children of the record at `row`: its path is extended by each child's index."""
        count = len(children)
        if not count:
            return
        path = batch.paths[row] if batch.paths is not None else b""
        if count == 1:  # the common case, without the cost of lists
            self._values.append(children[0])
            self._times.append(batch.times[row])
            self._names.append(batch.names[row])
            self._numbers.append(batch.numbers[row])
            self._paths.append(path + b"\x00")
            return
        self._values += children
        self._times += [batch.times[row]] * count
        self._names += [batch.names[row]] * count
        self._numbers += [batch.numbers[row]] * count
        self._paths += [child_path(path, index) for index in range(count)]

    def add_all(self, batch: Batch, children: list[Any], ends: list[int]) -> None:
        """Append the children of all records; those of a record end where `ends` says, and begin where those
        of the one before do.
        """
        if ends == list(range(1, len(batch) + 1)):  # one each, the common case
            self._values += children
            self._times += batch.times
            self._names += batch.names
            self._numbers += batch.numbers
            self._paths += [path + b"\x00" for path in batch.paths or [b""] * len(batch)]
            return
        begin = 0
        for row, end in enumerate(ends):
            if end > begin:
                self.add(batch, row, children[begin:end])
            begin = end

    def add_result(self, value: Any, time: int, step: str, path: bytes) -> None:
        """Append a record that is no child of one: its place is (step, 0, path)."""
        self._values.append(value)
        self._times.append(time)
        self._names.append(step)
        self._numbers.append(0)
        self._paths.append(path)

    def extend(self, other: Children) -> None:
        """Append all of another."""
        self._values += other._values
        self._times += other._times
        self._names += other._names
        self._numbers += other._numbers
        self._paths += other._paths

    def batch(self) -> Batch:
        """What was added."""
        return Batch(self._values, self._times, self._names, self._numbers, self._paths)
