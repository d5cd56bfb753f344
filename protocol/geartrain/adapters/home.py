"""The home folder of the user, below which settings, keys and state lie where nobody names another place.

Before anything of the user's is opened. Guarantees: a user without a home folder is told so in one sentence,
which names what to set instead.
"""

from __future__ import annotations

from pathlib import Path

from geartrain.errors import MistakeError


def home_folder(instead: str) -> Path:
    """The user's home folder.

    Args:
        instead: what the user can set so that none is needed, such as "GEARTRAIN_STATE".

    Returns:
        Its path, by HOME or by the system's list of users.

    Raises:
        MistakeError: HOME is not set, and the system has no entry of this user.
    """
    try:
        return Path.home()
    except RuntimeError:
        raise MistakeError(
            "this user has no home folder: HOME is not set, and the system has no entry of the user; "
            f"set {instead}"
        ) from None
