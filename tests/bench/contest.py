"""A work whose contenders all make the same results of the same rows: timed by CPU, compared afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geartrain.planning import Plan
from tests.bench.at_the_edge import run_agent, run_runtime, spooled
from tests.bench.harness import Absent, Contender, Work, fsync_us, peer, rate

LOOP, RUNTIME, AGENT = "loop", "runtime", "agent to its spool"

Run = Callable[[Any], Sequence[Any]]
Order = Callable[[Any], Any]


@dataclass
class Contest:
    """`count` records: a loop, the runtime and the agent over the plan that `plan` makes, and the peers.

    channel: where the plan's results leave; slow: peers that get the first tenth of the rows only; missing:
    those that cannot do it, and why.
    """

    name: str
    count: int
    rows: Any
    loop: Run
    plan: Callable[[Any], Plan]
    channel: str
    peers: Mapping[str, Run]
    slow: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)

    def run(self, folder: Path, goals: Mapping[str, Mapping[str, float]], order: Order | None) -> list[Any]:
        """Measure, and compare all results with those of the loop, sorted by `order` (None: as they came)."""
        found: dict[str, Sequence[Any]] = {}
        spools: list[Path] = []
        plan = self.plan(self.rows)

        def timed(name: str, run: Run) -> Contender:
            part = self.count // 10 if name in self.slow else self.count
            rows = self.rows[:part]
            return lambda: rate(part, lambda: found.update({name: run(rows)}))

        def agent() -> float:
            spools.append(folder / f"agent-{len(spools)}")
            return rate(self.count, lambda: run_agent(plan, spools[-1]))

        contenders: dict[str, Contender | Absent] = {
            LOOP: timed(LOOP, self.loop),
            RUNTIME: timed(RUNTIME, lambda rows: run_runtime(plan)[self.channel]),
            AGENT: agent,
        }
        for name, run in self.peers.items():
            contenders[name] = peer(name, lambda name=name, run=run: timed(name, run))  # type: ignore[misc]
        contenders |= {name: Absent(reason) for name, reason in self.missing.items()}
        against = (LOOP, "bytewax") if "bytewax" in self.peers else (LOOP,)
        work = Work(
            self.name, "krec/cpu-s", contenders, against, versions=("msgspec", *self.peers), goals=goals
        )
        work.notes += [f"{name}: the first tenth of the records only" for name in sorted(self.slow)]
        work.notes.append(f"an fsync on this disk: {fsync_us(folder):.0f} us")
        work.run()
        found[AGENT] = spooled(plan, spools[-1])[self.channel]

        def ordered(results: Sequence[Any]) -> list[Any]:
            return list(results) if order is None else sorted(results, key=order)

        expected = ordered(found[LOOP])
        begun = ordered(self.loop(self.rows[: self.count // 10])) if self.slow else []
        for name, results in found.items():
            right = begun if name in self.slow else expected
            assert ordered(results) == right, f"{self.name}: {name} has other results than the loop"
        return expected
