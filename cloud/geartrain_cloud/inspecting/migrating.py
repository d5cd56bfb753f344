"""`python -m geartrain_cloud.inspecting.migrating`: a log of release 0.2 becomes one of this release.

For `gear log migrate`, and for REST as a short-lived process, since the flows that wrote the log are loaded.
Guarantees: a trial changes nothing, and a refusal is one sentence.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.sqlite import open_to_read, translated
from geartrain.errors import GeartrainError
from geartrain.flow.loading import load_flow
from geartrain_cloud.errors import StateError
from geartrain_cloud.inspecting.places import log_folder, run_folder
from geartrain_cloud.log.migration import MigratedFlow, migrate_log

TABLES_FILE = "tables.sqlite"
"""Where a run of release 0.2 has its tables."""
QUESTION_BYTES_MAX = 1 << 20
_BUSY_S = 10.0


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state folder, the flows that wrote its log, and whether it is to be kept, or only tried."""

    state: str
    flows: list[str]
    keep: bool


def migrated(
    state: Path, flows: Sequence[str], tables: Path | None = None, *, keep: bool
) -> list[MigratedFlow]:
    """Migrate the log of `state`, or only try; what became of each flow. Raises `GeartrainError`.

    flows: `module:name` of those that wrote it; tables: the driver's file, by default that of the run.
    """
    folder = log_folder(state)
    graphs = [load_flow(flow).graph() for flow in flows]
    file = tables or run_folder(state) / TABLES_FILE
    return migrate_log(folder, graphs, _stands(file, asked=tables is not None), keep=keep)


def _stands(file: Path, *, asked: bool) -> Mapping[str, Mapping[str, int]]:
    """By query, the positions up to which the tables hold what it made; raises `StateError`."""
    if not file.is_file():
        if asked:
            raise StateError(f"there are no tables at {file}: give --tables the file that the driver writes")
        return {}
    with (
        translated(StateError, f"the tables {file}"),
        closing(open_to_read(file, busy_s=_BUSY_S)) as database,
    ):
        return {
            query: json.loads(held)
            for query, held in database.execute("SELECT query, positions FROM _queries")
        }


def main() -> int:
    """Answer the question on stdin; the exit code is 0 where there is an answer, a refusal too."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(QUESTION_BYTES_MAX), type=Question)
    try:
        found = migrated(Path(asked.state), asked.flows, keep=asked.keep)
        said: dict[str, Any] = {"answer": [asdict(one) for one in found]}
    except GeartrainError as error:
        said = {"refused": " ".join(str(error).split())}
    sys.stdout.buffer.write(msgspec.json.encode(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
