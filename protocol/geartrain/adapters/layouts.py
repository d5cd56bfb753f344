"""The layout number that every store carries, and the one sentence by which a later layout is refused.

Where a store is opened, before anything in it is used. Guarantees: a store that a later version has written
is left as it is.
"""

from __future__ import annotations

from geartrain.errors import GeartrainError


def refuse_later(subject: str, found: int, known: int, error: type[GeartrainError]) -> None:
    """Raise unless this version knows the layout of a store.

    Args:
        subject: what and where the store is, such as "the ledger /log/ledger.sqlite".
        found: the number that it carries.
        known: the highest that this version writes.
        error: what is raised.

    Raises:
        error: a later version has written the store.
    """
    if found > known:
        raise error(
            f"{subject} has layout {found}, and this version of Geartrain knows {known}: start the version "
            "that wrote it or a later one, or bring back a copy from before it"
        )
