"""Wheels are resolved for the device, not for the machine of `gear`, and pinned by their hashes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from geartrain import __version__
from geartrain.errors import MistakeError
from geartrain_client.errors import FailedError
from geartrain_client.flash import wheels
from geartrain_client.flash.target import Target
from tests.flash.made_wheels import own_parts, wheel, write_wheels

pytestmark = pytest.mark.slow


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of the package index, and no network."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    folder = tmp_path / "shelf"
    write_wheels(folder, ("pip", "25.3", wheel("pip", "25.3")))
    return folder


def collect(shelf: Path, python: str = "3.11", *extras: str, lock: Path | None = None) -> wheels.Wheels:
    work = shelf.parent / f"work-{len(list(shelf.parent.iterdir()))}"
    work.mkdir()
    return wheels.collect(Target.of("arm64", python), extras, work, own=shelf, lock=lock)


def resolve(shelf: Path, python: str = "3.11", *extras: str, lock: Path | None = None) -> wheels.Wheels:
    """The same without the wheel of pip, which costs a run of pip more."""
    work = shelf.parent / f"work-{len(list(shelf.parent.iterdir()))}"
    work.mkdir()
    found = wheels.resolve(Target.of("arm64", python), extras, work, (shelf,), lock=lock)
    return wheels.Wheels(*found, ("", b""))


def test_each_wheel_is_pinned_by_its_hash_and_the_same_input_gives_the_same_pins(shelf: Path) -> None:
    write_wheels(shelf, *own_parts(["tool>=1"]), ("tool", "1.2", wheel("tool", "1.2")))
    found = collect(shelf)
    assert {pin.name for pin in found.pins} == {"geartrain", "geartrain-devices", "geartrain-edge", "tool"}
    for pin in found.pins:
        file = shelf / f"{pin.name.replace('-', '_')}-{pin.version}-py3-none-any.whl"
        assert pin.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
        assert found.files[file.name] == file.read_bytes()
    assert found.pip == ("pip-25.3-py3-none-any.whl", (shelf / "pip-25.3-py3-none-any.whl").read_bytes())
    assert resolve(shelf).requirements == found.requirements


def test_markers_are_judged_by_the_devices_python_and_machine(shelf: Path) -> None:
    needs = [
        "old; python_version < '3.13'",
        "new; python_version >= '3.13'",
        "arm; platform_machine == 'aarch64'",
        "intel; platform_machine == 'x86_64'",
        "windows; sys_platform == 'win32'",
    ]
    every = ("old", "new", "arm", "intel")
    write_wheels(shelf, *own_parts(needs), *((name, "1", wheel(name, "1")) for name in every))
    for python, wanted in (("3.11", {"old", "arm"}), ("3.14", {"new", "arm"})):
        found = {pin.name for pin in resolve(shelf, python).pins}
        assert found == {"geartrain", "geartrain-devices", "geartrain-edge"} | wanted


def test_extras_bring_their_packages_and_an_unknown_one_is_refused(shelf: Path) -> None:
    parts = own_parts()
    devices = wheel("geartrain-devices", __version__, ["driver; extra == 'serial'"], ["serial"])
    parts[1] = ("geartrain-devices", __version__, devices)
    write_wheels(shelf, *parts, ("driver", "3", wheel("driver", "3")))
    assert "driver" not in {pin.name for pin in resolve(shelf).pins}
    assert "driver" in {pin.name for pin in resolve(shelf, "3.11", "serial").pins}
    with pytest.raises(MistakeError, match="--with steam: there is no such source; they are serial"):
        collect(shelf, "3.11", "steam")


@pytest.mark.proof
def test_a_lock_brings_its_own_versions_or_nothing(shelf: Path, tmp_path: Path) -> None:
    write_wheels(shelf, *own_parts(["tool>=1"]), ("tool", "1.2", wheel("tool", "1.2")))
    first, lock = resolve(shelf), tmp_path / "flash.lock"
    lock.write_bytes(first.requirements)
    write_wheels(shelf, ("tool", "1.3", wheel("tool", "1.3")))
    assert {pin.version for pin in resolve(shelf).pins if pin.name == "tool"} == {"1.3"}
    assert collect(shelf, lock=lock).requirements == first.requirements
    write_wheels(shelf, ("tool", "1.2", wheel("tool", "1.2", files={"evil.py": "1"})))
    with pytest.raises(FailedError, match="the wheels cannot be had"):
        collect(shelf, lock=lock)


def test_a_lock_that_lacks_a_wheel_or_is_none_is_refused(shelf: Path, tmp_path: Path) -> None:
    write_wheels(shelf, *own_parts(["tool>=1"]), ("tool", "1.2", wheel("tool", "1.2")))
    lock = tmp_path / "flash.lock"
    lines = resolve(shelf).requirements.decode().splitlines()
    lock.write_text("\n".join(line for line in lines if not line.startswith("tool")), encoding="ascii")
    with pytest.raises(MistakeError, match=r"tool>=1 is missing for Python 3.11 on arm64"):
        collect(shelf, lock=lock)
    lock.write_text("tool>=1\n", encoding="ascii")
    with pytest.raises(MistakeError, match="is no line of a lock"):
        collect(shelf, lock=lock)


def test_what_cannot_be_had_is_one_sentence(shelf: Path) -> None:
    write_wheels(shelf, *own_parts(["nowhere>=7"]))
    with pytest.raises(FailedError, match=r"^the wheels cannot be had: .*nowhere"):
        collect(shelf)


def test_targets_that_cannot_be_served_say_why() -> None:
    with pytest.raises(
        MistakeError, match=r"armhf cannot be served: msgspec and cffi.* have no wheel for it"
    ):
        Target.of("armhf", "3.11")
    with pytest.raises(MistakeError, match="it is called arm64"):
        Target.of("aarch64", "3.11")
    with pytest.raises(MistakeError, match=r"3\.10 cannot be served: no such wheels; it may be 3\.11"):
        Target.of("arm64", "3.10")
