"""Planted faults: a simulator that misses one of them proves nothing by finding none in the real code."""

from geartrain_simulation.mutants.catalog import MUTANTS as MUTANTS
from geartrain_simulation.mutants.planting import BrokenRunError as BrokenRunError
from geartrain_simulation.mutants.planting import Kill as Kill
from geartrain_simulation.mutants.planting import Mutant as Mutant
from geartrain_simulation.mutants.planting import first_kill as first_kill
from geartrain_simulation.mutants.planting import planted as planted
