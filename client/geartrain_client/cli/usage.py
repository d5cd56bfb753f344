"""The answer to a wrong command line: one sentence that says what is allowed.

Between the library that reads the command line and the user. It replaces the three lines of the library.
"""

from __future__ import annotations

from typing import Any

import typer

USAGE_ERROR: Any = typer.BadParameter.__base__
"""The root of the library's errors about a command line, which it does not export."""


def sentence_of(error: Any) -> str:
    """A `USAGE_ERROR` as one sentence."""
    context = error.ctx
    path = "gear" if context is None else str(context.command_path)
    name = path.partition(" ")[2]
    where, here = (f"{name}: ", f" of {name}") if name else ("", "")
    said = " ".join(str(error.format_message()).split()).rstrip(".")
    if said.startswith("No such command"):
        wrong, _, meant = said.partition(" command ")[2].partition(". Did you mean ")
        wrong += f" (did you mean {meant.rstrip('?')}?)" if meant else ""
        return f"there is no command {wrong}: the commands{here} are {_commands(context)}"
    if said.startswith("No such option"):
        return f"{where}there is no option {error.option_name}: the options{here} are {_options(context)}"
    if said.startswith("Missing"):
        shown = getattr(error.param, "help", None) or ""
        meant = f" ({shown.rstrip('.')})" if shown else ""
        return f"{where}the {said.partition(' ')[2]} is missing{meant}: see {path} --help"
    if getattr(error, "param", None) is not None:
        option = str(error.param.get_error_hint()).replace("'", "")
        wrong = " ".join(str(error.message).split()).rstrip(".").partition(", unable")[0]
        wrong = wrong.removeprefix("Value error, ")
        return f"{where}{option} {wrong.replace('Input should be', 'must be')}: see {path} --help"
    return f"{where}{said[0].lower()}{said[1:]}: see {path} --help"


def asks_for_help(error: Any) -> bool:
    """Whether a group of commands was called alone: what it says then is its help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def _commands(context: Any) -> str:
    return ", ".join(context.command.list_commands(context))


def _options(context: Any) -> str:
    parameters = context.command.get_params(context)
    return ", ".join(max(one.opts, key=len) for one in parameters if one.param_type_name == "option")
