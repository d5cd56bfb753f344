"""A query's checkpoint: its identity, what it was made for, and the positions at which its micro-batches end.

It stands beside the record's path. Before a query starts, it says whether folder, flow and tables belong
together. In every micro-batch, it tells the sink the end positions.

The end positions come from Spark's offset log. Spark writes it before it runs a micro-batch, and
reads it when it repeats the micro-batch after a crash. So the positions belong to exactly these rows, and
every attempt has the same ones.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geartrain.adapters.files import fsync_path, write_private
from geartrain.adapters.layouts import FileLayout
from geartrain_cloud.sinks.store import is_reached
from geartrain_cloud.spark.buckets import BUCKETS
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.errors import QueryError, RefusedError

WAYS_OUT = (
    "bring the checkpoint back from a copy, make it again from the log with --restore, or empty it and the "
    "tables with --reset"
)
"""How a sentence ends that refuses a checkpoint."""

_OFFSETS_VERSION = "v1"
LAYOUT = FileLayout("geartrain-state", 1, QueryError, "begin with another state folder, log and tables")
_FORM = {"buckets": BUCKETS, "layout": LAYOUT.text}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint of one query in `folder`, which holds `identity.json` and Spark's own folder `spark`.

    identity: minted with it; shards: into how many its keys are dealt, for its life; restored: for one that
    was made again, the positions at which the stores stand, ascending: micro-batches end there, and what they
    give up to there is in the stores already.
    """

    query: str
    folder: Path
    identity: str
    shards: int
    restored: tuple[Mapping[str, int], ...] = ()

    @property
    def location(self) -> Path:
        """Spark's `checkpointLocation`."""
        return self.folder / "spark"

    @property
    def has_run(self) -> bool:
        """Whether a micro-batch was completed."""
        commits = self.location / "commits"
        return commits.is_dir() and any(name.name.isdecimal() for name in commits.iterdir())

    def clear_drafts(self) -> None:
        """Remove what stands there before the first micro-batch, for Spark begins a query with empty folders
        only. A kill in the first micro-batch leaves files that are half written. Tasks of a failed query may
        write state after its checkpoint was set aside. With an offset log that is whole nothing is removed.

        Raises `QueryError`.
        """
        found = [one for name in ("offsets", "commits") for one in (self.location / name).glob("*")]
        if any(one.name.isdecimal() for one in found):
            return
        for one in found:
            try:
                one.unlink(missing_ok=True)
            except OSError as error:
                raise QueryError(
                    f"query {self.query!r}: {one} cannot be removed ({error.strerror or error}): remove it"
                ) from None
        # A task that writes meanwhile leaves something: Spark then refuses to start, and is started again.
        shutil.rmtree(self.location / "state", ignore_errors=True)
        if self.location.exists():  # or a loss of power brings back what later micro-batches do not replace
            fsync_path(self.location)

    def is_catching_up(self, positions: Mapping[str, int]) -> bool:
        """Whether a micro-batch that ends at `positions` only makes again what a store holds."""
        return bool(self.restored) and is_reached(self.restored[-1], positions)

    def positions(self, batch_id: int) -> dict[str, int]:
        """The positions at which micro-batch `batch_id` ends; those of -1 are where the query begins.

        Raises `QueryError` for an offset log that is not there or is not of the known form.
        """
        if batch_id < 0:
            return {}
        path = self.location / "offsets" / str(batch_id)
        try:
            version, _, *sources = path.read_text(encoding="utf-8").splitlines()
            (offsets,) = (json.loads(line) for line in sources)
            if version != _OFFSETS_VERSION or not isinstance(offsets, dict):
                raise ValueError(f"its version is {version!r}")
            return {str(key): int(position) for key, position in offsets.items()}
        except (OSError, ValueError) as error:
            raise QueryError(
                f"query {self.query!r}: Spark's offset log {path} cannot be read ({error}): start the "
                "platform again, which mends the checkpoint"
            ) from None


def open_checkpoint(
    folder: Path, query: Query, shards: int, restored: Sequence[Mapping[str, int]] = ()
) -> Checkpoint:
    """The checkpoint in `folder`, made there if there is none; `shards` and `restored` count only then.

    Raises `QueryError` when it was made for another flow or cut, or is not whole.
    """
    path = folder / "identity.json"
    wanted = _made_for(query)
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise RefusedError(
                f"query {query.name!r}: {folder} holds a checkpoint without its identity.json: {WAYS_OUT}"
            )
        checkpoint = Checkpoint(query.name, folder, secrets.token_hex(16), shards, tuple(restored))
        content = wanted | {"identity": checkpoint.identity, "shards": shards} | _FORM
        if restored:
            content["restored"] = [dict(one) for one in restored]
        write_private(path, json.dumps(content, indent=1) + "\n")
        return checkpoint
    held = _read(path, query.name)
    LAYOUT.check(held.get("layout"), f"query {query.name!r}: {path}")
    if {what: held.get(what) for what in _FORM} != _FORM:
        raise QueryError(f"query {query.name!r}: {path} is of another release: begin anew with --reset")
    for what, value in wanted.items():
        if held.get(what) != value:
            raise QueryError(
                f"query {query.name!r}: the checkpoint in {folder} was made for {what} "
                f"{_shown(held.get(what))}, this run has {_shown(value)}: run it as before, use another "
                "state folder, or begin anew with --reset"
            )
    restored = tuple(held.get("restored", ()))
    return Checkpoint(query.name, folder, str(held["identity"]), int(held["shards"]), restored)


def remove_checkpoint(folder: Path) -> None:
    """Delete a checkpoint; the query then begins anew. Raises `QueryError`."""
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise QueryError(f"the checkpoint {folder} cannot be removed ({error.strerror or error})") from None


def _made_for(query: Query) -> dict[str, Any]:
    """Whose checkpoint it is, and the form of Spark's part; what else must be the same says the revision."""
    return {
        "flow": query.graph.name,
        "stages": [" ".join(sorted(stage.steps)) for stage in query.stages],
    }


def _read(path: Path, query: str) -> Mapping[str, Any]:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(held, dict) and {"identity", "shards"} <= held.keys():
            return held
        raise ValueError("it has no identity")
    except (OSError, ValueError) as error:
        raise RefusedError(f"query {query!r}: {path} cannot be read ({error}): {WAYS_OUT}") from None


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
