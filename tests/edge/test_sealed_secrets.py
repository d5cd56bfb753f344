"""Secrets that the platform seals for a device: opened by the right one alone, and kept in their order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from geartrain.adapters.secret_shelf import SecretShelf
from geartrain.control.codec import encode_state
from geartrain.control.sealed import POINT_BYTES, VALUE_BYTES_MAX, binding, decode_sealed
from geartrain.control.sender import Standing
from geartrain.control.states import SealedSecret, SecretReport, State
from geartrain.errors import WireError
from geartrain_cloud.certs import Fleet
from geartrain_cloud.control_store.sealing import recipient, seal
from geartrain_cloud.errors import CertificateError
from geartrain_edge.identity import Identity, Term, identity_text
from geartrain_edge.joining.keys import new_key, private_key, request_for
from geartrain_edge.joining.unseal import open_all, unsealed
from geartrain_edge.parent.secrets import OpenRequest
from tests.edge.device_parent import Device, Platform

VALUE, OTHER = "planted-5Tz8-value", "planted-3Rw6-other"
LIFE = timedelta(days=1)


def joined(state: Path, device: str, fleet: Fleet) -> bytes:
    """Give a device its identity as joining does; the point of its certificate."""
    key, identity = new_key(), Identity(state)
    made = fleet.sign(device, request_for(key).encode(), LIFE)
    identity.file.parent.mkdir(0o700, parents=True, exist_ok=True)
    identity.authority.write_bytes(fleet.ca.read_bytes())
    identity.file.write_bytes(
        identity_text(Term(time.time(), time.time() + 86_400), key, made.certificate.decode())
    )
    identity.file.chmod(0o600)
    return recipient(identity.certificate(), fleet.authority(), device)[1]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = Fleet(tmp_path / "fleet")
    made.init("test")
    return made


def sealed(point: bytes, app: str, name: str, device: str, version: int, value: str = VALUE) -> SealedSecret:
    return SealedSecret(app, name, version, seal(value.encode(), point, binding(app, name, device, version)))


def request(state: Path, *secrets: SealedSecret, device: str = "d1") -> OpenRequest:
    return OpenRequest(str(Identity(state).file), str(state / "secrets"), device, secrets)


def test_what_is_sealed_for_a_device_is_a_private_file_there(tmp_path: Path, fleet: Fleet) -> None:
    point = joined(tmp_path, "d1", fleet)
    one = sealed(point, "heat", "db", "d1", 7)
    assert VALUE.encode() not in one.sealed
    assert open_all(request(tmp_path, one)) == ("",)
    path = tmp_path / "secrets" / "heat" / "db"
    assert (path.read_text(), path.stat().st_mode & 0o777) == (VALUE, 0o600)
    assert SecretShelf(tmp_path / "secrets").versions() == {("heat", "db"): 7}


ATTACKS: dict[str, Callable[[SealedSecret], SealedSecret]] = {
    "another app": lambda one: SealedSecret("other", one.name, one.version, one.sealed),
    "another name": lambda one: SealedSecret(one.app, "other", one.version, one.sealed),
    "a later version": lambda one: SealedSecret(one.app, one.name, one.version + 1, one.sealed),
    "a name that is cut elsewhere": lambda one: SealedSecret("hea", "tdb", one.version, one.sealed),
}


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_a_sealed_secret_is_good_for_nothing_else(tmp_path: Path, fleet: Fleet, attack: str) -> None:
    one = ATTACKS[attack](sealed(joined(tmp_path, "d1", fleet), "heat", "db", "d1", 7))
    (why,) = open_all(request(tmp_path, one))
    assert "sealed for another device, app, name or version" in why
    assert SecretShelf(tmp_path / "secrets").versions() == {}


def test_another_devices_secret_opens_nowhere_else(tmp_path: Path, fleet: Fleet) -> None:
    joined(tmp_path / "one", "d1", fleet)
    theirs = sealed(joined(tmp_path / "two", "d2", fleet), "heat", "db", "d2", 7)
    (why,) = open_all(request(tmp_path / "one", theirs))
    assert "sealed for another certificate" in why
    key = private_key(Identity(tmp_path / "two").file.read_bytes())
    assert unsealed(theirs, "d2", key) == VALUE.encode()
    with pytest.raises(WireError, match="another device"):
        unsealed(theirs, "d1", key)  # one device under two names


def test_no_byte_of_a_sealed_secret_can_be_changed(tmp_path: Path, fleet: Fleet) -> None:
    one = sealed(joined(tmp_path, "d1", fleet), "heat", "db", "d1", 7)
    key = private_key(Identity(tmp_path).file.read_bytes())
    for place in range(len(one.sealed)):
        spoiled = bytearray(one.sealed)
        spoiled[place] ^= 1
        with pytest.raises(WireError):
            unsealed(SealedSecret("heat", "db", 7, bytes(spoiled)), "d1", key)
    for length in (0, 1, 9 + POINT_BYTES, 9 + POINT_BYTES + 16, len(one.sealed) - 1):
        with pytest.raises(WireError):
            unsealed(SealedSecret("heat", "db", 7, one.sealed[:length]), "d1", key)
    with pytest.raises(WireError, match="no layout"):
        decode_sealed(one.sealed + bytes(VALUE_BYTES_MAX))


def test_two_sealings_of_one_value_have_nothing_in_common(tmp_path: Path, fleet: Fleet) -> None:
    point = joined(tmp_path, "d1", fleet)
    one, two = (decode_sealed(sealed(point, "heat", "db", "d1", 7).sealed) for _ in range(2))
    assert one.key_id == two.key_id
    assert one.ephemeral != two.ephemeral
    assert one.hidden != two.hidden


def test_an_older_version_never_takes_the_place_of_a_newer_one(tmp_path: Path, fleet: Fleet) -> None:
    point = joined(tmp_path, "d1", fleet)
    old, new = sealed(point, "heat", "db", "d1", 7, OTHER), sealed(point, "heat", "db", "d1", 8)
    assert open_all(request(tmp_path, new)) == ("",)
    (why,) = open_all(request(tmp_path, old))
    assert why == "version 7 is older than version 8, which this device has or had"
    shelf = SecretShelf(tmp_path / "secrets")
    assert (tmp_path / "secrets" / "heat" / "db").read_text() == VALUE
    assert shelf.keep([]) == [("heat", "db")]
    assert open_all(request(tmp_path, old)) == (why,)  # nor after the newer one was removed
    assert not (tmp_path / "secrets" / "heat" / "db").exists()
    assert open_all(request(tmp_path, new)) == ("",)


def test_what_a_person_has_written_there_stays(tmp_path: Path) -> None:
    shelf = SecretShelf(tmp_path)
    shelf.put("heat", "db", 1, b"ours")
    (tmp_path / "heat" / "by_hand").write_text("theirs")
    assert shelf.keep([]) == [("heat", "db")]
    assert (tmp_path / "heat" / "by_hand").read_text() == "theirs"
    assert not (tmp_path / "heat" / "db").exists()


def test_versions_of_what_is_gone_are_noted_up_to_a_bound(tmp_path: Path) -> None:
    shelf = SecretShelf(tmp_path)
    for number in range(300):
        shelf.put("heat", f"s{number}", number + 1, b"x")
        shelf.keep([])
    noted = json.loads((tmp_path / "heat" / ".versions").read_text())
    assert len(noted) == 257
    assert "s299" in noted
    assert "s0" not in noted


def test_a_certificate_of_others_is_not_sealed_for(tmp_path: Path, fleet: Fleet) -> None:
    stranger = Fleet(tmp_path / "stranger")
    stranger.init("test")
    joined(tmp_path / "one", "d1", stranger)
    joined(tmp_path / "two", "d2", fleet)
    for state, device, said in (("one", "d1", "another authority"), ("two", "d1", "another one")):
        with pytest.raises(CertificateError, match=said):
            recipient(Identity(tmp_path / state).certificate(), fleet.authority(), device)
    with pytest.raises(CertificateError, match="another authority"):
        recipient(b"no certificate", fleet.authority(), "d1")


def want(platform: Platform, *secrets: SealedSecret) -> None:
    platform.serial += 1
    state = encode_state(State(platform.serial, secrets=secrets))
    platform.machine.wanted(Standing(state, platform.report), time.monotonic())


def held(platform: Platform) -> tuple[SecretReport, ...]:
    return () if platform.report is None else platform.report.secrets


def test_a_real_device_opens_keeps_and_removes_what_it_is_sent(device: Device, fleet: Fleet) -> None:
    text = device.file.read_text()
    device.file.write_text(text.replace("[labels]", 'platform = "https://127.0.0.1:9"\n[labels]'))
    point = joined(device.state, "truck-1", fleet)
    path = device.state / "secrets" / "heat" / "db"

    async def story(platform: Platform) -> None:
        want(platform, SealedSecret("heat", "db", 1))
        parent = device.start()
        await platform.until(lambda: held(platform) == (SecretReport("heat", "db", 0),))
        assert platform.report is not None
        shown = platform.report.certificate
        assert recipient(shown, fleet.authority(), "truck-1")[1] == point
        want(platform, sealed(point, "heat", "db", "truck-1", 1))
        await platform.until(lambda: held(platform) == (SecretReport("heat", "db", 1),))
        assert path.read_text() == VALUE
        want(platform, sealed(point, "heat", "db", "truck-1", 2, OTHER))
        await platform.until(lambda: held(platform) == (SecretReport("heat", "db", 2),))
        assert (path.read_text(), path.stat().st_mode & 0o777) == (OTHER, 0o600)
        want(platform, sealed(point, "heat", "db", "truck-9", 3))
        await platform.until(lambda: bool(held(platform)) and "another device" in held(platform)[0].why)
        assert (held(platform)[0].version, path.read_text()) == (2, OTHER)
        want(platform)
        await platform.until(lambda: platform.report is not None and not platform.report.certificate)
        assert not path.exists()
        own = device.state / "secrets"
        files = [one for one in device.folder.rglob("*") if one.is_file() and own not in one.parents]
        files += [Path(f"/proc/{parent.pid}/{name}") for name in ("cmdline", "environ")]
        assert len(files) > 4
        assert not [one for one in files if b"planted-" in one.read_bytes()]

    device.run(story)
