"""Events of what lies in files beside the store: keys of authors, bundles, certificates of devices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from geartrain.bundle import pack
from geartrain_client.cli.events import line_of
from geartrain_client.rest.answers import Event as ClientEvent
from geartrain_client.signing.metadata import (
    first_root,
    next_root,
    next_targets,
    read_root,
    target_of,
    text_of,
)
from geartrain_cloud.control.enrolment import Enrolment
from geartrain_cloud.control.main import ANSWERING
from geartrain_cloud.control.trust import Trust
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import FleetSection, PlatformConfig
from geartrain_cloud.rest.openapi import Contract
from geartrain_cloud.rest.requests import MetadataBody, NoQuery, declare
from geartrain_cloud.rest.routes import declared
from tests.bundles.signed import author, send
from tests.bundles.test_repository import ONE

TELLS: dict[str, str] = {
    "POST /apps": "app",
    "POST /apps/{name}/kill": "app",
    "POST /apps/{name}/replay": "app",
    "POST /apps/{name}/resume": "app",
    "POST /apps/{name}/retain": "app",
    "POST /apps/{name}/update": "revision, app",
    "POST /apps/{name}/rollback": "revision, app",
    "POST /apps/{name}/promote": "canary, revision",
    "POST /apps/{name}/cut": "cut, revision",
    "POST /apps/{name}/move": "cut, revision",
    "POST /apps/{name}/scale": "app",
    "POST /apps/{name}/backfill": "app, device",
    "PUT /apps/{name}/history/{file}": "nothing: no app has it yet",
    "PUT /apps/{name}/secrets/{secret}": "secret",
    "POST /apps/{name}/secrets/{secret}/remove": "secret",
    "POST /devices": "device",
    "PATCH /devices/{device}": "device",
    "POST /devices/{device}/token": "certificate",
    "POST /devices/{device}/revoke": "certificate",
    "POST /devices/{device}/retire": "device, certificate",
    "POST /devices/{device}/accept": "device",
    "POST /devices/{device}/purge": "purge",
    "POST /agents/upgrade": "agent",
    "POST /tokens": "token",
    "POST /tokens/{token}/revoke": "token",
    "POST /trust/root": "key",
    "POST /trust/targets": "bundle",
    "PUT /bundles/{name}": "nothing: no metadata name it yet",
    "PUT /programs/{name}": "nothing: no metadata name it yet",
    "POST /log/trim": "log",
    "POST /log/queries/{query}/forget": "log",
    "POST /log/devices/{device}/erase": "log",
    "POST /quarantine/{number}/resubmit": "log",
    "POST /deadletters/{id}/resubmit": "log",
    "POST /certs/authority": "certificate",
    "POST /certs/{kind}/{subject}/issue": "certificate",
    "POST /certs/{kind}/{subject}/revoke": "certificate",
    "POST /backups": "backup",
    "POST /backups/{backup}/remove": "backup",
}
"""The kinds of the events that a change is told by."""


def test_each_change_is_told_by_an_event_or_the_table_says_why_not() -> None:
    changes = {one.name for one in declared([*ANSWERING, Contract]) if one.method != "GET"}
    assert set(TELLS) == changes
    page = (Path(__file__).parents[2] / "docs" / "platform.md").read_text(encoding="utf-8")
    for kinds in TELLS.values():
        for kind in kinds.split(":")[0].split(", "):
            assert kind == "nothing" or f"| `{kind}` |" in page


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ControlStore]:
    one = ControlStore(tmp_path / "control.sqlite", lambda: 1_000)
    yield one
    one.close()


def told(store: ControlStore, kind: str) -> list[dict[str, Any]]:
    found, _ = store.events.after(0, 1_000)
    return [one.said for one in found if one.kind == kind]


def request_of(metadata: str) -> web.Request:
    request = make_mocked_request("POST", "/api/v1/trust")
    request._read_bytes = json.dumps({"metadata": metadata}).encode()
    declare(request, NoQuery, MetadataBody)
    return request


def test_a_key_that_is_trusted_and_one_that_is_no_more_are_told_once(
    store: ControlStore, tmp_path: Path
) -> None:
    trust, now = Trust(tmp_path / "bundles", store), datetime.now(UTC)
    alice, bob = author(tmp_path / "keys"), author(tmp_path / "keys", "bob")
    repository = trust._repository()

    def put(metadata: Any) -> None:
        asyncio.run(trust.put_root(request_of(text_of(metadata))))

    put(first_root(alice, repository.keys, now))
    assert repository.root is not None
    former = read_root(text_of(repository.root))
    put(next_root(former, alice, now, add=("bob\x1b[2J", bob.targets.public_key)))
    former = read_root(text_of(repository.root))
    put(next_root(former, alice, now, remove=bob.targets.public_key.keyid))
    first, added, gone = told(store, "key")
    assert (first["author"], first["trusted"]) == ("alice", True)
    assert (added["id"], added["trusted"]) == (bob.targets.public_key.keyid, True)
    assert added["author"].isprintable()
    assert gone == {**added, "trusted": False}
    with pytest.raises(Exception, match="cannot be read"):
        asyncio.run(trust.put_root(request_of("{}")))
    assert len(told(store, "key")) == 3


def test_a_bundle_that_is_signed_is_told(store: ControlStore, tmp_path: Path) -> None:
    trust, now = Trust(tmp_path / "bundles", store), datetime.now(UTC)
    alice, (manifest, raw) = author(tmp_path / "keys"), pack(ONE)
    repository = trust._repository()
    repository.put_root(text_of(first_root(alice, repository.keys, now)).encode())
    code, _ = send(repository, ONE, tmp_path)
    target = target_of(manifest, raw, "heat", "mine.flow:flow")
    asyncio.run(trust.put_targets(request_of(text_of(next_targets(None, alice, now, target=target)))))
    assert told(store, "bundle") == [{"code": code, "program": "", "removed": False}]


def test_a_device_that_is_invited_or_loses_its_certificate_is_told(
    store: ControlStore, tmp_path: Path
) -> None:
    config, said = PlatformConfig(tmp_path, fleet=FleetSection(address="localhost")), list[Any]()

    def tell(what: str, device: str) -> AbstractContextManager[None]:
        said.append((what, device))
        return nullcontext()

    enrolment = Enrolment(config, store.devices, lambda: 1_000, tell)
    store.devices.add("d1", {})
    enrolment.invite("d1", 60.0)
    enrolment.fleet.issue("device", "d1")
    enrolment.revoke("d1")
    enrolment.revoke("d1")
    enrolment.close()
    assert said == [("invited", "d1"), ("revoked", "d1")]


class KilledError(BaseException):
    """As a kill: nothing behind it runs that handles exceptions."""


def test_a_change_whose_control_was_killed_is_told_by_the_next_one(
    store: ControlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"what": "erased", "device": "d1"}
    with pytest.raises(KilledError), store.announcements.announced("log", "d1", said):
        raise KilledError
    with pytest.raises(OSError, match="full"), store.announcements.announced("log", "d2", said):
        raise OSError("full")
    with store.announcements.announced("log", "d3", said) as tell, store.database.change():
        tell()
    with store.announcements.announced("log", "d4", said):
        pass
    assert [one.device for one in store.announcements.left("log")] == ["d1"]
    store.announcements.tell_left("certificate", "log")
    found, _ = store.events.after(0, 100)
    assert [(one.device, one.said.get("perhaps")) for one in found] == [
        ("d3", None), ("d4", None), ("d1", True),
    ]  # fmt: skip
    assert store.announcements.left("log") == []
    assert line_of(ClientEvent(1, 1_000, "log", "", "d1", found[-1].said)).endswith(
        "the log: erased, perhaps"
    )

    trust, now = Trust(tmp_path / "bundles", store), datetime.now(UTC)
    alice, repository = author(tmp_path / "keys"), trust._repository()
    put_root = repository.put_root

    def killed(raw: bytes) -> None:
        put_root(raw)
        raise KilledError

    monkeypatch.setattr(repository, "put_root", killed)
    metadata = text_of(first_root(alice, repository.keys, now))
    with pytest.raises(KilledError):
        asyncio.run(trust.put_root(request_of(metadata)))
    assert told(store, "key") == []
    again = Trust(tmp_path / "bundles", store)
    for _ in range(2):
        again.round()
        again._next_s = 0.0
    assert [(one["author"], one["trusted"]) for one in told(store, "key")] == [("alice", True)]
    assert store.announcements.left("key") == []


@pytest.mark.parametrize(
    ("kind", "said", "line"),
    [
        ("key", {"id": "ab" * 32, "author": "bob", "trusted": True}, "key abababababab of bob is trusted"),
        ("bundle", {"code": "cd" * 32, "program": "", "removed": False}, "bundle cdcdcdcdcdcd was signed"),
        ("log", {"what": "trimmed"}, "the log: trimmed"),
        ("certificate", {"what": "issued", "kind": "cloud", "name": "ingest"}, "issued cloud ingest"),
        ("backup", {"name": "monday", "state": "made"}, "backup monday is made"),
    ],
)
def test_a_person_reads_it_in_a_line(kind: str, said: dict[str, Any], line: str) -> None:
    assert line in line_of(ClientEvent(1, 1_000, kind, "", "", said))
