"""Commands that other packages bring to `gear`: found by an entry-point group, loaded when asked for.

The name of an entry point of the group `geartrain.commands` is that of the command. It leads to a
`typer.Typer`: one without a callback that has one command is this command, any other is a group of commands.

Guarantees: a command of `gear` itself wins over one of the same name. A package that cannot be loaded spoils
its own command only, not the help of the others. A command that is known to belong to a package that is not
installed is one sentence that says what to install.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from geartrain.errors import ConfigError

GROUP = "geartrain.commands"

ELSEWHERE = {
    "geartrain-cloud": (
        "backup",
        "bench",
        "broker",
        "certs",
        "deadletters",
        "demo",
        "doctor",
        "down",
        "log",
        "page",
        "quarantine",
        "restore",
        "run",
        "up",
    ),
}
"""By distribution, the commands that it brings: a test compares them with its entry points."""

EARLY = ("new", "plan", "run", "doctor", "up", "down")
"""What a person needs before anything runs: it stands first, whoever brings it."""

_COMPLETION = ("install_completion", "show_completion")


def installed() -> dict[str, list[EntryPoint]]:
    """The commands of other packages, by name; two packages of one name are both listed."""
    found: dict[str, list[EntryPoint]] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)):
        if point.value not in [other.value for other in found.get(point.name, [])]:
            found.setdefault(point.name, []).append(point)
    return found


class AllCommands(TyperGroup):
    """The commands of `gear` itself, and after them those of the packages that are installed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names: those of `EARLY`, its own in the order of their declaration, the others sorted."""
        own = super().list_commands(ctx)
        names = own + [name for name in installed() if name not in own]
        return [name for name in EARLY if name in names] + [name for name in names if name not in EARLY]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command; None for one of which nothing is known."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        points = installed().get(cmd_name, [])
        if points:
            return _loaded(cmd_name, points)
        for distribution, names in ELSEWHERE.items():
            if cmd_name in names:
                return _refusing(cmd_name, not_installed(cmd_name, distribution))
        return None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """After the help: what more there is to install."""
        there = installed()
        for distribution, names in ELSEWHERE.items():
            missing = [name for name in names if name not in there]
            if missing:
                formatter.write_paragraph()
                formatter.write_text(f"With {distribution} there are more: {', '.join(missing)}.")


def not_installed(command: str, distribution: str) -> str:
    """The sentence for a command whose package is not installed."""
    return f"gear {command} needs {distribution}, which is not installed: run pip install {distribution}"


def _loaded(name: str, points: list[EntryPoint]) -> Any:
    if len(points) > 1:
        both = " and ".join(point.value for point in points)
        return _refusing(name, f"two packages bring the command {name} ({both}): uninstall one of them")
    [point] = points
    try:
        app = point.load()
    except (ImportError, AttributeError) as error:
        package = "its package" if point.dist is None else point.dist.name
        return _refusing(name, f"the command {name} cannot be loaded ({error}): run pip install {package}")
    if not isinstance(app, typer.Typer):
        return _refusing(name, f"the command {name} cannot be used: {point.value} is no typer.Typer")
    command = typer.main.get_command(app)
    command.name = name
    command.params = [one for one in command.params if one.name not in _COMPLETION]  # of gear as a whole
    return command


def _refusing(name: str, sentence: str) -> Any:
    """A command that takes any arguments, help as well, and says the sentence."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    taken = {"ignore_unknown_options": True, "allow_extra_args": True}

    @app.command(name, short_help=sentence, add_help_option=False, context_settings=taken)
    def refuse() -> None:
        raise ConfigError(sentence)

    return typer.main.get_command(app)
