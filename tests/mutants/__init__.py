"""Planted faults: a simulator that misses one of them proves nothing by finding none in the real code.

They stand here, and not beside the simulator, so that nobody installs them.
"""

from tests.mutants.catalog import MUTANTS as MUTANTS
from tests.mutants.seeds import seeds_for as seeds_for
