"""Bearer tokens in the control store: names, roles, digests, expiry, and a request that is sent again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from geartrain_cloud.control_store import bearers
from geartrain_cloud.control_store.bearers import Bearer, Role
from geartrain_cloud.control_store.errors import (
    ConflictError,
    ExpiredError,
    InvalidError,
    NotFoundError,
    StoreError,
    UnauthorizedError,
)
from geartrain_cloud.control_store.store import ControlStore

OWN = "the-token-of-the-state-folder"
DAY_S = 86_400.0


@pytest.fixture
def clock() -> list[int]:
    return [1_000_000]


@pytest.fixture
def store(tmp_path: Path, clock: list[int]) -> Iterator[ControlStore]:
    one = ControlStore(tmp_path / "control.sqlite", lambda: clock[0])
    yield one
    one.close()


def test_the_last_use_of_a_token_is_noted_to_the_minute(
    store: ControlStore, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock[0] = 10 * bearers.USE_NOTED_US
    _, token = store.bearers.add(Bearer("alice", "viewer"), DAY_S)

    def used() -> int:
        [one] = store.bearers.page(10, "")[0]
        return one.used_us

    assert used() == 0
    store.bearers.look(token, OWN)
    first = clock[0]
    clock[0] += bearers.USE_NOTED_US - 1
    store.bearers.look(token, OWN)
    assert used() == first
    clock[0] += 1
    with monkeypatch.context() as full:
        full.setattr(store.database, "change", refuse)
        store.bearers.look(token, OWN)  # a disk that is full refuses nobody who reads
    assert used() == first
    store.bearers.look(token, OWN)
    assert used() == clock[0]


def refuse() -> NoReturn:
    raise StoreError("no room")


def test_a_token_is_good_until_it_expires_or_is_revoked(store: ControlStore, clock: list[int]) -> None:
    made, token = store.bearers.add(Bearer("alice", "operator", made_by="local"), DAY_S)
    found = store.bearers.look(token, OWN)
    assert (found.name, found.role, found.app, found.made_by) == ("alice", "operator", "", "local")
    assert made.expires_us == clock[0] + round(DAY_S * 1e6)
    store.bearers.check(found)
    clock[0] = made.expires_us - 1
    store.bearers.look(token, OWN)
    clock[0] += 1
    for ask in (lambda: store.bearers.look(token, OWN), lambda: store.bearers.check(found)):
        with pytest.raises(ExpiredError, match="token alice has expired"):
            ask()
    _, again = store.bearers.add(Bearer("alice", "viewer"), DAY_S)
    viewer = store.bearers.look(again, OWN)
    assert viewer.role == "viewer"
    with pytest.raises(UnauthorizedError):
        store.bearers.look(token, OWN)
    store.bearers.revoke("alice")
    with pytest.raises(UnauthorizedError):
        store.bearers.look(again, OWN)
    with pytest.raises(ExpiredError, match="was revoked"):
        store.bearers.check(viewer)
    with pytest.raises(NotFoundError, match="there is no token 'alice'"):
        store.bearers.revoke("alice")


def test_the_token_of_the_folder_is_an_admin_and_no_other_word_is(store: ControlStore) -> None:
    own = store.bearers.look(OWN, OWN)
    assert (own.name, own.role) == ("local", "admin")
    store.bearers.check(own)
    for word in ("", OWN[:-1], OWN + "x", "\udcff", "x" * 100_000, "' OR 1=1 --", "gear_"):
        with pytest.raises(UnauthorizedError, match="Authorization: Bearer TOKEN"):
            store.bearers.look(word, OWN)


def test_only_a_digest_is_kept(store: ControlStore, tmp_path: Path) -> None:
    _, token = store.bearers.add(Bearer("alice", "admin"), DAY_S, "a-key")
    store.close()
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"alice" in kept
    assert token.encode() not in kept
    assert token.removeprefix("gear_").encode() not in kept
    assert b"a-key" not in kept


def test_a_name_stands_for_one_token(store: ControlStore) -> None:
    store.bearers.add(Bearer("alice", "viewer"), DAY_S)
    for key in ("", "a-key"):
        with pytest.raises(ConflictError, match="there is a token alice already"):
            store.bearers.add(Bearer("alice", "admin"), DAY_S, key)


def test_a_request_that_comes_again_gets_a_token_in_the_place_of_the_first(store: ControlStore) -> None:
    _, first = store.bearers.add(Bearer("ci", "viewer"), DAY_S, "a-key")
    _, second = store.bearers.add(Bearer("ci", "viewer"), DAY_S, "a-key")
    assert first != second
    assert store.bearers.look(second, OWN).name == "ci"
    with pytest.raises(UnauthorizedError):
        store.bearers.look(first, OWN)


@pytest.mark.parametrize(
    ("name", "role", "app", "said"),
    [
        ("", "viewer", "", "use a name of 1 to 64"),
        ("local", "viewer", "", "other than local"),
        ("a b", "viewer", "", "use a name of"),
        ("\x1b[31m", "viewer", "", "use a name of"),
        ("x" * 65, "viewer", "", "use a name of"),
        ("a", "viewer", "a.b", "use a name of 1 to 48"),
        ("a", "admin", "heat", "leave the app out"),
    ],
)
def test_what_no_token_can_be_is_a_sentence(
    store: ControlStore, name: str, role: Role, app: str, said: str
) -> None:
    with pytest.raises(InvalidError, match=said):
        store.bearers.add(Bearer(name, role, app), DAY_S)


def test_tokens_are_listed_in_pages_and_bounded(store: ControlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        store.bearers.add(Bearer(f"t{number}", "viewer", app="heat"), DAY_S)
    found, following = store.bearers.page(2, "")
    assert ([one.name for one in found], following) == (["t0", "t1"], "t1")
    found, following = store.bearers.page(2, "t1")
    assert ([(one.name, one.app, one.digest) for one in found], following) == ([("t2", "heat", b"")], None)
    monkeypatch.setattr(bearers, "BEARERS_MAX", 3)
    with pytest.raises(ConflictError, match="there are 3 tokens"):
        store.bearers.add(Bearer("more", "viewer"), DAY_S)
