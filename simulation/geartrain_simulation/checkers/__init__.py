"""What must always hold, watched from outside while agents and ingest run, and compared at the end."""

from geartrain_simulation.checkers.board import Checkers as Checkers
from geartrain_simulation.machine.violation import ViolationError as ViolationError
