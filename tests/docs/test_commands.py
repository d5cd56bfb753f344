"""The commands that the pages for a newcomer name are there, and `make help` lists them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md")


def targets() -> set[str]:
    """What the Makefile declares as commands."""
    (line,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(line.split())


def test_make_help_lists_every_target() -> None:
    said = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = [line.split()[1] for line in said.splitlines()]
    assert set(listed) == targets()
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("page", PAGES)
def test_every_make_command_of_the_page_is_a_target(page: str) -> None:
    text = (ROOT / page).read_text()
    blocks = "\n".join(text.split("```")[1::2])
    named = {
        *re.findall(r"^(?:\w+=\S+ )?make ([a-z-]+)", blocks, re.MULTILINE),
        *re.findall(r"`make ([a-z-]+)", text),
    }
    assert named
    assert named <= targets()
