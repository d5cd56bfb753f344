"""All planted faults, by name."""

from __future__ import annotations

from tests.mutants.of_agent import OF_AGENT
from tests.mutants.of_bundles import OF_BUNDLES
from tests.mutants.of_claims import OF_CLAIMS
from tests.mutants.of_clock import OF_CLOCK
from tests.mutants.of_crossings import OF_CROSSINGS
from tests.mutants.of_down import OF_DOWN
from tests.mutants.of_dropping import OF_DROPPING
from tests.mutants.of_ingest import OF_INGEST
from tests.mutants.of_lanes import OF_LANES
from tests.mutants.of_leaving import OF_LEAVING
from tests.mutants.of_life import OF_LIFE
from tests.mutants.of_programs import OF_PROGRAMS
from tests.mutants.of_revisions import OF_REVISIONS
from tests.mutants.of_rosters import OF_ROSTERS
from tests.mutants.of_sources import OF_SOURCES
from tests.mutants.of_welcomes import OF_WELCOMES

MUTANTS = {
    mutant.name: mutant
    for mutant in (
        *OF_AGENT,
        *OF_CLOCK,
        *OF_INGEST,
        *OF_LIFE,
        *OF_DOWN,
        *OF_LANES,
        *OF_ROSTERS,
        *OF_BUNDLES,
        *OF_PROGRAMS,
        *OF_CROSSINGS,
        *OF_LEAVING,
        *OF_CLAIMS,
        *OF_DROPPING,
        *OF_REVISIONS,
        *OF_WELCOMES,
        *OF_SOURCES,
    )
}
