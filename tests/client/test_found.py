"""Commands that other packages bring: found by the entry-point group, and one sentence where they are not."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import typer

from geartrain_client.cli import found, main
from geartrain_client.cli.found import ELSEWHERE, GROUP
from tests.tidy.source import ROOT

Capture = pytest.CaptureFixture[str]

one = typer.Typer()


@one.command()
def alone(word: str = "nothing") -> None:
    """Say a word.

    \b
    Example:
      gear speak --word yes
    """
    typer.echo(f"said {word}")


several = typer.Typer(help="Two of them.")


@several.command()
def first() -> None:
    """Say first."""
    typer.echo("first")


@several.command()
def second() -> None:
    """Say second."""
    typer.echo("second")


def offer(monkeypatch: pytest.MonkeyPatch, **points: str | tuple[str, ...]) -> None:
    """As if packages with these entry points were installed, and no other."""
    offered = [
        EntryPoint(name, value, GROUP)
        for name, values in points.items()
        for value in ([values] if isinstance(values, str) else values)
    ]

    def entry_points(**chosen: Any) -> list[EntryPoint]:
        assert chosen == {"group": GROUP}
        return offered

    monkeypatch.setattr(found, "entry_points", entry_points)


def gear(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_table_of_what_is_elsewhere_is_that_of_the_entry_points() -> None:
    for distribution, names in ELSEWHERE.items():
        folder = distribution.removeprefix("geartrain-")
        with (ROOT / folder / "pyproject.toml").open("rb") as file:
            declared = tomllib.load(file)["project"]["entry-points"][GROUP]
        assert sorted(declared) == sorted(names), f"cli/found.py and {folder}/pyproject.toml differ"


def test_a_command_and_a_group_are_run_by_the_names_of_their_entry_points(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    offer(monkeypatch, speak=f"{__name__}:one", words=f"{__name__}:several")
    assert gear(capsys, "speak", "--word", "yes") == (0, "said yes\n", "")
    assert gear(capsys, "words", "second") == (0, "second\n", "")
    code, out, _ = gear(capsys, "--help")
    assert code == 0
    assert "  speak" in out
    assert "  words" in out
    code, out, _ = gear(capsys, "speak", "--help")
    assert (code, "Usage: gear speak [OPTIONS]" in out, "completion" in out) == (0, True, False)
    assert gear(capsys, "speak", "--wrod", "yes")[2] == (
        "gear: speak: there is no option --wrod: the options of speak are --word, --help\n"
    )


@pytest.mark.parametrize("arguments", [(), ("--help",), ("stocks", "--devices", "3"), ("-h",)])
def test_what_is_not_installed_is_one_sentence_that_says_what_to_install(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    offer(monkeypatch)
    sentence = (
        "gear: gear demo needs geartrain-cloud, which is not installed: run pip install geartrain-cloud\n"
    )
    assert gear(capsys, "demo", *arguments) == (2, "", sentence)


def test_help_names_what_more_there_is_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    offer(monkeypatch, demo=f"{__name__}:several")
    code, out, _ = gear(capsys, "--help")
    assert code == 0
    more = " ".join(out.partition("With geartrain-cloud")[2].split())
    assert more.startswith("there are more: backup, bench, broker, certs, deadletters, ")
    assert "demo" not in more


def test_a_package_that_cannot_be_loaded_spoils_its_own_command_only(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    offer(
        monkeypatch,
        speak=f"{__name__}:one",
        broken="no_such_package.commands:app",
        empty=f"{__name__}:nothing",
        odd=f"{__name__}:offer",
        twice=(f"{__name__}:one", f"{__name__}:several"),
    )
    assert gear(capsys, "speak")[0] == 0
    code, out, _ = gear(capsys, "--help")
    assert (code, "  speak" in out, "  broken" in out) == (0, True, True)
    for name, sentence in {
        "broken": "the command broken cannot be loaded (No module named 'no_such_package')",
        "empty": "the command empty cannot be loaded",
        "odd": f"the command odd cannot be used: {__name__}:offer is no typer.Typer",
        "twice": "two packages bring the command twice",
    }.items():
        code, out, err = gear(capsys, name, "--all", "x")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert sentence in err


def test_a_command_of_gear_itself_wins(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    offer(monkeypatch, plan=f"{__name__}:one")
    code, out, _ = gear(capsys, "plan", "--help")
    assert (code, "MODULE:FLOW" in out) == (0, True)


def test_a_command_loads_no_other_package(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    loaded: list[str] = []
    offer(monkeypatch, speak=f"{__name__}:one", words=f"{__name__}:several")
    load_any = EntryPoint.load

    def load(point: EntryPoint) -> Any:
        loaded.append(point.name)
        return load_any(point)

    monkeypatch.setattr(EntryPoint, "load", load)
    assert gear(capsys, "speak")[0] == 0
    assert loaded == ["speak"]
