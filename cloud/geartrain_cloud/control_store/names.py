"""The names of apps that a person gives, and of instances, which are made from them.

They become parts of topics, of file names and of answers. Guarantees: each is checked before anything is
stored. An instance's name tells the app's, since an app's name has no point.
"""

from __future__ import annotations

import re

from geartrain.fleet.labels import shown
from geartrain_cloud.control_store.errors import InvalidError

APP_CHARS_MAX = 48
_APP = re.compile(rf"[A-Za-z][A-Za-z0-9_]{{0,{APP_CHARS_MAX - 1}}}")


def check_app(name: str) -> str:
    """Return `name`; raises `InvalidError` unless it can name an app."""
    if not _APP.fullmatch(name):
        raise InvalidError(
            f"app {shown(name)}: use a name of 1 to {APP_CHARS_MAX} letters, digits and '_' that begins "
            "with a letter"
        )
    return name


def instance_name(app: str, number: int) -> str:
    """The name of the app's life of this number, such as `traffic.3`."""
    return f"{app}.{number}"
