"""REST keeps its contract: schemathesis throws requests at a real gear-control, by its OpenAPI document: such
as fit it, and such as do not. The seed is fixed; `python -m tests.proofs.test_rest_fuzz 500` throws more.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import strategies
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.control.platform_client import Client, control_process
from tests.proofs.fuzzing import drawn
from tests.tidy.source import ROOT
from tests.waiting import WAIT_S

EXAMPLES = 8
THERE = {"name": "stocks", "device": "d1", "table": "drawdowns", "step": "drawdown"}
"""What the platform has, so that a request gets beyond 404."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
"""That data which fit are accepted is not among them: names, selectors and flows have rules of their own."""
SCHEMA = schemathesis.openapi.from_path(ROOT / "docs" / "openapi.json")
SCHEMA.config.checks.negative_data_rejection.expected_statuses.append(
    "414"
)  # before the length of a part is judged
OPERATIONS = {
    one.ok().label: one.ok()
    for one in SCHEMA.exclude(path="/events").get_all_operations()
    if isinstance(one, Ok)
}
"""`/events` never ends: test_events_fuzz reads it as far as it must."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with control_process(tmp_path_factory.mktemp("platform")) as (_, one):
        fill(one)
        yield one


def fill(client: Client) -> None:
    client.ask("POST", "/devices", {"name": "d1", "labels": {"kind": "stock"}}, expect=201)
    flow = "geartrain_examples.stocks.flow:flow"
    body = {"name": "stocks", "flow": flow, "set": {"quotes.path": "p.csv"}}
    client.ask("POST", "/apps", body, expect=202)


@pytest.mark.parametrize("name", OPERATIONS)
def test_requests_get_what_the_document_says(client: Client, name: str) -> None:
    assert throw(client, OPERATIONS[name], EXAMPLES) >= EXAMPLES // 2


def throw(client: Client, operation: Any, examples: int) -> int:
    """How many requests were sent; raises what schemathesis finds."""
    sent = 0
    fit = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    cases = strategies.one_of(fit, operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))

    @drawn(examples)
    @hypothesis.given(case=cases, is_there=strategies.booleans())
    def one(case: Case[Any], is_there: bool) -> None:
        nonlocal sent
        if is_there:
            case.path_parameters = {key: THERE.get(key, "x") for key in case.path_parameters or {}}
        if "wait_s" in str(operation.definition.raw):
            case.query = {**(case.query or {}), "wait_s": 1}
        sent += 1
        case.call_and_validate(
            base_url=f"{client.url}/api/v1",
            headers={"Authorization": f"Bearer {client.token}"},
            checks=CHECKS,
            timeout=WAIT_S,
        )

    one()
    return sent


def main() -> None:
    """Throw as many at each request as the command line says."""
    examples = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, control_process(Path(folder)) as (_, client):
        fill(client)
        for name, operation in OPERATIONS.items():
            print(f"{name}: {throw(client, operation, examples)} requests", flush=True)


if __name__ == "__main__":
    main()
