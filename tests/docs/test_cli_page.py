"""docs/cli.md names every command, every option and every exit code, and its examples can be read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.core import TyperGroup
from typer.main import get_command

from geartrain_client import cli
from geartrain_client.cli.app import app

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def commands(path: tuple[str, ...] = (), command: Any = None) -> dict[tuple[str, ...], Any]:
    """Every command of `gear` but the demos, which packages bring with them."""
    command = get_command(app) if command is None else command
    if not isinstance(command, TyperGroup):
        return {path: command}
    found: dict[tuple[str, ...], Any] = {}
    for name in command.list_commands(Context(command)):
        if name != "demo":
            found |= commands((*path, name), command.get_command(Context(command), name))
    return found


def test_every_command_and_option_is_on_the_page_and_no_other() -> None:
    rows = dict(re.findall(r"^\| `(gear [^`]*)` \|.*?\| ([^|]*(?:\\\|[^|]*)*) \|$", PAGE, re.MULTILINE))
    written = {}
    for usage, options in rows.items():
        words = [word for word in usage.split()[1:] if word == word.lower()]
        written[tuple(words)] = set(re.findall(r"`(--[a-z-]+)", options))
    there = {
        path: {max(one.opts, key=len) for one in command.params if one.param_type_name == "option"}
        for path, command in commands().items()
    }
    assert written == there


def test_every_exit_code_is_on_the_page() -> None:
    codes = {value for name, value in vars(cli).items() if name.startswith("EXIT_")}
    assert codes == {0, 1, 2, 3}
    for code in codes:
        assert re.search(rf"^\| {code} \|", PAGE, re.MULTILINE)
    assert "| 130, 143 |" in PAGE


@pytest.mark.parametrize("line", re.findall(r"^gear .*$", PAGE, re.MULTILINE))
def test_examples_name_commands_and_options_that_there_are(line: str) -> None:
    words = shlex.split(line)[1:]
    path, command = next((p, c) for p, c in commands().items() if tuple(words[: len(p)]) == p)
    assert command.make_context("gear", words[len(path) :]).params
