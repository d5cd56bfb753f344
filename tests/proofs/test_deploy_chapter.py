"""The chapter on a flow of one's own: its commands as they stand, with three devices that join as processes.

Its tables are compared with plain Python over the sample.
"""

from __future__ import annotations

import csv
import io
import time
from contextlib import ExitStack
from pathlib import Path
from sys import executable

import pytest

from tests.docs.readme_chapter import Shell, minutes, wait_until_up
from tests.ports import free_port
from tests.tidy.source import ROOT
from tests.waiting import Wait

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.mosquitto]

CHAPTER = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8").partition("### On real devices")[0]
COMMANDS = [line for block in CHAPTER.split("```")[1::2] for line in block.splitlines() if line.strip()]
DEVICES = ("hall", "yard", "boiler")


def rows_until(shell: Shell, table: str, sensor: str) -> dict[tuple[str, str], tuple[int, float, float]]:
    """The rows of a table once one of `sensor` is there."""
    wait = Wait(f"a row of {sensor} in {table}")
    while True:
        said = csv.DictReader(io.StringIO(shell.run(f"gear table heat {table} --csv")))
        found = {
            (one["sensor"], one["window_start"]): (
                int(one["readings"]), float(one["mean"]), float(one["highest"])
            )
            for one in said
        }  # fmt: skip
        if any(name == sensor for name, _ in found):
            return found
        wait.check(shell.said())
        time.sleep(0.5)


def test_a_flow_of_ones_own_runs_on_three_devices_and_is_updated(tmp_path: Path) -> None:
    new, own_test, plan, folder, config, up, key, *rest = COMMANDS
    adds, (join, agent, split, submit, follow, edit, dry_run, update, follow_hot) = rest[:3], rest[3:]
    tools = Path(executable).parent
    Shell(tmp_path, tools).run(new)
    shell = Shell(tmp_path / "heat", tools)
    wanted = minutes(tmp_path / "heat" / "data" / "readings.csv")
    assert "3 passed" in shell.run(own_test)
    assert "degC" in shell.run(plan)
    for command in (folder, config):
        shell.run(command)
    with (tmp_path / "heat/.local/state/geartrain/platform/platform.toml").open("a") as file:
        file.write(f"mqtt_port = {free_port()}\ndevice_port = {free_port()}\n")  # others may have the usual
    with shell.beside(up):
        wait_until_up(shell)
        for command in (key, *adds):
            shell.run(command)
        with ExitStack() as agents:
            for device in DEVICES:
                shell.run(join.replace("hall", device))
                agents.enter_context(shell.beside(agent.replace("hall", device)))
            shell.run(split)
            assert "applied by 3 of 3 devices" in shell.run(submit)
            found = rows_until(shell, "minutes", "hall")
            assert found.items() <= wanted.items()
            assert "degC" in shell.run("gear info heat")
            shell.run(edit)
            assert "nothing was changed" in shell.run(dry_run)
            shell.run(update)
            hot = rows_until(shell, "hot", "hall")
            assert hot.items() <= wanted.items()
            assert all(highest > 20.0 for _, _, highest in hot.values())
            assert (follow, follow_hot) == (
                "gear table heat minutes --follow",
                "gear table heat hot --follow",
            )
            shell.run("gear kill heat --now")
