"""The options of commands that ask a platform over REST, and the platform that they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain.errors import GeartrainError
from geartrain_client.rest.door import find_door
from geartrain_client.rest.platform import Platform, items_of

COMPLETION_S = 2.0
_NAMES_MAX = 200


def platform_at(url: str | None, state: Path | None) -> Platform:
    """The platform that is meant; raises `GeartrainError`."""
    return Platform(find_door(url, state))


def completed(context: typer.Context, path: str, field: str, begun: str) -> list[str]:
    """Names for the shell to choose from; none where the platform does not answer at once."""
    try:
        given = context.params
        platform = Platform(find_door(given.get("url"), given.get("state")), attempts=1)
        found = items_of(platform.get(path, timeout_s=COMPLETION_S))
    except GeartrainError:
        return []
    names = [one[field] for one in found if isinstance(one, dict) and isinstance(one.get(field), str)]
    return [name for name in names if name.startswith(begun) and name.isprintable()][:_NAMES_MAX]


Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The platform. Default GEARTRAIN_URL, or that of --state."),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state", metavar="DIR", help="The folder of a platform that gear up started here. Has a default."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
Expires = Annotated[
    str, typer.Option("--expires", metavar="TIME", help="How long the line is good, such as 24h or 7d.")
]
SigningKey = Annotated[
    str | None,
    typer.Option("--key", metavar="AUTHOR", help="Whose keys sign the code; needed where several are here."),
]
