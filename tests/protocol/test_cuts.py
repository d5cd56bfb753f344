"""I1 in the small: random flows give the same records under every legal cut, equal to the naive reference.

Each device runs its fragment in batches of random size, with a snapshot and restore at random points; its
channels pass the wire's codec; the cloud takes what the devices send in a random interleaving, at a clock
that lags, in one fragment or dealt to shards.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from tests.reference.comparison import check_case
from tests.reference.flows import Case, cases


@settings(max_examples=500, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_every_legal_cut_of_a_random_flow_equals_the_reference(case: Case) -> None:
    check_case(case)
