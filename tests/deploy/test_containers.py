"""Compose and Dockerfiles: valid by their schema and linter, and with no more rights than they need."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.containers import COMPOSE, DOCKERFILES, ROOT, SETUP, services

PROGRAMS = tomllib.loads((ROOT / "cloud" / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "scripts"
]


def test_the_compose_file_is_valid_by_the_schema_of_its_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(COMPOSE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_refuses_a_key_that_is_none(tmp_path: Path) -> None:
    spoiled = tmp_path / "compose.yaml"
    spoiled.write_text(COMPOSE.read_text(encoding="utf-8").replace("read_only:", "readonly:"))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(spoiled)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "readonly" in done.stdout


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.parent.name)
def test_a_dockerfile_has_nothing_that_its_linter_objects_to(file: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([str(hadolint), str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.parent.name)
def test_an_image_is_made_of_wheels_and_runs_as_nobody_special(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]
    assert "--no-index --find-links /wheels" in text
    [venv] = re.findall(r"python -m venv (\S+)", text)
    compiled = f"compileall -q --invalidation-mode unchecked-hash /usr/local/lib/python3.11 {venv}/lib "
    assert compiled in text  # what is known by its source's time would be compiled anew where it is copied
    copied = set(re.findall(r"^COPY (\S+) ", text, re.MULTILINE))
    named = set(
        re.findall(r"^!(\S+)$", (file.parent / "Dockerfile.dockerignore").read_text("utf-8"), re.MULTILINE)
    )
    assert copied <= named
    for part in copied:
        assert (ROOT / part / "pyproject.toml").is_file()


def test_each_process_has_a_container_without_rights() -> None:
    found = services()
    assert {"broker", "postgres", "control", "ingest", "downlink", "spark"} <= found.keys()
    for name, one in found.items():
        assert one["security_opt"] == ["no-new-privileges:true"], name
        if name == "postgres":  # its own start gives its files to its user, and then drops all rights
            continue
        assert one["cap_drop"] == ["ALL"], name
        assert one["read_only"] is True, name
        if name != "volumes":
            assert one["user"] == "10001:10001", name
            assert "cap_add" not in one, name
    for name in ("control", "ingest", "downlink", "spark"):
        assert found[name]["command"][0] in PROGRAMS


def test_no_port_of_an_operator_is_open_to_others() -> None:
    ports = {name: one["ports"] for name, one in services().items() if "ports" in one}
    assert ports == {"broker": ["8883:8883"], "control": ["127.0.0.1:8764:8764", "8443:8443"]}


def test_setup_is_a_script_for_any_shell() -> None:
    done = subprocess.run(["sh", "-n", str(SETUP)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_setup_without_an_address_says_what_it_wants(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", str(SETUP)],
        env={"PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "give the name or address by which devices reach this machine" in done.stderr
