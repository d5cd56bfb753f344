"""The long form of the property of cuts: many more random flows against the naive reference."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from tests.reference.comparison import check_case
from tests.reference.flows import Case, cases

FLOWS = 5_000


@settings(max_examples=FLOWS, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_every_legal_cut_of_many_random_flows_equals_the_reference(case: Case) -> None:
    check_case(case)
