"""TUF's attacks on a real device: nothing of them is installed, what runs goes on, and the report says why.

Before each attack the device runs good code from a bundle. The attacker has the platform's server, and the
keys that a test names.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from securesystemslib.signer._crypto_signer import CryptoSigner
from tuf.api.exceptions import SlowRetrievalError
from tuf.api.metadata import MetaFile

from geartrain.control.states import AppState
from geartrain_cloud.certs.fleet import Fleet
from geartrain_edge.bundles.https import HttpsFetcher, Patience
from tests.bundles.device import Device, Platform, device_world
from tests.bundles.trust import PlatformServer, Repository, dripping, endless, silent
from tests.bundles.versions import bundle
from tests.drawing import each_or_long

BETTER, ARCHIVE = bundle("better")


@pytest.fixture
def device(tmp_path: Path, broker_kind: Any) -> Iterator[Device]:
    with device_world(tmp_path, broker_kind) as found:
        yield found


def _past() -> datetime:
    return datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)


def old_version_again(repository: Repository) -> None:
    """All files are those of before the good bundle was published, and the wanted one is added."""
    before = {"trust/timestamp.json": repository.before["trust/timestamp.json"]}
    repository.files.update(before)


def frozen(repository: Repository) -> None:
    """The platform signs what expires, and then nothing any more."""
    repository.add(BETTER, ARCHIVE)
    repository.timestamp.signed.expires = _past()
    repository.publish()


def old_snapshot_in_a_new_timestamp(repository: Repository) -> None:
    """With the key of the timestamp: it names the snapshot of before."""
    repository.timestamp.signed.snapshot_meta = MetaFile(1)
    repository.timestamp.signed.version += 1
    repository.timestamp.sign(repository.keys["timestamp"])
    repository.files["trust/timestamp.json"] = repository.timestamp.to_bytes()


def mixed_versions(repository: Repository) -> None:
    """Targets of one moment under the snapshot of another."""
    old = repository.files["trust/2.targets.json"]
    repository.add(BETTER, ARCHIVE)
    repository.publish()
    repository.files[f"trust/{repository.targets.signed.version}.targets.json"] = old


def wrong_hash(repository: Repository) -> None:
    """Other bytes of the right length."""
    repository.add(BETTER, ARCHIVE, served=bytes(len(ARCHIVE)))
    repository.publish()


def wrong_length(repository: Repository) -> None:
    """The right bytes, and more of them."""
    repository.add(BETTER, ARCHIVE, served=ARCHIVE + b"more")
    repository.publish()


def endless_data(repository: Repository) -> None:
    """A bundle that never ends."""
    repository.add(BETTER, ARCHIVE)
    repository.publish()
    repository.tricks["bundles/"] = endless


def endless_metadata(repository: Repository) -> None:
    """A timestamp that never ends."""
    repository.tricks["timestamp.json"] = endless


def stolen_online_keys(repository: Repository) -> None:
    """With the keys of snapshot and timestamp: targets that the thief has signed himself."""
    repository.keys["targets"] = CryptoSigner.generate_ed25519()
    repository.add(BETTER, ARCHIVE)
    repository.publish()


def stolen_author_key_after_rotation(repository: Repository) -> None:
    """The author's key was stolen and taken out of the root; the thief signs with it, and has all others."""
    stolen = repository.keys["targets"]
    fresh = CryptoSigner.generate_ed25519()
    repository.root.signed.revoke_key(stolen.public_key.keyid, "targets")
    repository.root.signed.add_key(fresh.public_key, "targets")
    repository.publish_root()
    repository.add(BETTER, ARCHIVE)
    repository.publish()


def replaced_root(repository: Repository) -> None:
    """A root of the attacker's own, with keys of his own below it."""
    thief = Repository()
    thief.root.signed.version = 1
    thief.publish_root()
    thief.targets.signed.version = thief.snapshot.signed.version = thief.timestamp.signed.version = 50
    thief.add(BETTER, ARCHIVE)
    thief.publish()
    repository.files = thief.files


def replaced_first_root(repository: Repository) -> None:
    """The same under the first root's name."""
    thief = Repository()
    thief.targets.signed.version = thief.snapshot.signed.version = thief.timestamp.signed.version = 50
    thief.add(BETTER, ARCHIVE)
    thief.publish()
    repository.files = thief.files


def other_code_under_a_name(repository: Repository) -> None:
    """An author signs another bundle under the name that is wanted."""
    repository.add(BETTER, bundle("exits")[1])
    repository.publish()


def garbage_in_a_bundle(repository: Repository) -> None:
    """An author signs what is no archive."""
    repository.add(BETTER, b"PK\x03\x04" + bytes(10_000))
    repository.publish()


Attack = Callable[[Repository], None]
ATTACKS: list[tuple[Attack, str]] = [
    (old_version_again, "do not follow on those that this device has seen"),
    (old_snapshot_in_a_new_timestamp, "do not follow on those that this device has seen"),
    (frozen, "UTC) the platform's metadata have expired"),
    (mixed_versions, "do not follow on those that this device has seen"),
    (wrong_hash, "not what the metadata say"),
    (wrong_length, "more came than the metadata say"),
    (endless_data, "more came than the metadata say"),
    (endless_metadata, "more came than the metadata say"),
    (stolen_online_keys, "not signed by those whom this device trusts"),
    (stolen_author_key_after_rotation, "not signed by those whom this device trusts"),
    (replaced_root, "not signed by those whom this device trusts"),
    (replaced_first_root, "not signed by those whom this device trusts"),
    (other_code_under_a_name, "holds other code"),
    (garbage_in_a_bundle, "zip archive"),
]


@pytest.mark.parametrize(
    ("attack", "words"),
    each_or_long("attacks on a device", ATTACKS, 4, lambda one: one[0].__name__),
)
def test_nothing_of_an_attack_is_installed(device: Device, attack: Attack, words: str) -> None:
    async def story(platform: Platform) -> None:
        device.repository.before = device.repository.copy()
        good = platform.submit("good")
        device.start()
        await platform.until_runs(good)
        pid = device.status()["pid"]
        attack(device.repository)
        platform.want(BETTER)
        await platform.until(lambda: words in platform.why)
        await platform.until_rows()
        assert device.bundles() == {good}
        assert (device.status()["pid"], platform.state) == (pid, AppState.RUNNING)
        left = {path.name for path in (device.state / "bundles").iterdir()} - {good}
        assert left <= {"choices.json", "lock", "trust"}

    device.tell(story)


@pytest.mark.parametrize("trick", [dripping, silent], ids=["body", "head"])
def test_what_comes_too_slowly_is_given_up(tmp_path: Path, trick: Any) -> None:
    """The fetcher itself, with little patience: the device's is half a minute."""
    fleet = Fleet(tmp_path / "fleet")
    fleet.init("test")
    fleet.issue("server", "127.0.0.1")
    fleet.issue("device", "truck-1")
    own, repository = fleet.paths("server", "127.0.0.1"), Repository()
    repository.tricks["timestamp"] = trick
    server = PlatformServer(repository, fleet.ca, own.certificate, own.key)
    context = ssl.create_default_context(cafile=str(fleet.ca))
    identity = fleet.paths("device", "truck-1")
    context.load_cert_chain(identity.certificate, identity.key)
    fetcher = HttpsFetcher(server.url, context, Patience(silence_s=1.0, head_s=1.0, grace_s=1.0, rate=500))
    try:
        assert fetcher.download_bytes(f"{server.url}/v1/trust/1.root.json", 100_000)
        with pytest.raises(SlowRetrievalError, match=r"comes too slowly|has not answered"):
            fetcher.download_bytes(f"{server.url}/v1/trust/timestamp.json", 100_000)
    finally:
        server.close()


@pytest.mark.proof
@pytest.mark.parametrize(
    ("part", "trick"), [("timestamp", dripping), ("bundles/", silent)], ids=["metadata", "bundle"]
)
def test_a_platform_that_drips_holds_up_nothing_else(device: Device, part: str, trick: Any) -> None:
    """Slow retrieval: the fetch is given up, again and again, and what runs goes on."""

    async def story(platform: Platform) -> None:
        good = platform.submit("good")
        device.start()
        await platform.until_runs(good)
        pid = device.status()["pid"]
        device.repository.add(BETTER, ARCHIVE)
        device.repository.publish()
        device.repository.tricks[part] = trick
        platform.want(BETTER)
        await platform.until(lambda: "it comes too slowly" in platform.why)
        asked = len(device.repository.asked)
        await platform.until(lambda: len(device.repository.asked) > asked)  # it is tried again
        await platform.until_rows()
        assert (device.bundles(), device.status()["pid"]) == ({good}, pid)
        device.repository.tricks.clear()
        await platform.until_runs(BETTER)

    device.file.write_text(f"{device.file.read_text()}patience_s = 2\n")  # in the table [bundles]
    device.tell(story)


def test_a_device_whose_clock_is_wrong_installs_nothing(device: Device) -> None:
    async def story(platform: Platform) -> None:
        good = platform.submit("good")
        device.start()
        await platform.until_runs(good)
        seen = device.state / "bundles" / "trust" / "seen"
        seen.write_text(str(int(seen.read_text()) + 3_600))  # as if the clock had been set back since
        platform.submit("better")
        await platform.until(lambda: "clock is not trusted" in platform.why)
        await platform.until_rows()
        assert device.bundles() == {good}

    device.tell(story)


def test_a_device_without_a_network_starts_with_what_it_has_and_gets_the_rest_later(device: Device) -> None:
    async def story(platform: Platform) -> None:
        good = platform.submit("good")
        device.start()
        await platform.until_runs(good)
        files, device.repository.files = device.repository.files, {}
        platform.want(BETTER)
        await platform.until(lambda: "the platform does not give it" in platform.why)
        device.kill()
        device.start()
        await platform.until_rows()
        assert device.runs() == good
        device.repository.files = files
        device.repository.add(BETTER, ARCHIVE)
        device.repository.publish()
        await platform.until_runs(BETTER)

    device.tell(story)
