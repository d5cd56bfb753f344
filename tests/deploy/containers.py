"""The compose file and the Dockerfiles, as they are read by tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
SETUP = ROOT / "deploy" / "compose" / "setup.sh"
DOCKERFILES = tuple(sorted((ROOT / "deploy" / "images").glob("*/Dockerfile")))


def services() -> dict[str, dict[str, Any]]:
    """The services of the compose file, with what they share."""
    found = YAML(typ="safe", pure=True).load(COMPOSE.read_text(encoding="utf-8"))
    return {name: dict(one) for name, one in found["services"].items()}
