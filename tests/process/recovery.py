"""Recovery figures: each recovery so many times on real processes, and one table with its bars.

`python -m tests.process.recovery` is what `scripts/recovery` runs. Guarantees: a recovery that fails does not
keep the others from running; table and JSON file hold the same; the exit code is 1 where a record was lost or
doubled, or a run did not come to its end, and 3 where all is there but p95 is above a bar.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from geartrain_cloud.broker import find_mosquitto
from tests.process import repairs, returns, sparks
from tests.process.oracle import Account
from tests.process.registry import HELD
from tests.process.suite import LIMIT_S, ROOT, end_on_sigterm, machine
from tests.process.timings import RECOVERIES, Figure, Recovery, Runs, table
from tests.process.world import opened

__all__ = ["RECOVERIES", "measure", "repairs", "returns", "sparks"]

RUNS = 20
EXIT_OK, EXIT_FAILED, EXIT_ABOVE = 0, 1, 3


def measure(one: Recovery, folder: Path, runs: Runs, seed: int = 1) -> list[Figure]:
    """Run a recovery in a world of its own, in a fresh `folder`: its figure, and those of other moments."""

    async def whole() -> Account:
        async with asyncio.timeout(LIMIT_S), opened(folder, seed, small=runs.small) as world:
            return await one.play(world, runs)

    account, verdict = Account(), HELD
    try:
        account = asyncio.run(whole())
    except Exception as error:  # its line says so; the others run on
        verdict = f"{type(error).__name__}: {error}" if not isinstance(error, AssertionError) else str(error)
    figures = [Figure(one.name, tuple(runs.seconds), one.bar_s, account, verdict or "failed")]
    return figures + [
        Figure(name, tuple(seconds), None, account, verdict) for name, seconds in runs.beside.items()
    ]


def versions() -> dict[str, str]:
    """Of what ran."""
    found = {name: version(name) for name in ("geartrain", "aiomqtt", "protobuf", "pyarrow", "pyspark")}
    if broker := find_mosquitto():
        said = subprocess.run([broker, "-h"], capture_output=True, text=True, check=False).stdout
        found["mosquitto"] = said.split("\n")[0].rpartition(" ")[2]
    if git := shutil.which("git"):
        command = [git, "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
        found["commit"] = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return found


def report(figures: Sequence[Figure], begin: dict[str, Any], path: Path) -> None:
    """Write the figures as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": {**begin, "load_at_end": machine()["load"]},
        "versions": versions(),
        "recoveries": [figure.content() for figure in figures],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _keep_byte_code(folder: Path) -> None:
    """Have programs find themselves compiled from their second start on, as those do that are installed."""
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recoveries; returns the exit code."""
    parser = argparse.ArgumentParser(prog="recovery", description="How long recoveries take, as one table.")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="those with this in it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--small", action="store_true", help="smaller spools and logs: says nothing of the bars"
    )
    parser.add_argument(
        "--json", type=Path, default=ROOT / "build" / "recovery.json", help="where the report goes"
    )
    options = parser.parse_args(arguments)
    end_on_sigterm()
    begin, figures = machine(), list[Figure]()
    chosen = [r for r in RECOVERIES.values() if not options.only or any(w in r.name for w in options.only)]
    with tempfile.TemporaryDirectory(prefix="recovery-", ignore_cleanup_errors=True) as folder:
        _keep_byte_code(Path(folder) / "byte-code")
        for number, one in enumerate(chosen):
            runs = Runs(options.runs, options.small)
            figures += measure(one, Path(folder) / str(number), runs, options.seed)
            report(figures, begin, options.json)  # so far: a run that is ended early leaves what it has
            print(table(figures[-1:]).split("\n")[1], file=sys.stderr, flush=True)
    print(table(figures))
    print(f"load {begin['load']} at the beginning, {machine()['load']} at the end, {begin['cores']} cores")
    if not figures or not all(figure.held for figure in figures):
        return EXIT_FAILED
    return EXIT_OK if all(figure.is_within for figure in figures) else EXIT_ABOVE


if __name__ == "__main__":
    sys.exit(main())
