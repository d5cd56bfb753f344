"""What the demos share: the plain data that `gear demo` runs one from, and how parts are dealt to devices.

Before the record's path. A demo is found through the entry-point group `geartrain.demos`. It declares its
flow, the settings of its devices, its page and what to check at the end, and it starts nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from geartrain.errors import NoRecordError
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.csv_rows import read_rows
from geartrain_devices.text_bytes import NOT_UTF8, not_utf8

T = TypeVar("T")

Settings = Mapping[str, Mapping[str, Any]]
"""The options of steps, by step and name."""
SourcesOf = Callable[[Sequence[str], bool], Settings]
"""The options of the sources on a device: `sources(parts, first)`. No parts means all of them; the first
device also takes what belongs to no part.
"""
Row = dict[str, Any]
Rows = Callable[[str, Mapping[str, Any]], list[Row]]
"""How tables are read: `rows(table, where)` gives those whose fields equal `where`, in canonical order."""
Answer = tuple[int, Any]
"""What a page answers: an HTTP status, and the JSON value to send with it."""
Summary = tuple[str, list[str], list[list[str]]]
"""Title, column heads and rows of the table that is printed at the end."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """A demo that is ready to run.

    inputs: the path of each file that is read, by the name of its option; parts: what each device has;
    steps: the options of the steps; devices: the options of the sources on each device; whole: the same for
    a device that has everything; paced: the sources that `--speed` slows down, file replays; waits_from: the
    time from which on their rows wait for the step that moves with `--throttle`, "" for none; said: sentences
    for the user.
    """

    inputs: Mapping[str, str]
    parts: Mapping[str, Sequence[str]]
    steps: Settings
    devices: Mapping[str, Settings]
    whole: Settings
    paced: Sequence[str] = ()
    waits_from: str = ""
    said: Sequence[str] = ()


def set_up(
    inputs: Mapping[str, Path],
    parts: Mapping[str, Sequence[str]],
    steps: Settings,
    sources: SourcesOf,
    *,
    paced: Sequence[str] = (),
    waits_from: str = "",
    said: Sequence[str] = (),
) -> Setup:
    """The demo with its parts dealt to devices as `parts` says."""
    return Setup(
        inputs={name: str(path.absolute()) for name, path in inputs.items()},
        parts=parts,
        steps=steps,
        devices={device: sources(mine, index == 0) for index, (device, mine) in enumerate(parts.items())},
        whole=sources([], True),
        paced=paced,
        waits_from=waits_from,
        said=said,
    )


def deal(parts: Sequence[str], count: int) -> dict[str, list[str]]:
    """Deal parts to `count` devices in turn; with fewer parts than devices, there are fewer devices.

    >>> deal(["a", "b", "c"], 2)
    {'device-1': ['a', 'c'], 'device-2': ['b']}
    """
    count = min(count, len(parts))
    return {f"device-{number + 1}": list(parts[number::count]) for number in range(count)}


def survey(source: CsvReplay[T], out: type[T]) -> Iterator[tuple[str, int | None]]:
    """The part and the event time (microseconds, None for a row that is no record) of each row of a file.

    Raises `SourceError` when the file cannot be read, and `NoRecordError` at its end when it has rows and
    none of them is a record.
    """
    rows = records = 0
    for part, time_us in source.survey(out):
        rows += 1
        records += time_us is not None
        yield part, time_us
    if rows and not records:
        reason = asyncio.run(_first_reason(source, out))
        raise NoRecordError(f"file {source.path}: none of its {rows:,} rows is a record, as of {reason}")


def list_not_utf8(paths: Iterable[Path]) -> list[str]:
    """A sentence for each CSV file with a row that is no UTF-8 text, its first; raises `SourceError`."""
    found = []
    for path in paths:
        with closing(read_rows(str(path))) as rows:
            problems = ((row.line, not_utf8(row.raw)) for row in rows if row.code == NOT_UTF8)
            line, problem = next(problems, (0, ""))
        if problem:
            found.append(
                f"file {path}, line {line}: {problem}; such rows are dead letters: write it as UTF-8"
            )
    return found


async def _first_reason(source: CsvReplay[T], out: type[T]) -> str:
    """Why the first row is no record, with its line; rows that are none come first in a replay."""
    (split,) = source.open("", "", out)
    try:
        return (await split.read(0, 1)).rejects[0].reason
    finally:
        await split.close()
