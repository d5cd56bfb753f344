"""The layout number that every store carries, and the sentences by which another layout is refused.

Where a store is opened, before anything in it is used. Guarantees: a store that is refused is left as it is.
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


def refuse_former(subject: str, found: int, known: int, error: type[GeartrainError], way_out: str) -> None:
    """Raise where a store is of a layout before the one that this version writes.

    Only for stores that are not brought up, such as those that keep records in the order of before 0.3.

    Args:
        subject: what and where the store is.
        found: the number that it carries.
        known: the number that this version writes.
        error: what is raised.
        way_out: what to do, as the end of the sentence.

    Raises:
        error: a former version has written the store.
    """
    if found < known:
        raise error(
            f"{subject} has layout {found} of a former version, and this version of Geartrain goes on with "
            f"{known} only: {way_out}"
        )
