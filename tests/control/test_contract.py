"""REST's contract: the document in the repository is what the code gives, and what a platform serves."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from geartrain_cloud.control.main import ANSWERING
from geartrain_cloud.rest.openapi import Contract, document
from geartrain_cloud.rest.routes import Route, declared
from tests.control.platform_client import control_process
from tests.tidy.source import ROOT

DOCUMENT = ROOT / "docs" / "openapi.json"
STALE = "run scripts/generate-rest"


def routes() -> list[Route]:
    return declared([*ANSWERING, Contract])


def test_the_document_in_the_repository_is_what_the_code_gives() -> None:
    found = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    assert found == json.loads(json.dumps(document(ANSWERING))), STALE
    page = runpy.run_path(str(ROOT / "scripts" / "generate-rest"))["page"](found)
    assert (ROOT / "docs" / "rest.md").read_text(encoding="utf-8") == page, STALE


def test_a_running_platform_serves_it(tmp_path: Path) -> None:
    with control_process(tmp_path) as (_, client):
        assert client.get("/openapi.json") == json.loads(DOCUMENT.read_text(encoding="utf-8"))


def test_each_request_is_declared_once() -> None:
    names = [one.name for one in routes()]
    assert len(names) == len(set(names)) >= 30


def test_who_only_looks_changes_nothing() -> None:
    looks = {one.name: one.role for one in routes() if one.method == "GET"}
    assert {one.name for one in routes() if one.role == "viewer"} <= set(looks)
    assert {name for name, role in looks.items() if role != "viewer"} == {"GET /audit", "GET /tokens"}


def test_each_change_is_made_once_by_its_key() -> None:
    assert {one.name for one in routes() if one.method != "GET" and not one.kept} == {
        "POST /devices/{device}/token",  # a token is kept nowhere
        "POST /tokens",
        "PUT /apps/{name}/history/{file}",  # a piece that is there is passed over
        "PUT /bundles/{name}",  # whose name is its content
        "PUT /programs/{name}",
    }


def test_each_list_comes_in_pages() -> None:
    lists = [one for one in routes() if "items" in getattr(one.answer, "__struct_fields__", ())]
    pages = {one.name for one in lists if {"limit", "after"} <= set(one.query.__struct_fields__)}
    assert {one.name for one in lists} - pages == {"GET /apps/{name}/logs"}  # the last lines, by number
    assert all("next" in one.answer.__struct_fields__ for one in lists if one.name in pages)
