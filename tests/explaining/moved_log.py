"""A log of a random flow whose devices have taken steps with state, and left them to the data centre."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from geartrain.planning import Plan
from geartrain_cloud.ports import LedgerChange, StoredSchema
from tests.hosting.in_process import APP
from tests.hosting.test_claimed_state import LiveLog, draw
from tests.reference.flows import Case, drawn
from tests.reference.moving_flows import moving_cases
from tests.reference.revised_flows import Revised


class _AnnouncedLog(LiveLog):
    """One whose ledger knows the schemas of its channels."""

    def __init__(self, folder: Path, flow: Revised, rng: random.Random, own: list[list[Plan]]) -> None:
        super().__init__(folder, flow, rng, own)
        schemas = {channel: codec.schema for channel, codec in self._codecs.items()}
        stored = [StoredSchema(APP, c, s.schema_id, s.to_json()) for c, s in schemas.items()]
        self._loop.run_until_complete(self._ledger.commit(self._term, LedgerChange(schemas=stored)))


@dataclass
class Moved:
    """Where the log is, the plan by which it was read, and the cuts for which that was made."""

    case: Case
    log: Path
    plan: Plan
    base: str
    cuts: tuple[str, ...]


def moved_logs(folder: Path, seed: int, count: int, seen: Counter[str]) -> Iterator[Moved]:
    """Those of some flows; seen: gets how many cells devices have taken and left."""
    for number, case in enumerate(drawn(moving_cases(), seed, count)):
        one = draw(case, folder / str(number), Counter(), _AnnouncedLog)
        try:
            one.run.run()
        finally:
            one.run.log.close()
        seen["taken"] += sum(sender.device.taken for sender in one.run.log.senders)
        seen["left"] += sum(sender.device.cells for sender in one.run.log.senders)
        base, *others = (",".join(cut) for cut in (one.base, *one.cuts))
        yield Moved(case, folder / str(number) / "log", one.plan, base, tuple(others))
