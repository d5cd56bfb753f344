"""Configuration files: what is right is read, and what is wrong is one sentence with the file and the key."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from geartrain.adapters.configuration import host_and_port, read_as, read_toml
from geartrain.errors import ConfigError


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    number: int = 1


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    inner: Inner = msgspec.field(default_factory=Inner)
    several: list[Inner] = msgspec.field(default_factory=list)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('name = "n\u00e9"\n[inner]\nnumber = 3\n[[several]]\n', encoding="utf-8")
    assert read_as(path, Outer) == Outer("n\u00e9", Inner(3), [Inner()])
    assert read_toml(str(path))["inner"] == {"number": 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", ": name is missing"),
        (b"name = 3", ": name: expected `str`, got `int`"),
        (b'name = "n"\nnme = 3', ": nme is not a key of this file; its keys: name, inner, several"),
        (b'name = "n"\n[inner]\nnumbr = 3', ": inner.numbr is not a key of this file"),
        (b'name = "n"\n[[several]]\nnumber = "3"', ": several[0].number: expected `int`, got `str`"),
        (b"name = ", " is not a TOML file: "),
        (b'name = "\xff"', " is not a TOML file: "),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        read_as(path, Outer)
    assert str(caught.value).startswith(f"{path}{said}")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_toml(tmp_path)


def test_addresses() -> None:
    assert host_and_port("127.0.0.1:1883") == ("127.0.0.1", 1883)
    assert host_and_port("[::1]:1") == ("::1", 1)
    for wrong in ("", "host", ":1883", "host:", "host:0", "host:65536", "host:-1", "host:\u0663", "host:x"):
        with pytest.raises(ConfigError, match="is not HOST:PORT"):
            host_and_port(wrong)
