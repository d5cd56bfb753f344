"""`gear log migrate`: a log of release 0.2 becomes one of this release.

On a folder, or by REST on a platform. Says what becomes of each flow. Guarantees: without `--yes` nothing
is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from geartrain.errors import ConfigError
from geartrain.printable import printable
from geartrain_client.rest.platform import Platform
from geartrain_client.terminal.screen import print_json, results
from geartrain_cloud.inspecting.migrating import migrated
from geartrain_cloud.log.migration import MigratedFlow

MIGRATE_S = 3_900.0
"""How long a platform may take to answer."""


def migrate(
    folder: Path | None,
    platform: Callable[[], Platform],
    flows: Sequence[str],
    tables: Path | None,
    *,
    keep: bool,
    as_json: bool,
) -> None:
    """Migrate the log in `folder`, or that of a platform where none is given, or only try. Print what became
    of it. Raises `GeartrainError`.

    flows: `module:name` of those that wrote it; tables: the driver's file, by default that of the run.
    """
    if folder is not None:
        found = migrated(folder, flows, tables, keep=keep)
    elif tables is not None:
        raise ConfigError("--tables is for a log in a FOLDER: a platform knows where its tables are")
    else:
        body = {"flows": list(flows), "dry_run": not keep}
        answer = platform().change("POST", "/log/migrate", body, MIGRATE_S)
        found = msgspec.convert(answer["flows"], list[MigratedFlow])
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
