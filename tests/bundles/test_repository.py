"""The platform's repository: what it takes, what it refuses, and what a device sees at every step."""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tuf.api.exceptions import ExpiredMetadataError, RepositoryError, UnsignedMetadataError
from tuf.api.metadata import Metadata, Root, Targets

from geartrain.bundle import Archive
from geartrain.errors import MistakeError
from geartrain_client.signing.keys import Author
from geartrain_client.signing.metadata import first_root, next_root, next_targets, target_of, text_of
from geartrain_cloud.bundles import repository as module
from geartrain_cloud.bundles.repository import Repository
from geartrain_cloud.errors import TrustConflictError, TrustError
from tests.bundles.signed import Clock, author, begin, publish, seen_by, send

ONE = {"mine/__init__.py": b"", "mine/flow.py": b"flow = 1\n"}
TWO = {"mine/__init__.py": b"", "mine/flow.py": b"flow = 2\n"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def alice(tmp_path: Path) -> Author:
    return author(tmp_path / "keys")


@pytest.fixture
def repository(tmp_path: Path, clock: Clock, alice: Author) -> Repository:
    made = Repository(tmp_path / "bundles", clock)
    begin(made, alice, clock())
    return made


def files_of(raw: bytes | None) -> dict[str, bytes]:
    assert raw is not None
    found = Archive(io.BytesIO(raw))
    return {name: b"".join(parts) for name, parts in found.files() if name in found.manifest.files}


def test_a_device_gets_what_an_author_has_signed(
    repository: Repository, alice: Author, clock: Clock, tmp_path: Path
) -> None:
    code = publish(repository, alice, ONE, tmp_path, clock())
    assert files_of(seen_by(repository, tmp_path / "device", code)) == ONE
    other = publish(repository, alice, TWO, tmp_path, clock())
    for device in ("device", "another"):
        assert files_of(seen_by(repository, tmp_path / device, code)) == ONE
        assert files_of(seen_by(repository, tmp_path / device, other)) == TWO
    assert seen_by(repository, tmp_path / "device", "0" * 64) is None


def test_the_platforms_keys_are_its_own_and_private(repository: Repository, tmp_path: Path) -> None:
    keys = sorted((tmp_path / "bundles" / "keys").iterdir())
    assert [path.name for path in keys] == ["snapshot.pem", "timestamp.pem"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    again = Repository(tmp_path / "bundles", Clock())
    assert again.keys == repository.keys
    keys[0].chmod(0o644)
    with pytest.raises(TrustError, match=r"snapshot.pem can be read by others .*chmod 600"):
        Repository(tmp_path / "bundles", Clock())


def test_it_opens_as_it_was(repository: Repository, alice: Author, clock: Clock, tmp_path: Path) -> None:
    code = publish(repository, alice, ONE, tmp_path, clock())
    again = Repository(tmp_path / "bundles", clock)
    assert again.archive(code) == repository.archive(code)
    publish(again, alice, TWO, tmp_path, clock())
    assert again.targets is not None
    assert again.targets.signed.version == 2


def test_the_code_is_unpacked_whole(
    repository: Repository, alice: Author, clock: Clock, tmp_path: Path
) -> None:
    code = publish(repository, alice, ONE, tmp_path, clock())
    folder = repository.unpacked(code)
    assert folder is not None
    assert {name: (folder / name).read_bytes() for name in ONE} == ONE
    assert repository.unpacked(code) == folder
    assert repository.unpacked("0" * 64) is None


def test_snapshot_and_timestamp_are_signed_anew_before_they_expire(
    repository: Repository, alice: Author, clock: Clock, tmp_path: Path
) -> None:
    code = publish(repository, alice, ONE, tmp_path, clock())
    device = tmp_path / "device"
    assert not repository.refresh()
    changed = 0
    for _ in range(24 * 9):
        clock.pass_by(timedelta(hours=1))
        changed += repository.refresh()
        now = clock()
        for name in ("timestamp", "snapshot"):
            signed = getattr(repository, f"_{name}").signed
            assert not signed.is_expired(now)
    assert 9 <= changed <= 24
    assert files_of(seen_by(repository, device, code)) == ONE
    again = Repository(tmp_path / "bundles", clock)
    assert not again.refresh()


def test_without_the_platform_metadata_expire(
    repository: Repository, alice: Author, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.pass_by(-timedelta(days=2))
    code = publish(repository, alice, ONE, tmp_path, clock())
    with pytest.raises(ExpiredMetadataError, match=r"timestamp.json is expired"):
        seen_by(repository, tmp_path / "device", code)


def test_another_author_is_trusted_by_a_new_root_and_no_sooner(
    repository: Repository, alice: Author, clock: Clock, tmp_path: Path
) -> None:
    bob = author(tmp_path / "keys", "bob")
    first = publish(repository, alice, ONE, tmp_path, clock())
    device = tmp_path / "device"
    assert seen_by(repository, device, first) is not None
    with pytest.raises(
        TrustError, match=r"not signed by a key that the platform's root trusts.*gear key trust"
    ):
        publish(repository, bob, TWO, tmp_path, clock())
    assert repository.root is not None
    added = next_root(repository.root, alice, clock(), add=("bob", bob.targets.public_key))
    repository.put_root(text_of(added).encode())
    second = publish(repository, bob, TWO, tmp_path, clock())
    assert files_of(seen_by(repository, device, second)) == TWO
    assert files_of(seen_by(repository, device, first)) == ONE


def test_a_key_is_taken_away_once_the_bundles_do_not_rest_on_it(
    repository: Repository, alice: Author, clock: Clock, tmp_path: Path
) -> None:
    bob = author(tmp_path / "keys", "bob")
    assert repository.root is not None
    repository.put_root(
        text_of(next_root(repository.root, alice, clock(), add=("bob", bob.targets.public_key))).encode()
    )
    code = publish(repository, bob, ONE, tmp_path, clock())
    removed = text_of(
        next_root(repository.root, alice, clock(), remove=bob.targets.public_key.keyid)
    ).encode()
    with pytest.raises(TrustError, match="sign them with a key that stays"):
        repository.put_root(removed)
    repository.put_targets(text_of(next_targets(repository.targets, alice, clock())).encode(), ())
    repository.put_root(removed)
    assert files_of(seen_by(repository, tmp_path / "device", code)) == ONE
    with pytest.raises(TrustError, match="not signed by a key that the platform's root trusts"):
        publish(repository, bob, TWO, tmp_path, clock())


def altered(
    metadata: Metadata[Root] | Metadata[Targets], change: Callable[[dict[str, object]], None]
) -> bytes:
    content = metadata.to_dict()
    change(content["signed"])
    return json.dumps(content).encode()


def test_roots_that_do_not_follow_are_refused(
    repository: Repository, alice: Author, clock: Clock, tmp_path: Path
) -> None:
    mallory = author(tmp_path / "keys", "mallory")
    root = repository.root
    assert root is not None
    with pytest.raises(TrustConflictError, match="version 1 of root was sent, and the next is 2"):
        begin(repository, mallory, clock())
    forged = Metadata[Root].from_bytes(root.to_bytes())
    forged.signed.version = 2
    forged.sign(mallory.root)
    with pytest.raises(TrustError, match="not signed by those whom the former root trusts"):
        repository.put_root(forged.to_bytes())
    good = next_root(root, alice, clock())
    with pytest.raises(TrustError, match="not signed by those whom the former root trusts"):
        repository.put_root(altered(good, lambda signed: signed.update(expires="2099-01-01T00:00:00Z")))
    other = Repository(tmp_path / "elsewhere", clock)
    with pytest.raises(TrustError, match="does not name this platform's key of the role snapshot"):
        other.put_root(root.to_bytes())
    for raw, said in (
        (b"{}", "cannot be read"),
        (b"[" * 10_000, "cannot be read"),
        (b" " * 600_000, "500,000 are the most"),
        (
            text_of(next_targets(None, alice, clock())).encode(),
            "these are metadata of targets, and not of root",
        ),
    ):
        with pytest.raises(TrustError, match=said):
            repository.put_root(raw)
    late = next_root(root, alice, clock() - timedelta(days=400))
    with pytest.raises(TrustError, match="have expired"):
        repository.put_root(text_of(late).encode())
    assert repository.root is root
    repository.put_root(text_of(good).encode())
    assert repository.root.signed.version == 2
    with pytest.raises(MistakeError):
        repository.put_root(text_of(good).encode())


def test_targets_that_do_not_hold_are_refused(
    repository: Repository, alice: Author, clock: Clock, tmp_path: Path
) -> None:
    code = publish(repository, alice, ONE, tmp_path, clock())
    good = next_targets(repository.targets, alice, clock())

    def refused(raw: bytes, said: str, used: tuple[str, ...] = ()) -> None:
        with pytest.raises(TrustError, match=said):
            repository.put_targets(raw, used)

    refused(
        altered(good, lambda signed: signed.update(version=3)),
        "version 3 of targets was sent, and the next is 2",
    )
    refused(altered(good, lambda signed: signed.update(targets={})), "not signed by a key")
    missing = next_targets(
        repository.targets,
        alice,
        clock(),
        target=target_of(Archive(io.BytesIO(_packed(TWO))).manifest, _packed(TWO), "a", "m:f"),
    )
    refused(text_of(missing).encode(), "was not sent before the metadata that name it")
    without = Metadata[Targets].from_bytes(good.to_bytes())
    without.signed.targets = {}
    without.sign(alice.targets)
    refused(without.to_bytes(), "is left out, which an app runs", (code,))
    odd = Metadata[Targets].from_bytes(good.to_bytes())
    odd.signed.targets["../evil"] = odd.signed.targets[f"{code}.zip"]
    odd.sign(alice.targets)
    refused(odd.to_bytes(), "is no bundle")
    expired = next_targets(repository.targets, alice, clock() - timedelta(days=400))
    refused(text_of(expired).encode(), "have expired")
    assert repository.targets is not None
    assert repository.targets.signed.version == 1
    repository.put_targets(good.to_bytes(), (code,))


def _packed(files: dict[str, bytes]) -> bytes:
    from geartrain.bundle import pack

    return pack(files)[1]


def test_an_archive_is_what_its_name_says(repository: Repository, tmp_path: Path) -> None:
    _, name = send(repository, ONE, tmp_path)
    draft = tmp_path / "draft.zip"
    for raw, given, said in (
        (_packed(TWO), name, "another one than its name says"),
        (_packed(ONE)[:-9], name, "is no zip archive"),
        (_packed(ONE), "../x.zip", "is no name of a bundle"),
        (_packed(ONE), f"{'0' * 64}.{name[65:]}", "another one than its name says"),
    ):
        draft.write_bytes(raw)
        with pytest.raises(TrustError, match=said):
            repository.put_archive(given, draft)
    assert [path.name for path in repository.files.stored.iterdir()] == [name]


def test_what_nothing_names_is_removed_after_a_while(
    repository: Repository, alice: Author, clock: Clock, tmp_path: Path
) -> None:
    code = publish(repository, alice, ONE, tmp_path, clock())
    folder, (_, orphan) = repository.unpacked(code), send(repository, TWO, tmp_path)
    assert folder is not None
    repository.tidy(())
    assert (repository.files.stored / orphan).exists()
    for path in (*repository.files.stored.iterdir(), folder, *repository.files.metadata.iterdir()):
        os.utime(path, (1, 1))
    clock.pass_by(timedelta(seconds=5))
    repository.put_targets(text_of(next_targets(repository.targets, alice, clock())).encode(), ())
    assert not (repository.files.stored / orphan).exists()
    assert not folder.exists()
    assert len(list(repository.files.metadata.glob("*.snapshot.json"))) == 1
    assert len(list(repository.files.metadata.glob("*.targets.json"))) == 1
    assert files_of(seen_by(repository, tmp_path / "device", code)) == ONE


def test_a_platform_that_was_restored_from_a_copy_is_believed_again(
    repository: Repository, alice: Author, clock: Clock, tmp_path: Path
) -> None:
    """Its numbers do not go back for what it signs itself."""
    code = publish(repository, alice, ONE, tmp_path, clock())
    copy = {path: path.read_bytes() for path in repository.files.metadata.iterdir()}
    for _ in range(3):
        clock.pass_by(timedelta(hours=13))
        assert repository.refresh()
    clock.pass_by(-timedelta(hours=39))
    seen_by(repository, tmp_path / "device", code)
    for path, content in copy.items():
        path.write_bytes(content)
    with pytest.raises(RepositoryError):
        seen_by(repository, tmp_path / "device", code)
    clock.pass_by(timedelta(hours=40))
    restored = Repository(tmp_path / "bundles", clock)
    assert restored.refresh()
    assert files_of(seen_by(restored, tmp_path / "device", code)) == ONE


class _Died(BaseException):
    pass


POINTS = ("open", "fsync", "rename", "replace", "mkdir", "unlink", "chmod")


@pytest.mark.parametrize("step", ["root", "targets", "refresh"])
def test_a_kill_at_any_step_leaves_a_state_that_a_device_takes(
    step: str, alice: Author, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each call that changes the disk, the process dies; it is opened again and tried again."""
    clock.pass_by(-timedelta(hours=13))
    bob = author(tmp_path / "keys", "bob")
    at, former, later = 0, 0, 0
    while True:
        folder = tmp_path / f"at{at}"
        made = Repository(folder, clock)
        begin(made, alice, clock())
        first = publish(made, alice, ONE, tmp_path, clock())
        second = ""
        device = tmp_path / f"device{at}"
        if step == "refresh":
            clock.pass_by(timedelta(hours=13))

        def work(repository: Repository = made, first: str = first) -> None:
            nonlocal second
            if step == "root":
                assert repository.root is not None
                added = next_root(repository.root, alice, clock(), add=("bob", bob.targets.public_key))
                repository.put_root(text_of(added).encode())
            elif step == "targets":
                second = publish(repository, alice, TWO, tmp_path, clock(), (first,))
            else:
                assert repository.refresh()

        ended = _dies(work, at, monkeypatch)
        assert files_of(seen_by(made, device, first)) == ONE
        again = Repository(folder, clock)
        version = again.root.signed.version if again.root else 0
        has_new = (
            version == 2
            if step == "root"
            else again.targets is not None and again.targets.signed.version == 2
        )
        if step == "targets" and has_new:
            assert len(again.targets.signed.targets) == 2 if again.targets else False
        later, former = later + has_new, former + (not has_new)
        if step != "refresh" and not has_new:
            work(again)
        assert files_of(seen_by(again, device, first)) == ONE
        if step == "targets" and second:
            assert files_of(seen_by(again, device, second)) == TWO
        if step == "refresh":
            again.refresh()
            assert files_of(seen_by(again, device, first)) == ONE
            clock.pass_by(-timedelta(hours=13))
        if ended:
            break
        at += 1
    assert at >= 3
    assert step == "refresh" or (former >= 3 and later >= 1)


def _dies(work: Callable[[], None], at: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run `work` and die before its call number `at` to the disk; whether it came to its end."""
    steps = 0
    with monkeypatch.context() as patch:
        for call in POINTS:
            real = getattr(os, call)

            def change(*given: object, _real: Callable[..., object] = real, **more: object) -> object:
                nonlocal steps
                steps += 1
                if steps > at:
                    raise _Died
                return _real(*given, **more)

            patch.setattr(os, call, change)
        try:
            work()
        except _Died:
            return False
    return True


def test_bounds(
    repository: Repository, alice: Author, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(repository, alice, ONE, tmp_path, clock())
    monkeypatch.setattr(module, "TARGETS_MAX", 1)
    with pytest.raises(TrustError, match="there are 2 bundles; 1 are the most"):
        publish(repository, alice, TWO, tmp_path, clock())


def test_a_root_by_an_unknown_author_is_no_first_root_of_another(
    alice: Author, clock: Clock, tmp_path: Path
) -> None:
    """A root must be signed by its own key, also where it is the first."""
    repository = Repository(tmp_path / "bundles", clock)
    bob = author(tmp_path / "keys", "bob")
    root = first_root(alice, repository.keys, clock())
    root.sign(bob.root)
    with pytest.raises(TrustError, match="not signed"):
        repository.put_root(text_of(root).encode())
    with pytest.raises(TrustError, match="there is no root yet"):
        publish(repository, alice, ONE, tmp_path, clock())
    with pytest.raises(UnsignedMetadataError):
        root.signed.verify_delegate("root", root.signed_bytes, root.signatures)
