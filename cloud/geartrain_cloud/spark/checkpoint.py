"""A query's checkpoint: where it is, and the positions at which its micro-batches end.

It stands beside the record's path. In every micro-batch, it tells the sink the end positions.

The end positions come from Spark's offset log. Spark writes it before it runs a micro-batch, and
reads it when it repeats the micro-batch after a crash. So the positions belong to exactly these rows, and
every attempt has the same ones.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from geartrain.adapters.files import fsync_path
from geartrain_cloud.spark.errors import QueryError

_OFFSETS_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint of one query in `folder`, which holds Spark's own folder `spark`. query: what sentences
    call the query.
    """

    query: str
    folder: Path

    @property
    def location(self) -> Path:
        """Spark's `checkpointLocation`."""
        return self.folder / "spark"

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
                    f"{self.query}: {one} cannot be removed ({error.strerror or error}): remove it"
                ) from None
        # A task that writes meanwhile leaves something: Spark then refuses to start, and is started again.
        shutil.rmtree(self.location / "state", ignore_errors=True)
        if self.location.exists():  # or a loss of power brings back what later micro-batches do not replace
            fsync_path(self.location)

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
                f"{self.query}: Spark's offset log {path} cannot be read ({error}): start the "
                "platform again, which mends the checkpoint"
            ) from None
