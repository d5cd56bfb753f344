"""What comes into a group: a run of a flow, prepared, with its tables.

Between the host, which says what shall run, and the group that runs it. Guarantees: it is plain data.
"""

from __future__ import annotations

from dataclasses import dataclass

from geartrain.adapters.sqlite import is_in_use
from geartrain.errors import GeartrainError
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.sinks.layout import AwayError

Key = tuple[str, int]
"""A run of a flow."""


@dataclass(frozen=True, slots=True)
class Member:
    """What the host tells a group of a flow.

    tables: where they are; letters_percent: the share of dead letters that stops it; slots and buckets: of
    one that comes anew; rows_max: of each key in one micro-batch at the most, None for that of all flows;
    sends: whether what goes to devices is sent, which a former run may have done; own: whether it has a query
    to itself.
    """

    tables: AppTables
    letters_percent: float = 1.0
    slots: int = 2
    buckets: int = 8
    rows_max: int | None = None
    sends: bool = True
    own: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """A flow that comes into a group, or back into it; request: the hash of what was asked for; run: which
    pass over its log; revision: the number of the one that is prepared; drops: the steps that lose what they
    have kept, where it takes the place of the revision before; drain: these put out first what they hold.
    """

    flow: str
    request: str
    prepared: Prepared
    member: Member
    run: int = 1
    revision: int = 1
    drops: tuple[str, ...] = ()
    drain: bool = False

    @property
    def key(self) -> Key:
        """The run of the flow that comes."""
        return self.flow, self.run


def is_locked(error: GeartrainError) -> bool:
    """Whether tables could not be opened since another program writes them, or their server is away."""
    return isinstance(error, AwayError) or is_in_use(error)
