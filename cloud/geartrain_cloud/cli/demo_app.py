"""The commands of `gear demo`: one for each demo that is installed, with its own options before those of all.

What runs a demo is imported when one is run. This module knows no demo: names, help and options come from
the objects behind the entry points.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from geartrain_cloud.cli.demos import Demo, OwnOption, installed, load_demo, own_options


class InstalledDemos(TyperGroup):
    """The demos that are installed; one is loaded when its help is shown or it is run."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, sorted; raises `ConfigError` when there are none."""
        return list(installed())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a demo; raises `ConfigError` when it is not installed."""
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        demo = load_demo(cmd_name)
        app.command(cmd_name, help=_help(demo), short_help=demo.about)(command_of(cmd_name, demo))
        return typer.main.get_command(app)


demo_app = typer.Typer(
    cls=InstalledDemos,
    help="Run a demo: the whole path on this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@demo_app.callback()
def _demo() -> None:
    """Run a demo: the whole path on this machine."""


def command_of(name: str, demo: Demo) -> Callable[..., None]:
    """The function that runs a demo, with a parameter for each option, its own first."""
    own = own_options(demo)

    def run(**given: Any) -> None:
        from geartrain_cloud.cli.demo import DemoOptions, run_demo

        chosen = {option.name: given.pop(option.name) for option in own}
        # An option that was left out is None, a switch False: neither was given. 0 was.
        own_given = {key: one for key, one in chosen.items() if one is not None and one is not False}
        run_demo(name, DemoOptions(own_given, **given))

    parameters = [_own_parameter(option) for option in own] + _common_parameters(demo)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _help(demo: Demo) -> str:
    examples = "\n".join(f"  {line}" for line in demo.examples)
    how = "It is a platform of its own, as gear up runs it: each process that dies is started again."
    return f"{demo.about}\n\n{how}\n\n\b\nExamples:\n{examples}"


def _own_parameter(option: OwnOption) -> inspect.Parameter:
    shown, default = option.help, option.default
    if default not in (None, False):
        shown += f" Default {default:g}." if isinstance(default, float) else f" Default {default}."
    if option.kind is bool:
        return _parameter(option.name, bool, typer.Option(option.word, help=shown), default=False)
    kind: Any = Literal[option.kind] if isinstance(option.kind, tuple) else option.kind
    metavar = option.metavar or ("|".join(option.kind) if isinstance(option.kind, tuple) else None)
    given = typer.Option(option.word, metavar=metavar, min=option.minimum, max=option.maximum, help=shown)
    return _parameter(option.name, kind | None, given)


def _common_parameters(demo: Demo) -> list[inspect.Parameter]:
    """The options that every demo has, by the names of the fields of `DemoOptions`."""
    return [
        _parameter(
            "devices",
            int | None,
            typer.Option(
                min=1,
                max=256,
                metavar="N",
                help=f"Agents. Default {demo.devices}, or one a {demo.part} if there are fewer.",
            ),
        ),
        _parameter(
            "cut",
            str | None,
            typer.Option(
                metavar="auto|edge|cloud|STEP,...",
                help="auto: the planner's choice; edge: on the devices all that may be there; cloud: only "
                "sources there; or these steps and all above them. Default auto.",
            ),
        ),
        *_result_parameters(demo),
        _parameter(
            "speed",
            str | None,
            typer.Option(
                metavar="N|max", help=f"Event seconds per second; a day is 86400. {_speed_of(demo)}"
            ),
        ),
        _parameter(
            "state",
            Path | None,
            typer.Option(
                metavar="DIR", help="The folder of this run; an existing one resumes. Default a new one."
            ),
        ),
        _parameter(
            "broker",
            str,
            typer.Option(metavar="auto|amqtt|mosquitto|HOST:PORT", help="The MQTT broker."),
            "auto",
        ),
        _parameter(
            "certs",
            Path | None,
            typer.Option(metavar="DIR", help="The certificates of the fleet whose broker HOST:PORT is."),
        ),
        _parameter("master", str, typer.Option(metavar="URL", help="Spark's master."), "local[2]"),
        *_throttle_parameter(demo),
    ]


def _speed_of(demo: Demo) -> str:
    slow = f"; with --throttle {demo.throttled_speed}" if demo.moves else ""
    return f"Default max{slow}."


def _throttle_parameter(demo: Demo) -> list[inspect.Parameter]:
    """The option of a demo of which a step moves."""
    if not demo.moves:
        return []
    said = f"Each device sends no more, such as 20kB/s; step {demo.moves} moves to the devices while it runs."
    return [_parameter("throttle", str | None, typer.Option(metavar="RATE", help=said))]


def _result_parameters(demo: Demo) -> list[inspect.Parameter]:
    several = len(demo.tables) > 1
    what = "a file TABLE.json for each table" if several else "the results"
    output = typer.Option(metavar="DIR" if several else "FILE.json", help=f"Write {what} here as well.")
    when = "from the start, and at the end" if demo.page_while_running else "at the end,"
    page = typer.Option("--page/--no-page", help=f"Show the page {when} until Ctrl-C.")
    return [_parameter("output", Path | None, output), _parameter("page", bool, page, default=True)]


def _parameter(name: str, kind: Any, option: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )
