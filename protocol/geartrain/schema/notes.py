"""What people should know of a field beyond its type: its unit, and a description.

Written as metadata of a field's annotation; shown with plans, apps and the columns of tables. Guarantees:
they are no part of the type. A record with notes travels, is stored and is compared as one without.
"""

from __future__ import annotations

import typing
from typing import Annotated, Any

import msgspec

from geartrain.errors import SchemaError

UNIT_CHARS_MAX = 32
DESCRIPTION_CHARS_MAX = 500


class Unit(msgspec.Struct, frozen=True):
    """The unit of a field, for people. Nothing is converted.

    Args:
        name: as people write it, such as `degC`, `km/h` or `%`: 1 to 32 characters.

    Raises:
        SchemaError: for none, a longer one, spaces at its ends, or characters that do not print.

    >>> from typing import Annotated
    >>> from geartrain import Description, Record, Unit
    >>> class Reading(Record):
    ...     celsius: Annotated[float, Unit("degC"), Description("air, two metres above ground")]
    """

    name: str

    def __post_init__(self) -> None:
        if not _is_unit(self.name):
            raise SchemaError(
                f"Unit({self.name!r:.60}): write 1 to {UNIT_CHARS_MAX} characters that print, without spaces "
                "at the ends"
            )


class Description(msgspec.Struct, frozen=True):
    """What a field means, for people.

    Args:
        text: one or two sentences in one line: 1 to 500 characters.

    Raises:
        SchemaError: for none, a longer one, or characters that do not print, such as a line break.

    >>> Description("air, two metres above ground").text
    'air, two metres above ground'
    """

    text: str

    def __post_init__(self) -> None:
        if not _is_description(self.text):
            raise SchemaError(
                f"Description({self.text!r:.60}): write 1 to {DESCRIPTION_CHARS_MAX} characters that print, "
                "in one line"
            )


class Note(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The notes of one field, "" for what it does not have; raises `ValueError` for what cannot be one."""

    unit: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        if (self.unit and not _is_unit(self.unit)) or (
            self.description and not _is_description(self.description)
        ):
            raise ValueError("a unit or a description is too long, or has characters that do not print")

    @property
    def text(self) -> str:
        """Both in one line: `[degC] air, two metres above ground`."""
        return " ".join(part for part in (self.unit and f"[{self.unit}]", self.description) if part)


def without_notes(hint: Any) -> tuple[Any, Note]:
    """(the type without `Unit` and `Description`, these); other metadata stay."""
    if typing.get_origin(hint) is not Annotated:
        return hint, Note()
    unit = next((one.name for one in hint.__metadata__ if isinstance(one, Unit)), "")
    description = next((one.text for one in hint.__metadata__ if isinstance(one, Description)), "")
    kept = tuple(one for one in hint.__metadata__ if not isinstance(one, Unit | Description))
    return (Annotated[(hint.__origin__, *kept)] if kept else hint.__origin__), Note(unit, description)


def _is_unit(text: str) -> bool:
    return 0 < len(text) <= UNIT_CHARS_MAX and text.isprintable() and text == text.strip()


def _is_description(text: str) -> bool:
    return 0 < len(text) <= DESCRIPTION_CHARS_MAX and text.isprintable()
