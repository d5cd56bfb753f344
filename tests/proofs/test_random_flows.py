"""The long form of the property of cuts: many more random flows against the naive reference."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.protocol.test_cuts import check_case
from tests.reference.flows import Case, cases


@settings(max_examples=1_500, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.integers(0, 2**32))
def test_every_legal_cut_of_many_random_flows_equals_the_reference(case: Case, seed: int) -> None:
    check_case(case, seed)
