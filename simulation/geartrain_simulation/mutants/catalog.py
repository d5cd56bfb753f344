"""All planted faults, by name."""

from __future__ import annotations

from geartrain_simulation.mutants.of_agent import OF_AGENT
from geartrain_simulation.mutants.of_bundles import OF_BUNDLES
from geartrain_simulation.mutants.of_claims import OF_CLAIMS
from geartrain_simulation.mutants.of_clock import OF_CLOCK
from geartrain_simulation.mutants.of_crossings import OF_CROSSINGS
from geartrain_simulation.mutants.of_down import OF_DOWN
from geartrain_simulation.mutants.of_dropping import OF_DROPPING
from geartrain_simulation.mutants.of_ingest import OF_INGEST
from geartrain_simulation.mutants.of_lanes import OF_LANES
from geartrain_simulation.mutants.of_leaving import OF_LEAVING
from geartrain_simulation.mutants.of_life import OF_LIFE
from geartrain_simulation.mutants.of_programs import OF_PROGRAMS
from geartrain_simulation.mutants.of_revisions import OF_REVISIONS
from geartrain_simulation.mutants.of_rosters import OF_ROSTERS
from geartrain_simulation.mutants.of_sources import OF_SOURCES
from geartrain_simulation.mutants.of_welcomes import OF_WELCOMES

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
