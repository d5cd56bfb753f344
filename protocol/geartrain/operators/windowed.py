"""What all windowed steps have in common: the rules of the zone whose calendar their windows follow, if they
follow one, are their one option.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from geartrain.declarations.calendars import Calendar, with_rules
from geartrain.declarations.zones import is_zone_name, zone_of
from geartrain.errors import ConfigError, GeartrainError
from geartrain.graph.operator import Keyed

if TYPE_CHECKING:
    from geartrain.declarations.windows import Window
    from geartrain.graph.graph import Graph

ZONE_RULES = "zone_rules"
"""The option that holds the rules of a step's time zone."""
TIME_ZONE = "time_zone"
"""The option of a source that names a time zone."""


def pinned(graph: Graph, options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The options of a flow, with the rules of each zone that it names.

    Those that a step has stay, if they are of its zone. Any other step gets what the package tzdata has here.

    Raises `ConfigError` where that has no such zone.
    """
    from geartrain.declarations.zone_data import rules_of

    found = {step: dict(values) for step, values in options.items()}
    for step in graph.steps:
        own = found.get(step.id, {})
        given, zone = own.get(ZONE_RULES), getattr(step.operator, "zone", "")
        if TIME_ZONE in own and getattr(step.operator, "has_zone", False):
            zone = str(own[TIME_ZONE])
        if is_zone_name(zone) and (not isinstance(given, str) or zone_of(given) != zone):
            found.setdefault(step.id, {})[ZONE_RULES] = rules_of(zone)
    return found


class Windowed(Keyed, frozen=True):
    """Base of the operators that have a `window`."""

    if TYPE_CHECKING:

        @property
        def window(self) -> Window:
            """The window."""

    @property
    def zone(self) -> str:
        """The zone whose calendar the windows follow, "" where they follow none."""
        return self.window.zone if isinstance(self.window, Calendar) else ""

    @property
    def zone_rules(self) -> str:
        """The rules of that zone as text, "" where none were set."""
        return self.window.rules if isinstance(self.window, Calendar) else ""

    def with_options(self, values: Mapping[str, Any], where: str) -> Self:
        """A copy by other rules of its zone; any other option is a `ConfigError`."""
        window = self.window
        if not isinstance(window, Calendar):
            return super().with_options(values, where)  # type: ignore[no-any-return]
        wrong = sorted(values.keys() - {ZONE_RULES})
        if wrong:
            raise ConfigError(f"{where}: there is no option {wrong[0]!r}; a calendar window has {ZONE_RULES}")
        try:
            return replace(self, window=with_rules(window, str(values[ZONE_RULES])))
        except GeartrainError as error:
            raise ConfigError(f"{where}.{ZONE_RULES}: {error}") from None
