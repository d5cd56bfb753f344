"""The installer as a file: the same bytes each time, sums that hold, and no secret but where it belongs."""

from __future__ import annotations

import hashlib
import io
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from geartrain_client.cli import main
from geartrain_client.flash.installer import Content, installer
from geartrain_client.flash.settings import DeviceSettings, Wifi
from geartrain_client.flash.target import Target
from tests.flash.made_wheels import own_parts, some_wheels, wheel, write_wheels
from tests.tidy.source import ROOT

SCRIPT = ROOT / "client" / "geartrain_client" / "flash" / "install.sh"


def content() -> Content:
    settings = DeviceSettings(wifi=Wifi.of("shed", "12345678", "DE"))
    return Content(Target.of("arm64", "3.11"), some_wheels(), b'token = "t"\n', settings)


def test_the_same_content_gives_the_same_bytes_and_the_sums_hold() -> None:
    made = installer(content())
    assert made == installer(content())
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        files = {one.name: archive.extractfile(one) for one in archive if one.isfile()}
        read = {name.partition("/")[2]: file.read() for name, file in files.items() if file is not None}
        modes = {one.name.partition("/")[2]: one.mode for one in archive}
    lines = read.pop("SHA256SUMS").decode().splitlines()
    sums = {path: digest for digest, path in (line.split("  ") for line in lines)}
    assert sums == {name: hashlib.sha256(one).hexdigest() for name, one in read.items()}
    secret = [name for name in read if name == "join.toml" or name.startswith("settings/")]
    assert {stat.S_IMODE(modes[name]) for name in secret} == {0o600}
    assert (
        read["units/geartrain-agent.service"]
        == (ROOT / "deploy" / "systemd" / "device" / "geartrain-agent.service").read_bytes()
    )


@pytest.mark.shellcheck
def test_the_script_is_plain_posix_and_clean() -> None:
    command = ["shellcheck", "--shell=sh", "--severity=style", str(SCRIPT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_command_makes_it_and_says_each_mistake_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    shelf, output = tmp_path / "shelf", tmp_path / "agent.tar.gz"
    write_wheels(shelf, *own_parts(), ("pip", "25.3", wheel("pip", "25.3")))
    password = tmp_path / "password"
    password.write_text("correct horse\n", encoding="ascii")
    lock = tmp_path / "flash.lock"
    network = ["--wifi", "shed", "--wifi-password-file", str(password), "--country", "DE"]
    words = ["flash", "--wheels", str(shelf), "--lock", str(lock), *network, "--installer"]
    assert main([*words, str(output)]) == 0
    assert output.stat().st_mode & 0o777 == 0o600
    assert main([*words, str(tmp_path / "again.tar.gz")]) == 0
    assert output.read_bytes() == (tmp_path / "again.tar.gz").read_bytes()
    capsys.readouterr()

    def said(*arguments: str) -> str:
        assert main(["flash", *arguments]) == 2
        return capsys.readouterr().err

    new = str(tmp_path / "new.tar.gz")
    assert "is there already" in said("--installer", str(output))
    assert "say what to make" in said("--arch", "arm64")
    assert "--country" in said("--installer", new, "--wifi", "shed")
    assert "armhf cannot be served: msgspec" in said("--installer", new, "--arch", "armhf")
    assert "--gateway and --dns belong to --address" in said("--installer", new, "--gateway", "10.0.0.1")
    assert "cannot be read" in said("--installer", new, "--join", str(tmp_path / "none"))
    assert "nobody to ask for its password" in said("--installer", new, "--wifi", "shed", "--country", "DE")
