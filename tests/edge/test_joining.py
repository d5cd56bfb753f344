"""A device joins a platform and renews what it got there: over real TLS, cut off anywhere, and refused."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from geartrain.adapters.toml_text import to_toml
from geartrain.errors import GeartrainError
from geartrain_cloud.certs import SERVER
from geartrain_cloud.control.device_listener import device_context, listen_for_devices, make_device_app
from geartrain_cloud.platform.config import FleetSection
from geartrain_edge.identity import Files, Identity
from geartrain_edge.joining.asking import Platform
from geartrain_edge.joining.errors import JoinError, NotYetError
from geartrain_edge.joining.join import Invitation, Place, join, renew
from geartrain_edge.parent.config import read_device
from tests.control.enrolled import DAY_S, World, opened
from tests.ports import free_port
from tests.waiting import WAIT_S, in_time


def invitation(world: World, device: str = "truck-1") -> Invitation:
    found = world.enrolment.invite(device, DAY_S)
    return Invitation(found["url"], found["token"], found["ca_fingerprint"])


def place_in(folder: Path) -> Place:
    return Place(folder / "etc" / "device.toml", folder / "var")


async def joined(place: Place, asked: Invitation) -> str:
    return await asyncio.to_thread(
        lambda: join(place, asked, Platform(asked.url), Files(place.state)),
    )


def private_files(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in found)
    return found


async def started(*arguments: str) -> asyncio.subprocess.Process:
    """`gear-agent` as a process."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "geartrain_edge.agent.process",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run(*arguments: str, given: str = "", kill_after_s: float = 0.0) -> tuple[int, str, str]:
    """`gear-agent` until its end, or killed after so long."""
    process = await started(*arguments)
    if kill_after_s:
        await asyncio.sleep(kill_after_s)
        with suppress(ProcessLookupError):
            process.kill()
    out, said = await in_time("the end of gear-agent", process.communicate(given.encode()))
    return process.returncode or 0, out.decode(), said.decode()


def test_a_device_joins_by_the_line_and_keeps_what_it_got_to_itself(tmp_path: Path) -> None:
    async def story() -> str:
        async with opened(tmp_path / "platform") as world:
            world.store.devices.add("truck-1", {})
            asked, device = invitation(world), tmp_path / "device"
            words = ["join", asked.url, "--token-file", "-", "--ca-fingerprint", asked.ca_fingerprint]
            file = device / "device.toml"
            code, out, said = await run(*words, "--device", str(file), given=f"{asked.token}\n")
            assert (code, said) == (0, "")
            assert out.startswith("joined as truck-1: gear-agent --device ")
            identity = Identity(device / "state")
            assert (await world.ask("GET", "/v1/who", identity=identity.file))[1] == {"device": "truck-1"}
            left = await run(
                "join",
                asked.url,
                asked.token,
                "--ca-fingerprint",
                asked.ca_fingerprint,
                "--device",
                str(tmp_path / "other" / "device.toml"),
            )
            assert left[0] == 2
            assert "used already" in left[2]
            return asked.token

    token = asyncio.run(story())
    for path in private_files(tmp_path / "device"):
        assert token not in path.read_text()
    config = read_device(str(tmp_path / "device" / "device.toml"))
    assert (config.device, config.broker.port) == ("truck-1", 8883)
    assert config.broker.tls_context is not None
    assert config.platform.startswith("https://localhost:")


def test_a_file_with_the_invitation_goes_once_the_device_has_joined(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path / "platform") as world:
            world.store.devices.add("truck-1", {})
            asked, device = invitation(world), tmp_path / "device"
            device.mkdir()
            source = device / "join.toml"
            source.write_text(
                to_toml({"url": asked.url, "token": asked.token, "ca_fingerprint": asked.ca_fingerprint})
            )
            code, _, said = await run("join", "--from", str(source), "--device", str(device / "device.toml"))
            assert (code, said) == (0, "")
            assert not source.exists()
            code, _, said = await run("join", "--from", str(source), "--device", str(device / "device.toml"))
            assert code == 2
            assert "join.toml cannot be read" in said

    asyncio.run(story())


def test_with_a_file_it_waits_until_there_is_a_network(tmp_path: Path) -> None:
    async def story() -> None:
        fleet = FleetSection(address="localhost", device_port=free_port())
        async with opened(tmp_path / "platform", fleet) as world:
            world.store.devices.add("truck-1", {})
            asked = invitation(world)
        source = tmp_path / "join.toml"
        source.write_text(
            to_toml({"url": asked.url, "token": asked.token, "ca_fingerprint": asked.ca_fingerprint})
        )
        words = ("join", "--from", str(source), "--device", str(tmp_path / "device.toml"))
        process = await started(*words)
        assert process.stderr is not None
        first = await in_time("the first line of gear-agent", process.stderr.readline())
        assert b"is there a network?; trying again" in first
        async with opened(tmp_path / "platform", fleet):
            out, said = await in_time("the end of gear-agent", process.communicate())
        assert (process.returncode, out[:17], said) == (0, b"joined as truck-1", b"")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda one: {"token": "x" * 32}, JoinError, "does not know this token"),
        (lambda one: {"ca_fingerprint": "sha256:" + "0" * 64}, JoinError, "join line's fingerprint"),
        (lambda one: {"ca_fingerprint": "0" * 63}, JoinError, "64 hexadecimal digits"),
        (lambda one: {"url": "http://localhost:1"}, JoinError, "write https://HOST:PORT"),
        (lambda one: {"url": f"https://localhost:{free_port()}"}, NotYetError, "is there a network?"),
        (
            lambda one: {"url": one.url.replace("localhost", "127.0.0.2")},
            (JoinError, NotYetError),
            "127.0.0.2",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(
    tmp_path: Path,
    change: Callable[[Invitation], dict[str, str]],
    kind: type[GeartrainError],
    said: str,
) -> None:
    async def story() -> None:
        async with opened(tmp_path / "platform") as world:
            world.store.devices.add("truck-1", {})
            good = invitation(world)
            asked = Invitation(**{f: getattr(good, f) for f in good.__struct_fields__} | change(good))
            place = place_in(tmp_path / "device")

            with pytest.raises(kind) as caught:
                await joined(place, asked)
            assert said in str(caught.value)
            assert len(str(caught.value).splitlines()) == 1
            assert not place.device.exists()
            # The same device joins with what is right.
            assert await joined(place, good) == "truck-1"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b"two words", "must hold one word"), (b"caf\xc3\xa9\xff", "must hold one word")],
)
def test_a_file_without_a_token_is_a_sentence_without_what_it_holds(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "token").write_bytes(content)
    place = ["--device", str(tmp_path / "device.toml"), "--token-file", str(tmp_path / "token")]
    code, _, err = asyncio.run(run("join", "https://localhost:1", *place, "--ca-fingerprint", "sha256:0"))
    assert code == 2
    assert said in err
    assert "codec" not in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("begins_in", "said"),
    [(timedelta(days=20), "is not valid yet: set"), (timedelta(days=-20), "has ended: set")],
)
def test_a_clock_that_is_not_set_is_named(tmp_path: Path, begins_in: timedelta, said: str) -> None:
    """A device whose clock is behind sees a certificate of the future; it is made, for clocks stay alone."""

    async def story() -> None:
        async with opened(tmp_path / "platform") as world:
            fleet, port, now = world.enrolment.fleet, free_port(), datetime.now(UTC)
            for path in (fleet.paths(SERVER, "localhost").certificate, fleet.paths(SERVER, "localhost").key):
                path.unlink()
            fleet.issue(SERVER, "localhost", days=10, now=now + begins_in)
            routes = make_device_app([], world.enrolment.check)
            runner = await listen_for_devices(routes, device_context(fleet, "localhost"), "localhost", port)
            authority = fleet.ca.read_text()
            with pytest.raises(NotYetError) as caught:
                await asyncio.to_thread(
                    lambda: Platform(f"https://localhost:{port}").post("/v1/join", {}, authority)
                )
            await runner.cleanup()
            assert said in str(caught.value)

    asyncio.run(story())


def test_the_file_of_another_device_is_left_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path / "platform") as world:
            world.store.devices.add("truck-1", {})
            asked, place = invitation(world), place_in(tmp_path / "device")
            place.device.parent.mkdir(parents=True)
            before = 'device = "truck-2"\nstate = "state"\n'
            place.device.write_text(before)
            with pytest.raises(JoinError, match="is that of device truck-2"):
                await joined(place, asked)
            assert place.device.read_text() == before

    asyncio.run(story())


def test_what_a_person_wrote_into_the_file_stays(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path / "platform") as world:
            world.store.devices.add("truck-1", {})
            place = place_in(tmp_path / "device")
            for _ in range(2):  # a device whose card was made anew joins under its name again
                asked = invitation(world)
                await joined(place, asked)
                place.device.write_text(
                    place.device.read_text() + "\n[apps.heat.sources.readings]\npath = '/dev/ttyS0'\n"
                    if "apps" not in place.device.read_text()
                    else place.device.read_text()
                )
            assert 'path = "/dev/ttyS0"' in place.device.read_text()
            place.device.chmod(0o600)
            assert read_device(str(place.device)).apps["heat"].sources == {"readings": {"path": "/dev/ttyS0"}}

    asyncio.run(story())


class KilledError(BaseException):
    """What a kill -9 is in one process: nothing after it runs."""


class Mortal:
    """The platform and the disk of a device that dies before or after its `last` effect."""

    def __init__(self, platform: Platform, files: Files, last: int) -> None:
        self._platform, self._files, self._left = platform, files, last
        self.url = platform.url

    def _do(self, work: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left == 0:
            raise KilledError
        found = work()
        self._left -= 1
        if self._left == 0:
            raise KilledError
        return found

    def authority(self, fingerprint: str) -> str:
        return str(self._do(lambda: self._platform.authority(fingerprint)))

    def post(
        self, path: str, body: dict[str, str], authority: str, identity: Path | None = None
    ) -> dict[str, Any]:
        found: dict[str, Any] = self._do(lambda: self._platform.post(path, body, authority, identity))
        return found

    def write(self, path: Path, content: bytes) -> None:
        self._do(lambda: self._files.write(path, content))

    def remove(self, path: Path) -> None:
        self._do(lambda: self._files.remove(path))


def lives() -> Iterator[int]:
    """How many effects, their beginnings and ends counted, a device lives to see."""
    yield from range(1, 40)


def test_killed_at_every_step_a_device_is_joined_or_joins_when_it_is_asked_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path / "platform") as world:
            survived = 0
            for last in lives():
                name = f"truck-{last}"
                world.store.devices.add(name, {})
                asked, folder = invitation(world, name), tmp_path / name
                source = folder / "join.toml"
                place = Place(folder / "device.toml", folder / "state", source)
                folder.mkdir()
                source.write_text(asked.token)

                def attempt(last: int, asked: Invitation = asked, place: Place = place) -> str:
                    mortal = Mortal(Platform(asked.url), Files(place.state), last)
                    return join(place, asked, mortal, mortal)

                try:
                    found = await asyncio.to_thread(attempt, last)
                    survived += 1
                except KilledError:
                    found = await asyncio.to_thread(attempt, 0) if source.exists() else name
                assert found == name
                assert read_device(str(place.device)).device == name
                identity = Identity(place.state)
                assert (await world.ask("GET", "/v1/who", identity=identity.file))[1] == {"device": name}
                assert not source.exists()
                assert not identity.key.exists() or last in (15, 14)
                assert not [path for path in private_files(folder) if asked.token in path.read_text()]
            # Six files written or removed and two questions, each with a beginning and an end.
            assert survived == len(list(lives())) - 2 * 8

    asyncio.run(story())


def test_killed_at_every_step_of_a_renewal_a_device_has_a_good_certificate(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path / "platform") as world:
            for last in range(1, 6):
                name = f"truck-{last}"
                world.store.devices.add(name, {})
                asked, place = invitation(world, name), place_in(tmp_path / name)
                files = Files(place.state)
                await joined(place, asked)
                identity = Identity(place.state)
                before = identity.file.read_bytes()
                mortal = Mortal(Platform(asked.url), files, last)

                def attempt(name: str = name, identity: Identity = identity, mortal: Mortal = mortal) -> None:
                    renew(name, identity, mortal, mortal)

                try:
                    await asyncio.to_thread(attempt)
                except KilledError:
                    assert last < 5
                assert (identity.file.read_bytes() == before) == (last < 4)
                assert (await world.ask("GET", "/v1/who", identity=identity.file))[1] == {"device": name}

    asyncio.run(story())


def test_a_process_that_is_killed_at_any_time_joins_the_next_time(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path / "platform") as world:
            killed = 0
            for number in range(8):
                name = f"truck-{number}"
                world.store.devices.add(name, {})
                asked, file = invitation(world, name), tmp_path / name / "device.toml"
                words = ["join", asked.url, asked.token, "--ca-fingerprint", asked.ca_fingerprint]
                code, *_ = await run(*words, "--device", str(file), kill_after_s=0.1 * (number + 1))
                killed += code == -signal.SIGKILL
                code, _, said = await run(*words, "--device", str(file))
                assert code == 0 or "used already" in said, said  # one that had joined before it was killed
                identity = Identity(file.parent / "state").file
                assert (await world.ask("GET", "/v1/who", identity=identity))[1] == {"device": name}
            assert killed

    asyncio.run(story())


def test_gear_agent_renews_before_the_end_and_says_so_after_it(tmp_path: Path) -> None:
    async def story() -> None:
        life_s = 15.0
        fleet = FleetSection(address="localhost", device_port=free_port(), certificate_days=life_s / DAY_S)
        async with opened(tmp_path / "platform", fleet) as world:
            world.store.devices.add("truck-1", {})
            asked, place = invitation(world), place_in(tmp_path / "device")
            await joined(place, asked)
            identity = Identity(place.state)
            first = x509.load_pem_x509_certificate(identity.file.read_bytes())
            term = identity.term()
            assert term.expires_s - term.issued_s == pytest.approx(life_s, abs=2)
            soonest, latest = (term.renewal_s(chance) - term.issued_s for chance in (0, 1))
            assert life_s / 2 < soonest < latest < life_s
            code, out, said = await run("renew", "--device", str(place.device))
            assert (code, said) == (0, "")
            assert "the certificate of truck-1 is good until" in out
            second = x509.load_pem_x509_certificate(identity.file.read_bytes())
            assert second.public_key() != first.public_key()
            assert (await world.ask("GET", "/v1/who", identity=identity.file))[0] == 200
            await asyncio.sleep(max(0.0, identity.term().expires_s - time.time()) + 0.1)
            code, _, said = await run("renew", "--device", str(place.device))
            assert code == 2
            assert "by this device's clock (20" in said
            assert "has ended: set the clock if it is wrong, or else join anew" in said

    asyncio.run(story())


def test_without_its_library_it_says_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "cryptography"
    hidden.mkdir()
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError('no', name='cryptography')")
    found = subprocess.run(
        [sys.executable, "-m", "geartrain_edge.agent.process", "join", "https://localhost:1"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert found.returncode == 2
    assert (
        found.stderr
        == "gear-agent: to join a platform install the extra: pip install 'geartrain-edge[fleet]'\n"
    )


def test_the_parent_of_the_agents_loads_no_library_for_certificates() -> None:
    look = "import sys, geartrain_edge.parent.main; print('cryptography' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
