"""Secrets in the control store: encrypted, versioned, sealed for the certificate that a device shows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec
import pytest

from geartrain import Flow, Record
from geartrain.adapters.secret_shelf import SecretShelf
from geartrain.control.codec import decode_state, encode_state
from geartrain.control.limits import LANE_LIMITS
from geartrain.control.sealed import SPARK_PROCESS
from geartrain.control.states import CAN, Reported, SealedSecret, SecretReport, state_digest
from geartrain.fleet.selectors import CLOUD_DEVICE, IN_CLOUD
from geartrain.planning import make_plan
from geartrain.revision import revision_of
from geartrain.sinks import WebhookSink
from geartrain.testing import TestingSource
from geartrain_cloud.certs import Fleet
from geartrain_cloud.control.lane_store import StoreOfLane, state_of
from geartrain_cloud.control.secret_requests import checked_value
from geartrain_cloud.control_store.errors import ConflictError, InvalidError, NotFoundError, StoreError
from geartrain_cloud.control_store.sealing import recipient
from geartrain_cloud.control_store.secrets import (
    DEVICES_A_ROUND,
    NOT_SEALED,
    OF_APP_MAX,
    OF_DEVICE_BYTES_MAX,
    RETRY_S,
    Secret,
    SecretRounds,
)
from geartrain_cloud.control_store.store import ControlStore
from geartrain_edge.identity import Identity
from geartrain_edge.joining.unseal import open_all
from geartrain_edge.parent.secrets import OpenRequest
from tests.control.test_reconciler import ASKED
from tests.control.test_revisions import SOURCES, outline
from tests.edge.test_sealed_secrets import joined

VALUE, OTHER = "planted-6Hy1-value", "planted-2Pd9-other"


class Reading(Record):
    """A record of the flow with a webhook."""

    value: float


@dataclass
class World:
    """A store with an app on a device elsewhere, d1, and on one of this machine, here."""

    folder: Path
    store: ControlStore
    fleet: Fleet
    rounds: SecretRounds
    now_us: list[int]
    number: int = 0

    def shelf(self, device: str) -> SecretShelf:
        return SecretShelf(self.folder / "agents" / device)

    def told(self, device: str = "d1") -> tuple[SealedSecret, ...]:
        """What a device is told after a round: one serial has one content."""
        self.rounds.round()
        first, second = (encode_state(state_of(self.store, device)) for _ in range(2))
        assert first == second
        return decode_state(first).secrets

    def report(self, *secrets: SecretReport, certificate: bytes = b"", can: tuple[str, ...] = CAN) -> None:
        """What d1 says of itself."""
        self.number += 1
        serial = self.store.devices.get("d1").serial
        said = Reported(
            *("d1", b"session-", 1, self.number, serial, state_digest(b"x") if serial else b""),
            can=can,
            secrets=secrets,
            certificate=certificate,
        )
        asyncio.run(StoreOfLane(self.store).store(said))

    def join(self) -> bytes:
        """Have d1 join, for the first time or again; its certificate."""
        joined(self.folder / "d1", "d1", self.fleet)
        return Identity(self.folder / "d1").certificate()

    def opened(self) -> tuple[str, ...]:
        """What d1 says to what it is told."""
        own = self.folder / "d1"
        request = OpenRequest(str(Identity(own).file), str(own / "secrets"), "d1", self.told())
        return open_all(request)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    now_us = [1_800_000_000_000_000]
    store = ControlStore(tmp_path / "control.sqlite", lambda: now_us[0])
    fleet = Fleet(tmp_path / "fleet")
    fleet.init("test")

    def point_of(device: str, certificate: bytes) -> bytes:
        return recipient(certificate, fleet.authority(), device)[1]

    def shelf(device: str) -> SecretShelf:
        return SecretShelf(tmp_path / "agents" / device)

    store.devices.add("d1", {})
    store.devices.add("here", {}, local=True)
    store.apps.submit(ASKED, outline("a"))
    seconds = count(step=RETRY_S)  # each look at the clock is that much later
    rounds = SecretRounds(store.secrets, store.database, shelf, point_of, lambda: next(seconds))
    yield World(tmp_path, store, fleet, rounds, now_us)
    store.close()


def test_a_device_gets_a_secret_sealed_once_it_has_shown_its_certificate(world: World) -> None:
    made = world.store.secrets.set("heat", "db", VALUE)
    assert world.told() == (SealedSecret("heat", "db", made.version),)
    world.report(certificate=world.join())
    (told,) = world.told()
    assert told.sealed
    assert world.opened() == ("",)
    assert (world.folder / "d1" / "secrets" / "heat" / "db").read_text() == VALUE
    serial = world.store.devices.get("d1").serial
    world.report(SecretReport("heat", "db", made.version), certificate=world.join())
    assert world.told() != (told,)  # it is sealed for the one that it has now
    assert world.store.devices.get("d1").serial == serial + 1


def test_a_new_value_has_a_later_version_and_an_app_that_is_over_takes_it_along(world: World) -> None:
    world.store.secrets.set("heat", "db", VALUE)
    world.report(certificate=world.join())
    (first,) = world.told()
    world.store.secrets.set("heat", "db", OTHER)
    (second,) = world.told()
    assert second.version == first.version + 1
    assert world.opened() == ("",)
    assert (world.folder / "d1" / "secrets" / "heat" / "db").read_text() == OTHER
    world.store.secrets.remove("heat", "db")
    assert world.told() == ()
    world.now_us[0] -= 86_400_000_000  # a clock that was set back
    assert world.store.secrets.set("heat", "db", VALUE).version == second.version + 1
    assert len(world.told()) == 1
    world.store.desired.leave("heat.1")
    assert world.told() == ()


def test_a_device_of_this_machine_gets_a_private_file(world: World) -> None:
    made = world.store.secrets.set("heat", "db", VALUE)
    assert world.told("here") == ()
    path = world.folder / "agents" / "here" / "heat" / "db"
    assert (path.read_text(), path.stat().st_mode & 0o777) == (VALUE, 0o600)
    assert world.shelf("here").versions() == {("heat", "db"): made.version}
    world.store.secrets.set("heat", "db", OTHER)
    world.rounds.round()
    assert path.read_text() == OTHER
    world.store.secrets.remove("heat", "db")
    world.rounds.round()
    assert not path.exists()


def test_the_spark_host_gets_the_secrets_of_apps_with_sinks_that_may_ask(world: World) -> None:
    flow = Flow("heat")
    readings = flow.source("readings", TestingSource(items=[]), out=Reading)
    readings.sink("hook", WebhookSink("hook", url="https://a", headers={"Authorization": "secret:db"}))
    document = revision_of("heat:flow", make_plan(flow.graph(), "auto")).to_json()
    assert '"secret:db"' not in document
    world.store.apps.submit(
        msgspec.structs.replace(ASKED, name="hooked"),
        msgspec.structs.replace(outline("b"), document=document),
    )
    world.store.secrets.set("heat", "db", VALUE)  # whose app has no such sink
    made = world.store.secrets.set("hooked", "db", VALUE)
    world.rounds.round()
    assert world.shelf(SPARK_PROCESS).versions() == {("hooked", "db"): made.version}
    (held,) = world.store.secrets.held([made], world.shelf)
    spark = {one.device: one.version for one in held}
    assert spark[SPARK_PROCESS] == made.version
    again = world.store.secrets.set("hooked", "db", OTHER)
    (held,) = world.store.secrets.held([again], world.shelf)
    assert "control has not written it yet" in {one.why for one in held}
    world.rounds.round()
    path = world.folder / "agents" / SPARK_PROCESS / "hooked" / "db"
    assert (path.read_text(), path.stat().st_mode & 0o777) == (OTHER, 0o600)
    world.store.secrets.remove("hooked", "db")
    world.rounds.round()
    assert not path.exists()


def test_a_source_in_the_data_centre_gets_a_secret_that_comes_later(world: World) -> None:
    own = msgspec.structs.replace(SOURCES[0], devices=IN_CLOUD)
    world.store.apps.submit(
        msgspec.structs.replace(ASKED, name="pulled"),
        msgspec.structs.replace(outline("b"), sources=[own]),
    )
    world.rounds.round()
    assert world.shelf(CLOUD_DEVICE).versions() == {}
    made = world.store.secrets.set("pulled", "db", VALUE)
    world.rounds.round()
    assert world.shelf(CLOUD_DEVICE).versions() == {("pulled", "db"): made.version}
    assert world.shelf("here").versions() == {}
    assert all(one.app != "pulled" for one in world.told())


def test_a_control_that_was_away_removes_what_is_not_wanted_any_more(world: World) -> None:
    world.shelf("here").put("heat", "gone", 1, VALUE.encode())
    world.rounds.round()
    assert world.shelf("here").versions() == {}


def test_who_has_a_secret_and_why_not(world: World) -> None:
    version = world.store.secrets.set("heat", "db", VALUE).version

    def held() -> dict[str, tuple[int, str]]:
        world.rounds.round()
        (found,) = world.store.secrets.held([Secret("heat", "db", version, 0)], world.shelf)
        return {one.device: (one.version, one.why) for one in found}

    assert held() == {"d1": (0, "it has not reported yet"), "here": (version, "")}
    world.report(can=("something",))
    assert "opens no secrets" in held()["d1"][1]
    world.report(SecretReport("heat", "db", 0, "it was damaged\n"), certificate=world.join())
    assert held()["d1"] == (0, "it was damaged\\n")
    world.report(SecretReport("heat", "db", version))
    assert held()["d1"] == (version, "")


def test_values_lie_encrypted_under_a_key_in_a_file_of_its_own(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world.store.secrets.set("heat", "db", VALUE)
    world.report(certificate=world.join())
    world.told()
    key = world.folder / "secrets.key"
    assert key.stat().st_mode & 0o777 == 0o600
    shelf = world.folder / "agents"
    files = [one for one in world.folder.rglob("*") if one.is_file() and shelf not in one.parents]
    assert len(files) > 5
    assert not [one for one in files if VALUE.encode() in one.read_bytes()]
    assert VALUE not in caplog.text
    rows = world.store.database.rows("SELECT value FROM secrets")
    assert bytes.fromhex(key.read_text()) not in b"".join(row[0] for row in rows)


def test_without_its_key_a_secret_is_not_sent_and_control_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.store.secrets.set("heat", "db", VALUE)
    key = world.folder / "secrets.key"
    right = key.read_text()
    for wrong, said in (("00" * 32, "is not the key of secret db"), ("", "holds no key")):
        key.write_text(wrong)
        world.report(certificate=world.join())
        assert not world.told()[0].sealed
        assert said in caplog.text
    key.chmod(0o644)
    with pytest.raises(StoreError, match="chmod 600"):
        world.store.secrets.set("heat", "db", VALUE)
    key.chmod(0o600)
    key.write_text(right)
    (found,) = world.store.secrets.held([Secret("heat", "db", 1, 0)], world.shelf)
    assert {one.why for one in found if one.device == "d1"} == {NOT_SEALED}
    assert world.told()[0].sealed  # it was tried again


def test_what_was_exchanged_in_the_store_is_not_sent(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever can write the store, and has no key, cannot give one secret for another."""
    world.store.secrets.set("heat", "db", VALUE)
    world.store.secrets.set("heat", "api", OTHER)
    with world.store.database.change() as database:
        (api,) = database.execute("SELECT value FROM secrets WHERE name = 'api'").fetchone()
        database.execute("UPDATE secrets SET value = ? WHERE name = 'db'", (api,))
    world.report(certificate=world.join())
    assert [bool(one.sealed) for one in world.told()] == [True, False]
    assert "is not the key of secret db" in caplog.text


def test_certificates_of_others_are_not_sealed_for(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.store.secrets.set("heat", "db", VALUE)
    joined(world.folder / "d2", "d2", world.fleet)
    for certificate in (Identity(world.folder / "d2").certificate(), b"no certificate"):
        world.report(certificate=certificate)
        assert not world.told()[0].sealed
    assert "shows the certificate of another one" in caplog.text
    assert "shows a certificate of another authority" in caplog.text


def test_there_is_a_bound_for_apps_and_for_devices(world: World) -> None:
    secrets = world.store.secrets
    large = "x" * 4_096
    for number in range(OF_APP_MAX):
        secrets.set("heat", f"s{number}", large)
    with pytest.raises(ConflictError, match="app heat has 16 secrets"):
        secrets.set("heat", "one_more", VALUE)
    version = secrets.set("heat", "s15", VALUE).version
    secrets.set("heat", "s15", large)
    world.report(certificate=world.join())
    told = world.told()
    assert len(told) == OF_DEVICE_BYTES_MAX // 4_124 < OF_APP_MAX
    assert len(encode_state(state_of(world.store, "d1"))) < LANE_LIMITS.state_bytes_max
    (left,) = world.store.secrets.held([Secret("heat", "s9", version, 0)], world.shelf)
    assert "bytes of them" in next(one.why for one in left if one.device == "d1")
    secrets.remove("heat", "s0")
    secrets.set("heat", "one_more", VALUE)


def test_many_devices_are_told_some_at_a_time(world: World) -> None:
    names = [f"many{number:03}" for number in range(2 * DEVICES_A_ROUND + 7)]
    for name in names:
        world.store.devices.add(name, {})
    world.store.secrets.set("heat", "db", VALUE)
    told = []
    for _ in range(3):
        world.rounds.round()
        told.append(len(world.store.secrets.sealed()))
    assert told == [DEVICES_A_ROUND, 2 * DEVICES_A_ROUND, len(names) + 1]


def test_secrets_are_listed_in_pages_and_without_those_that_were_removed(world: World) -> None:
    secrets = world.store.secrets
    made = [secrets.set(app, name, VALUE) for app in ("a", "b") for name in ("one", "two")]
    gone = secrets.set("a", "gone", VALUE)
    assert secrets.remove("a", "gone") == gone
    with pytest.raises(NotFoundError, match="app 'a' has no secret 'gone'"):
        secrets.remove("a", "gone")
    found, after = list[Secret](), ""
    while True:
        page, following = secrets.page(3, after, "")
        found += page
        if following is None:
            break
        after = following
    assert found == made
    assert secrets.page(10, "", "b") == (made[2:], None)
    assert secrets.page(10, "b/one", "") == (made[3:], None)


@pytest.mark.parametrize("value", ["", "\n", "\r\n", "x" * 4_097, "ä" * 2_049, "secret:other"])
def test_what_is_no_value_is_refused_without_saying_it(value: str) -> None:
    with pytest.raises(InvalidError, match="value: ") as refused:
        checked_value(value)
    assert len(str(refused.value)) < 120
