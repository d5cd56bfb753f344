"""Where the platform is: who names it, in which order, and which token goes to whom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geartrain.errors import ConfigError
from geartrain_client.errors import UnreachableError
from geartrain_client.rest.door import default_state, find_door, parse_url

TOKEN = "0123456789abcdefghijkl"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "t").write_text(TOKEN + "\n")
    (folder / "t").chmod(0o600)
    content = {"url": "http://127.0.0.1:8764", "token_file": str(folder / "t")}
    (folder / "platform.json").write_text(json.dumps(content))
    return folder


def test_an_address_is_taken_from_who_is_nearest(state: Path, tmp_path: Path) -> None:
    here = {"GEARTRAIN_STATE": str(state)}
    found = find_door(None, None, here)
    assert (found.url, found.token, found.folder) == ("http://127.0.0.1:8764", TOKEN, state)
    assert find_door(None, state, {"GEARTRAIN_URL": "http://b:1"}).url == "http://127.0.0.1:8764"
    assert find_door(None, None, here | {"GEARTRAIN_URL": "http://b:1"}).url == "http://b:1"
    assert find_door("https://c", None, here | {"GEARTRAIN_URL": "http://b:1"}).url == "https://c:443"


def test_the_token_of_a_folder_goes_to_no_other_address(state: Path) -> None:
    here = {"GEARTRAIN_STATE": str(state)}
    assert find_door("http://elsewhere:1", state, here).token == ""
    assert find_door(None, None, here | {"GEARTRAIN_URL": "http://elsewhere:1"}).token == ""
    named = here | {"GEARTRAIN_TOKEN_FILE": str(state / "t")}
    assert find_door("http://elsewhere:1", None, named).token == TOKEN
    assert TOKEN not in repr(find_door(None, state, {}))


def test_a_token_of_the_environment_comes_first_and_must_be_one_word(state: Path) -> None:
    here = {"GEARTRAIN_STATE": str(state), "GEARTRAIN_TOKEN": f" {TOKEN[::-1]} "}
    assert find_door(None, None, here).token == TOKEN[::-1]
    assert find_door(None, None, here | {"GEARTRAIN_TOKEN": ""}).token == TOKEN
    for word in ("two words", "x" * 600, "caf\u00e9", "a\x1bb"):
        with pytest.raises(
            ConfigError, match="GEARTRAIN_TOKEN in the environment must hold one word"
        ) as raised:
            find_door(None, None, here | {"GEARTRAIN_TOKEN": word})
        assert word not in str(raised.value)


def test_the_authority_is_that_of_the_environment_else_that_beside_the_address(state: Path) -> None:
    assert find_door(None, state, {}).ca == ""
    content = {"url": "https://127.0.0.1:8764", "ca": "fleet/ca.pem"}
    (state / "platform.json").write_text(json.dumps(content))
    assert find_door(None, state, {}).ca == str(state / "fleet/ca.pem")
    assert find_door(None, state, {"GEARTRAIN_CA": "mine.pem"}).ca == "mine.pem"
    assert find_door("https://elsewhere", state, {}).ca == ""


def test_a_token_in_clear_is_noticed_beyond_this_machine(state: Path) -> None:
    named = {"GEARTRAIN_TOKEN_FILE": str(state / "t")}
    assert find_door("http://elsewhere:1", None, named).shows_its_token
    for url in ("https://elsewhere", "http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"):
        assert not find_door(url, None, named).shows_its_token
    assert not find_door("http://elsewhere:1", None, {}).shows_its_token


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_token_that_others_may_read_is_refused(mode: int, state: Path) -> None:
    (state / "t").chmod(mode)
    with pytest.raises(ConfigError, match=r"can be read by others .* chmod 600"):
        find_door(None, state, {})


@pytest.mark.parametrize("content", ["", "two words", "x" * 600, "caf\u00e9", "a\x1bb"])
def test_a_file_without_a_token_is_refused(content: str, state: Path) -> None:
    (state / "t").write_text(content)
    with pytest.raises(ConfigError, match=r"the token file .* must hold one word"):
        find_door(None, state, {})


def test_a_folder_in_the_place_of_a_token_is_not_to_be_closed(state: Path) -> None:
    with pytest.raises(ConfigError, match=r"GEARTRAIN_TOKEN_FILE: .* is a folder: name the file in it"):
        find_door(None, state, {"GEARTRAIN_TOKEN_FILE": str(state)})


@pytest.mark.parametrize("content", ["", "[]", "{", "{}", '{"url": 7}', '{"url": "ftp://a"}'])
def test_a_folder_that_names_no_platform_is_a_sentence(content: str, state: Path) -> None:
    (state / "platform.json").write_text(content)
    with pytest.raises(ConfigError, match=r"platform\.json"):
        find_door(None, state, {})


def test_a_folder_without_a_platform_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="start it with gear up"):
        find_door(None, tmp_path, {})


@pytest.mark.parametrize(
    "url",
    [
        *("", "b", "b:1", "ftp://b", "http://", "http://a:b@c", "http://a?x=1", "http://a#x"),
        *("http://a:99999", "http://a b", "http://a\x1b[31m", "http://[::1"),
    ],
)
def test_what_is_no_address_is_a_sentence(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--url: .* is no address: write http://HOST:PORT"):
        parse_url(url, "--url")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://a", "http://a:80"),
        ("https://a/", "https://a:443"),
        ("http://[::1]:5", "http://[::1]:5"),
        ("https://a/gear/", "https://a:443/gear"),
    ],
)
def test_an_address_is_read(url: str, shown: str) -> None:
    assert parse_url(url, "--url").url == shown


def test_the_default_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_state({"GEARTRAIN_STATE": "run"}) == Path("run")
    assert default_state({"XDG_STATE_HOME": "there"}) == Path("there/geartrain/platform")
    monkeypatch.setenv("HOME", "somebody")
    assert default_state({}) == Path("somebody/.local/state/geartrain/platform")
