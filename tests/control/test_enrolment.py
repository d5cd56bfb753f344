"""Enrolment over a real HTTPS listener: tokens that are good once, certificates, and who may ask what."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from geartrain.control.sealed import POINT_BYTES
from geartrain_cloud.certs import Fleet
from geartrain_cloud.control.device_listener import BODY_BYTES_MAX
from geartrain_cloud.control.enrolment import LIVE_MAX, RETIRED_US
from geartrain_cloud.control_store.errors import NotFoundError
from geartrain_cloud.control_store.tokens import Tokens
from geartrain_cloud.errors import CertificateError
from tests.control.enrolled import DAY_S, Key, opened


def test_a_token_is_good_once_and_its_key_may_ask_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path) as world:
            world.store.devices.add("truck-1", {})
            invited = world.enrolment.invite("truck-1", DAY_S)
            assert invited["url"] == f"https://localhost:{world.port}"
            assert world.enrolment.standing("truck-1")["joins_until_us"] == invited["expires_us"]
            key = Key()
            body = {"token": invited["token"], "request": key.request}
            status, found = await world.ask("POST", "/v1/join", body)
            assert (status, found["device"], found["broker"]) == (200, "truck-1", "localhost:8883")
            made = x509.load_pem_x509_certificate(found["certificate"].encode())
            assert [one.value for one in made.subject] == ["truck-1"]  # whatever the request says
            identity = world.keep(key, found["certificate"])
            assert await world.ask("GET", "/v1/who", identity=identity) == (200, {"device": "truck-1"})
            again, _ = await world.ask("POST", "/v1/join", body)
            assert again == 200
            said = await world.refused("POST", "/v1/join", body | {"request": Key().request})
            assert "used already" in said
            assert world.enrolment.standing("truck-1")["joins_until_us"] is None
            until_s = (world.enrolment.standing("truck-1")["certificate_until_us"] or 0) / 1e6
            assert until_s == pytest.approx(time.time() + 90 * DAY_S, abs=60)

    asyncio.run(story())


def test_a_token_is_kept_as_a_digest_only(tmp_path: Path) -> None:
    async def story() -> str:
        async with opened(tmp_path) as world:
            world.store.devices.add("truck-1", {})
            return str(world.enrolment.invite("truck-1", DAY_S)["token"])

    token = asyncio.run(story())
    assert len(token) >= 32
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert path.stat().st_mode & 0o077 == 0, path
            assert token.encode() not in path.read_bytes()


def test_what_is_no_good_token_is_refused_in_a_sentence(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path) as world:
            world.store.devices.add("truck-1", {})
            request, old = Key().request, world.enrolment.invite("truck-1", DAY_S)["token"]
            token = world.enrolment.invite("truck-1", DAY_S)["token"]

            async def said(token: str) -> str:
                return await world.refused("POST", "/v1/join", {"token": token, "request": request})

            assert "does not know this token" in await said("x" * 32)
            assert "does not know this token" in await said(old)
            world.clock[0] += round(DAY_S * 1e6)
            assert "has expired" in await said(token)
            assert "gear device token truck-1" in await said(token)
            token = world.enrolment.invite("truck-1", DAY_S)["token"]
            world.store.devices.retire("truck-1")
            assert "was retired" in await said(token)
            world.enrolment.retire("truck-1")
            assert "does not know this token" in await said(token)
            with pytest.raises(NotFoundError):
                world.enrolment.invite("truck-1", DAY_S)

    asyncio.run(story())


def test_a_request_that_nobody_should_sign_is_refused(tmp_path: Path) -> None:
    strange = rsa.generate_private_key(65_537, 2_048)
    made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(strange, hashes.SHA256())
    of_rsa = made.public_bytes(serialization.Encoding.PEM).decode()
    good = Key().request
    spoiled = good[:100] + ("A" if good[100] != "A" else "B") + good[101:]

    async def story() -> None:
        async with opened(tmp_path) as world:
            world.store.devices.add("truck-1", {})
            token = world.enrolment.invite("truck-1", DAY_S)["token"]
            for request in (of_rsa, spoiled, "", "-----BEGIN CERTIFICATE REQUEST-----"):
                assert "signing request" in await world.refused(
                    "POST", "/v1/join", {"token": token, "request": request}
                )
            assert "unknown field" in await world.refused("POST", "/v1/join", {"name": "x"})
            huge = {"token": "x" * BODY_BYTES_MAX, "request": ""}
            assert "at most" in await world.refused("POST", "/v1/join", huge)
            assert "nothing of this name" in await world.refused("GET", "/v1/apps")
            assert "nothing of this name" in await world.refused("GET", "/api/v1/apps")
            assert (await world.join(Key())).exists()

    asyncio.run(story())


def test_only_who_shows_a_good_certificate_may_ask(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path) as world:
            world.store.devices.add("truck-1", {})
            identity = await world.join(Key())
            assert "show the certificate" in await world.refused("GET", "/v1/who")
            cloud = world.enrolment.fleet.paths("cloud", "ingest")
            both = tmp_path / "cloud.pem"
            both.write_bytes(cloud.key.read_bytes() + cloud.certificate.read_bytes())
            assert "device" in await world.refused("GET", "/v1/who", identity=both)
            assert world.enrolment.revoke("truck-1") == 1
            assert "good no longer" in await world.refused("GET", "/v1/who", identity=identity)
            assert "good no longer" in await world.refused(
                "POST", "/v1/renew", {"request": Key().request}, identity
            )
            assert world.enrolment.revoke("truck-1") == 0
            listed = x509.load_pem_x509_crl(world.enrolment.fleet.crl.read_bytes())
            made = x509.load_pem_x509_certificate(identity.read_bytes())
            assert listed.get_revoked_certificate_by_serial_number(made.serial_number) is not None

    asyncio.run(story())


def test_a_certificate_is_renewed_by_itself_and_not_without_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path) as world:
            world.store.devices.add("truck-1", {})
            identity, key = await world.join(Key()), Key()
            status, found = await world.ask("POST", "/v1/renew", {"request": key.request}, identity)
            assert status == 200
            fresh = world.keep(key, found["certificate"])
            for one in (identity, fresh):  # the earlier one goes on to its end
                assert await world.ask("GET", "/v1/who", identity=one) == (200, {"device": "truck-1"})
            for _ in range(LIVE_MAX - 2):
                assert (await world.ask("POST", "/v1/renew", {"request": key.request}, fresh))[0] == 200
            said = await world.refused("POST", "/v1/renew", {"request": key.request}, fresh)
            assert f"{LIVE_MAX} good certificates" in said

    asyncio.run(story())


def test_who_joins_under_a_name_takes_it_from_the_one_before(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path) as world:
            world.store.devices.add("truck-1", {})
            first = await world.join(Key())
            second = await world.join(Key())
            assert "good no longer" in await world.refused("GET", "/v1/who", identity=first)
            assert (await world.ask("GET", "/v1/who", identity=second))[0] == 200

    asyncio.run(story())


def test_secrets_are_sealed_for_a_good_certificate_of_the_device_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path) as world:
            for name in ("truck-1", "truck-2"):
                world.store.devices.add(name, {})
            first, other = await world.join(Key()), await world.join(Key(), "truck-2")
            shown = {path: der(path) for path in (first, other)}
            assert len(world.enrolment.point_of("truck-1", shown[first])) == POINT_BYTES
            with pytest.raises(CertificateError, match="the certificate of another one"):
                world.enrolment.point_of("truck-1", shown[other])
            second = await world.join(Key())
            with pytest.raises(CertificateError, match="good no longer"):
                world.enrolment.point_of("truck-1", shown[first])
            world.enrolment.point_of("truck-1", der(second))
            world.enrolment.revoke("truck-1")
            with pytest.raises(CertificateError, match="good no longer"):
                world.enrolment.point_of("truck-1", der(second))

    asyncio.run(story())


def der(identity: Path) -> bytes:
    found = x509.load_pem_x509_certificate(identity.read_bytes())
    return found.public_bytes(serialization.Encoding.DER)


def test_a_retired_device_loses_its_certificate_once_it_had_the_time_to_hear_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path) as world:
            world.store.devices.add("truck-1", {})
            await world.join(Key())
            world.store.devices.retire("truck-1")
            world.enrolment.retire("truck-1")
            world.enrolment.round()
            assert world.enrolment.standing("truck-1")["certificate_until_us"] is not None
            world.clock[0] += RETIRED_US
            world.enrolment.round()
            assert world.enrolment.standing("truck-1")["certificate_until_us"] is None

    asyncio.run(story())


def test_a_control_that_was_killed_after_a_retirement_revokes_when_it_is_back(tmp_path: Path) -> None:
    async def before() -> None:
        async with opened(tmp_path) as world:
            world.store.devices.add("truck-1", {})
            await world.join(Key())
            world.store.devices.retire("truck-1")

    async def after() -> object:
        async with opened(tmp_path) as world:
            world.enrolment.round()
            return world.enrolment.standing("truck-1")["certificate_until_us"]

    asyncio.run(before())
    assert asyncio.run(after()) is None


class KilledError(BaseException):
    """What a kill -9 is in one process: nothing after it runs."""


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["revoke", "use", "sign"])
def test_a_control_that_is_killed_while_a_device_joins_lets_it_join_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, *, is_done: bool
) -> None:
    """The card is made anew: the one before has a good certificate until the new one joins."""
    kind = Tokens if step == "use" else Fleet
    right = getattr(kind, step)

    def killed(*given: object) -> None:
        if is_done:
            right(*given)
        raise KilledError

    async def before(key: Key) -> tuple[Path, str]:
        async with opened(tmp_path) as world:
            world.store.devices.add("truck-1", {})
            first = await world.join(Key())
            token = str(world.enrolment.invite("truck-1", DAY_S)["token"])
            with monkeypatch.context() as patched:
                patched.setattr(kind, step, killed)
                with pytest.raises(KilledError):
                    world.enrolment.join(token, key.request.encode())
            return first, token

    async def after(key: Key, first: Path, token: str) -> None:
        async with opened(tmp_path) as world:
            status, found = await world.ask("POST", "/v1/join", {"token": token, "request": key.request})
            assert status == 200
            identity = world.keep(key, found["certificate"])
            assert await world.ask("GET", "/v1/who", identity=identity) == (200, {"device": "truck-1"})
            assert "good no longer" in await world.refused("GET", "/v1/who", identity=first)
            assert "used already" in await world.refused(
                "POST", "/v1/join", {"token": token, "request": Key().request}
            )

    key = Key()
    asyncio.run(after(key, *asyncio.run(before(key))))
