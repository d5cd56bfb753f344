"""`gear run`: a whole flow in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from geartrain.flow.loading import load_flow
from geartrain.printable import printable
from geartrain_cloud.cli.inprocess import RunResult, run_in_process
from geartrain_cloud.cli.screen import notices, print_json, results, table_of


def run_flow(
    flow: str, settings: Mapping[str, Mapping[str, Any]], output: Path | None, *, as_json: bool
) -> None:
    """Run the flow and print its counts and dead letters; raises `GeartrainError`."""
    graph = load_flow(flow).graph().with_options(settings)
    result = run_in_process(graph, output)
    if as_json:
        print_json(asdict(result))
        return
    _print(result)
    if output is not None:
        names = ", ".join(f"{name}.json" for name in result.rows)
        notices().print(f"written to {output}: tables.sqlite, {names}")


def _print(result: RunResult) -> None:
    out = results()
    lines = [[name, f"{count:,}"] for name, count in result.rows.items()]
    out.print(
        f"read {result.records_read:,} records; late {result.late:,}; dead letters {result.dead_letters:,}"
    )
    out.print(table_of("", ["table", "rows"], lines, numbers=[1]))
    for letter in result.refused:
        out.print(f"refused by {letter['step']}: {printable(letter['reason'])}")
    if result.dead_letters > len(result.refused):
        out.print(f"and {result.dead_letters - len(result.refused):,} more")
