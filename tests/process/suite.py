"""The fault suite: every scenario by its name, run one after the other, and what came of each as one table.

`python -m tests.process.suite` is what `make faults` runs. Guarantees: one failure does not keep the others
from running; the table and the JSON file hold the same; the exit code is 1 where a scenario failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.process.catalogue import SCENARIOS
from tests.process.oracle import Account
from tests.process.registry import HELD, Outcome, Scenario
from tests.process.world import World, opened

LIMIT_S = 1_800.0
ROOT = Path(__file__).resolve().parents[2]


def play(one: Scenario, folder: Path, seed: int, *, small: bool) -> Outcome:
    """Play a scenario in a world of its own, in a fresh `folder`."""
    began_s, worlds = time.monotonic(), list[World]()

    async def whole() -> Account:
        async with asyncio.timeout(LIMIT_S), opened(folder, seed, small=small) as world:
            worlds.append(world)
            return await one.play(world)

    account, verdict = Account(), HELD
    try:
        account = asyncio.run(whole())
    except Exception as error:  # one line of the table says so; the others run on
        verdict = f"{type(error).__name__}: {error}" if not isinstance(error, AssertionError) else str(error)
    recovery_s = worlds[0].recovery_s if worlds else []
    notes = worlds[0].notes if worlds else {}
    return Outcome(one.name, account, recovery_s, verdict or "failed", time.monotonic() - began_s, notes)


COLUMNS = (
    ("accepted", "accepted"),
    ("delivered", "delivered"),
    ("lost", "lost"),
    ("duplicated", "duplicated"),
    ("reordered", "reordered"),
    ("declared_dropped", "declared_dropped"),
    ("quarantined", "quarantined"),
    ("dead_lettered", "dead_lettered"),
)


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a table of text."""
    head = ["scenario", *(title for _, title in COLUMNS), "recovery_s", "verdict"]
    lines = [head]
    for one in outcomes:
        counts = [str(getattr(one.account, name)) for name, _ in COLUMNS]
        lines.append([one.scenario, *counts, recovered(one), one.verdict.split("\n")[0][:100]])
    widths = [max(len(line[n]) for line in lines) for n in range(len(head) - 1)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:], strict=True)]
            + [line[-1]]
        )
        for line in lines
    )


def recovered(one: Outcome) -> str:
    """The longest of the times until rows came again."""
    return f"{max(one.recovery_s):.2f}" if one.recovery_s else "-"


def machine() -> dict[str, Any]:
    """Where and when the run was made."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def report(outcomes: Sequence[Outcome], seed: int, path: Path) -> None:
    """Write the outcomes as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "seed": seed,
        "machine": machine(),
        "scenarios": [
            {
                "scenario": one.scenario,
                **asdict(one.account),
                "recovery_s": [round(value, 3) for value in one.recovery_s],
                "seconds": round(one.seconds, 1),
                "verdict": one.verdict,
                "notes": one.notes,
            }
            for one in outcomes
        ],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def chosen(only: Sequence[str], *, few: bool) -> list[Scenario]:
    """The scenarios whose names hold one of the words, or all; few: of those that the proofs run."""
    return [
        one
        for one in SCENARIOS.values()
        if (one.small or not few) and (not only or any(word in one.name for word in only))
    ]


def end_on_sigterm() -> None:
    """Have SIGTERM end a run as Ctrl-C does, so that it leaves no program behind."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; returns the exit code."""
    parser = argparse.ArgumentParser(prog="faults", description="Run the fault suite on real processes.")
    parser.add_argument("words", nargs="*", help="run the scenarios whose name holds one of these")
    parser.add_argument("--small", action="store_true", help="fewer records, shorter faults: seconds each")
    parser.add_argument("--few", action="store_true", help="those alone that make proofs runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--json", type=Path, default=ROOT / "build" / "faults.json", help="where the report goes"
    )
    options = parser.parse_args(arguments)
    end_on_sigterm()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        for number, one in enumerate(chosen(options.words, few=options.few)):
            outcome = play(one, Path(folder) / str(number), options.seed, small=options.small)
            outcomes.append(outcome)
            report(
                outcomes, options.seed, options.json
            )  # so far: a run that is ended early leaves what it has
            print(
                f"{outcome.seconds:7.1f} s  {outcome.scenario}: {outcome.verdict}",
                file=sys.stderr,
                flush=True,
            )
    print(table(outcomes))
    return 0 if outcomes and all(one.held for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
