"""`gear log migrate`: a log of release 0.2 becomes one of this release.

Loads the flows that wrote it, looks how far their tables are, and says what becomes of each flow. Guarantees:
without `--yes` nothing is changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from geartrain.adapters.sqlite import open_to_read, translated
from geartrain.flow.loading import load_flow
from geartrain.printable import printable
from geartrain_client.terminal.screen import print_json, results
from geartrain_cloud.errors import StateError
from geartrain_cloud.inspecting.places import log_folder, run_folder
from geartrain_cloud.log.migration import MigratedFlow, migrate_log

TABLES_FILE = "tables.sqlite"
"""Where a run of release 0.2 has its tables."""
_BUSY_S = 10.0


def migrate(state: Path, flows: Sequence[str], tables: Path | None, *, keep: bool, as_json: bool) -> None:
    """Migrate the log of `state`, or only try; print what became of it. Raises `GeartrainError`.

    flows: `module:name` of those that wrote it; tables: the driver's file, by default that of the run.
    """
    folder = log_folder(state)
    graphs = [load_flow(flow).graph() for flow in flows]
    file = tables or run_folder(state) / TABLES_FILE
    found = migrate_log(folder, graphs, _stands(file, asked=tables is not None), keep=keep)
    if as_json:
        print_json({"changed": keep, "flows": [asdict(one) for one in found]})
        return
    out = results()
    for one in found:
        out.print(printable(_sentence(one, keep=keep)))
        for query in one.lost:
            said = f"query {query} cannot go on with --restore, for its state is Spark's own: use --reset"
            out.print(printable(said))
    if keep:
        out.print("start gear-ingest, then the driver with --restore, once")
    else:
        out.print("nothing was changed: copy the folder if you may want to go back, then add --yes")


def _sentence(one: MigratedFlow, *, keep: bool) -> str:
    rows = ", ".join(f"{channel} {count:,}" for channel, count in sorted(one.rows.items())) or "none"
    ends = ", ".join(f"{key}: {end:,}" for key, end in one.ends.items())
    verb = "became" if keep else "would become"
    entries = f"{one.entries_before:,} entries {verb} {one.entries:,}"
    return f"flow {one.flow}: {entries} (ends {ends}); rows: {rows}"


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
