"""The tree keeps the house's rules: file by file, and what the distributions say of themselves."""

from __future__ import annotations

import gc
import re
import tomllib
import warnings
from typing import Any

import pytest

from tests.tidy import rules
from tests.tidy.packages import wrong_imports
from tests.tidy.rules import Rule
from tests.tidy.source import PARTS, ROOT, Source, python_files, readable_files

IMPORT_NAMES = {
    "protobuf": "google",
    "grpcio-tools": "grpc_tools",
    "types-protobuf": "google",
    "pytest-xdist": "xdist",
    "pyserial": "serial",
    "types-pyserial": "serial",
}
"""Distributions whose package has another name; elsewhere a dash becomes an underscore."""

# Written so that this file does not hold what it looks for.
MACHINE_PATH = re.compile(r"(?<![\w.:~<>{}\"'-])/(?:work|root|home/[a-z]\w*|Users/\w+)/")


class LongModuleWarning(UserWarning):
    """What pytest prints at the end of a run, and does not fail on."""


@pytest.fixture(scope="module")
def tree() -> list[Source]:
    sources = python_files()
    gc.disable()  # or it goes again and again through the nodes of all files, of which none is garbage
    try:
        assert all(source.nodes for source in sources)
    finally:
        gc.enable()
    return sources


def project_of(folder: str) -> dict[str, Any]:
    with (ROOT / folder / "pyproject.toml").open("rb") as file:
        project: dict[str, Any] = tomllib.load(file)["project"]
    return project


def requirements_of(folder: str) -> list[str]:
    project = project_of(folder)
    extras = project.get("optional-dependencies", {}).values()
    return [*project["dependencies"], *(line for extra in extras for line in extra)]


def name_of(requirement: str) -> str:
    return re.split(r"[^\w-]", requirement.strip(), maxsplit=1)[0]


def import_name(requirement: str) -> str:
    name = name_of(requirement)
    return IMPORT_NAMES.get(name, name.replace("-", "_"))


def declared_imports() -> dict[str, frozenset[str]]:
    """For each package, what it may import by its own pyproject.toml and those of the parts it depends on."""
    direct = {package: {import_name(one) for one in requirements_of(part)} for part, package in PARTS.items()}
    closed = {
        package: frozenset(wanted.union(*(direct[other] for other in wanted & direct.keys())))
        for package, wanted in direct.items()
    }
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    tools = {import_name(line) for line in lines if line and not line.startswith("#")}
    return closed | {"tests": frozenset(tools.union(*closed.values()))}


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps(rule: Rule, tree: list[Source]) -> None:
    assert [offence for source in tree for offence in rule(source)] == []


def test_packages_import_only_what_lies_below_them(tree: list[Source]) -> None:
    assert list(wrong_imports(tree)) == []


def test_long_modules_are_said(tree: list[Source]) -> None:
    for source in tree:
        for warning in rules.long_module(source):
            warnings.warn(warning, LongModuleWarning, stacklevel=1)
    assert rules.long_module not in rules.RULES


def test_every_import_is_declared(tree: list[Source]) -> None:
    declared = declared_imports()
    assert [offence for source in tree for offence in rules.undeclared(source, declared)] == []


def test_tree_is_seen_whole(tree: list[Source]) -> None:
    assert {source.package for source in tree} >= {*PARTS.values(), "tests"}
    assert all((ROOT / folder / package / "py.typed").is_file() for folder, package in PARTS.items())


def test_distributions_are_in_step() -> None:
    assert {project_of(folder)["version"] for folder in PARTS} == {"0.2.0"}
    for folder, package in PARTS.items():
        assert project_of(folder)["name"] == package.replace("_", "-")
        ours = [line for line in requirements_of(folder) if import_name(line) in PARTS.values()]
        assert all(line.endswith("==0.2.0") for line in ours), f"{folder}: {ours}"


def test_changelog_speaks_of_the_version() -> None:
    heads = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(heads) & {"Unreleased", "0.2.0"}, heads


def test_protocol_and_edge_bring_nothing_heavy() -> None:
    light = {"msgspec", "protobuf", "aiomqtt", "geartrain", "geartrain-devices"}
    for folder in ("protocol", "devices", "edge"):
        assert {name_of(line) for line in project_of(folder)["dependencies"]} <= light
    assert {name_of(line) for line in project_of("examples")["dependencies"]} <= light
    assert {name_of(line) for line in project_of("client")["dependencies"]} <= light | {
        "cryptography",
        "packaging",
        "securesystemslib",
        "tuf",
        "tzdata",
        "typer",
        "rich",
    }


@pytest.mark.parametrize("text", ["see /{}/x", "(/{}/x)", "cd /{}/", "`/{}/x`"])
@pytest.mark.parametrize("place", ["work", "root", "home/ann", "Users/ann"])
def test_machine_path_is_found(text: str, place: str) -> None:
    assert MACHINE_PATH.search(text.format(place))


@pytest.mark.parametrize(
    "text", ["a/work/b", "http://x/root/", "~/home/x/", "/homepage/", "/usr/bin/", "./work/"]
)
def test_other_paths_pass(text: str) -> None:
    assert not MACHINE_PATH.search(text)


def test_no_file_holds_a_path_of_one_machine() -> None:
    found = [
        f"{path}:{number} {line.strip()}"
        for path, text in readable_files()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert found == []
