"""branch: one of the named branches of a split, the records that its function names for it, untouched.

A split of n branches is n such steps on one stream, so that each may stand on its own tier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from geartrain.errors import USER_ERRORS
from geartrain.graph.conform import raised_letter
from geartrain.graph.operator import Plain, Services, StreamProperties, Transform
from geartrain.records.batch import Batch


class Branch(Plain, frozen=True):
    """Keep the records for which `function` returns `name`, one of `branches`.

    A record for which the function raises or names no branch is a dead letter, of the first branch only.
    """

    function: Callable[[Any], str]
    name: str
    branches: tuple[str, ...]
    kind = "branch"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order and domain are kept; keys are not."""
        return replace(inputs[0], key_local=False, key_order=False)

    def open(self, services: Services) -> Transform:
        """A function from a batch to the batch of the records of this branch."""
        first = self.name == self.branches[0]

        def run(batch: Batch) -> Batch:
            kept = []
            for row, value in enumerate(batch.values):
                try:
                    branch = self.function(value)
                    if branch == self.name:
                        kept.append(row)
                    elif branch not in self.branches:
                        raise ValueError(f"there is no branch {branch!r}, only {', '.join(self.branches)}")
                except USER_ERRORS as error:
                    if first:
                        services.reject(raised_letter(services, batch, row, error))
            return batch if len(kept) == len(batch) else batch.take(kept)

        return run
