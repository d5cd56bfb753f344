"""`python -m geartrain_cloud.control.parquet_lines`: a Parquet file of history becomes JSON lines.

Between `gear backfill` and agents, which read lines. Control starts it for one file, since whoever has sent
that may have made it to do harm. Guarantees: the lines are there whole and durable, or not at all. What
cannot be read is one sentence.
"""

from __future__ import annotations

import os
import shutil
import sys
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from geartrain.adapters.files import fsync_path
from geartrain_cloud.control.history_files import FREE_BYTES

QUESTION_BYTES_MAX = 1 << 16
_ROWS = 5_000
"""Of a file at a time."""


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Parquet file, and where the lines go."""

    file: str
    lines: str


class _NoRoomError(Exception):
    """The disk is to keep some free bytes."""


def write_lines(file: Path, lines: Path) -> int:
    """Write the rows of a Parquet file as JSON lines; how many. Raises `ArrowException`, `ValueError` and
    `OSError`.
    """
    draft, count = lines.with_name(f".{lines.name}.{os.getpid()}.draft"), 0
    with pq.ParquetFile(file) as found, open(draft, "wb", opener=_private) as out:
        for batch in found.iter_batches(_ROWS):
            if shutil.disk_usage(lines.parent).free < FREE_BYTES:
                raise _NoRoomError
            rows = ({name: _value(value) for name, value in row.items()} for row in _plain(batch).to_pylist())
            out.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
            count += len(batch)
        out.flush()
        os.fsync(out.fileno())
    draft.rename(lines)
    fsync_path(lines.parent)
    return count


def _plain(batch: pa.RecordBatch) -> pa.Table:
    """With times to the microsecond, as Python has them."""
    table = pa.Table.from_batches([batch])
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            column = table.column(at).cast(pa.timestamp("us", field.type.tz), safe=False)
            table = table.set_column(at, field.name, column)
    return table


def _value(value: Any) -> Any:
    """A value as JSON has it; a time without a zone is meant in UTC."""
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    return value


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def main() -> int:
    """Answer the question on stdin; the exit code is 0 where there is an answer, a refusal too."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(QUESTION_BYTES_MAX), type=Question)
    said: dict[str, Any]
    try:
        said = {"answer": write_lines(Path(asked.file), Path(asked.lines))}
    except _NoRoomError:
        said = {"refused": "the disk of the platform has no room for the rows of the file: make some"}
    except OSError as error:
        said = {"refused": f"the file cannot be read as Parquet: {error.strerror or error}"}
    except (pa.ArrowException, ValueError, TypeError) as error:
        said = {"refused": f"the file cannot be read as Parquet: {' '.join(str(error).split())[:300]}"}
    sys.stdout.buffer.write(msgspec.json.encode(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
