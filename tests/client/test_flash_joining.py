"""`gear flash NAME`: a new device is added, and its installer holds a token that is good once."""

from __future__ import annotations

import re
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

from geartrain_client.cli import main
from tests.client.fake_platform import FakePlatform
from tests.flash.made_wheels import own_parts, wheel, write_wheels


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`gear flash` with wheels from a folder, and no network."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    write_wheels(tmp_path / "shelf", *own_parts(), ("pip", "25.3", wheel("pip", "25.3")))
    return ["flash", "--wheels", str(tmp_path / "shelf")]


def joins_by(path: Path) -> dict[str, Any]:
    with tarfile.open(path) as archive:
        file = archive.extractfile("geartrain-installer/join.toml")
        assert file is not None
        return tomllib.loads(file.read().decode())


@pytest.mark.slow
def test_a_new_device_is_added_and_a_known_one_gets_another_token(
    platform: FakePlatform, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    platform.is_open = True
    first, second = tmp_path / "first.tar.gz", tmp_path / "second.tar.gz"
    assert main([*words, "truck-1", "--label", "kind=truck", "--installer", str(first)]) == 0
    assert platform.devices["truck-1"]["labels"] == {"kind": "truck"}
    assert main([*words, "truck-1", "--expires", "7d", "--installer", str(second)]) == 0
    asked = [body for method, path, _, body in platform.asked if path.endswith("/token") and method == "POST"]
    assert asked == [{"expires_s": 86_400.0}, {"expires_s": 604_800.0}]
    told = [joins_by(first), joins_by(second)]
    assert [one.keys() for one in told] == [{"url", "token", "ca_fingerprint"}] * 2
    assert told[0]["token"] != told[1]["token"]
    said = capsys.readouterr()
    assert not any(one["token"] in said.out + said.err for one in told)
    assert re.search("one-time token: keep it private", said.err)
    assert first.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_labels_of_a_known_device_are_not_changed_by_the_way(
    platform: FakePlatform, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    platform.devices["truck-1"] = {"name": "truck-1", "labels": {}}
    assert main([*words, "truck-1", "--label", "kind=bus", "--installer", str(tmp_path / "a.tar.gz")]) == 2
    assert "gear device label changes its labels" in capsys.readouterr().err
    assert platform.devices["truck-1"]["labels"] == {}
    assert not (tmp_path / "a.tar.gz").exists()


def test_a_name_and_a_file_are_one_too_many(
    platform: FakePlatform, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    join, output = tmp_path / "join.toml", str(tmp_path / "a.tar.gz")
    join.write_text('token = "t"\n', encoding="ascii")
    assert main([*words, "truck-1", "--join", str(join), "--installer", output]) == 2
    assert "give one of them" in capsys.readouterr().err
    assert main([*words, "--label", "kind=bus", "--installer", output]) == 2
    assert "--label belongs to the NAME" in capsys.readouterr().err
    assert platform.asked == []
