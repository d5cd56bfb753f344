"""The container's file keeps the rules of the OCI image specification, and is the same each time."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import MistakeError
from geartrain_client.flash.archive import Entry, tar
from geartrain_client.flash.container import _layer, write_container
from geartrain_client.flash.installer import Content
from geartrain_client.flash.target import PYTHONS, Target
from geartrain_client.flash.wheels import Wheels
from tests.flash.made_wheels import some_wheels, wheel

BASE = tar({"usr/bin/python3.11": Entry(b"python", 0o755), "etc/passwd": Entry(b"root:x:0:0::/:/bin/sh\n")})
KINDS = {
    "manifest": "application/vnd.oci.image.manifest.v1+json",
    "config": "application/vnd.oci.image.config.v1+json",
    "layer": "application/vnd.oci.image.layer.v1.tar+gzip",
    "index": "application/vnd.oci.image.index.v1+json",
}


def content(arch: str = "arm64", wheels: Wheels | None = None) -> Content:
    return Content(Target.of(arch, "3.11"), wheels or some_wheels(), b'token = "t"\n')


def made(folder: Path, base: bytes = BASE, arch: str = "arm64") -> dict[str, bytes]:
    root, output = folder / "root.tar", folder / "agent.tar"
    root.write_bytes(base)
    write_container(content(arch), root, output)
    assert output.stat().st_mode & 0o777 == 0o600
    with tarfile.open(output) as archive:
        found = {one.name: archive.extractfile(one) for one in archive if one.isfile()}
        return {name: file.read() for name, file in found.items() if file is not None}


def blob(layout: dict[str, bytes], descriptor: dict[str, Any], kind: str) -> bytes:
    """The blob of a descriptor, by the rules of descriptor.md and image-layout.md."""
    assert {"mediaType", "digest", "size"} <= descriptor.keys()
    assert descriptor["mediaType"] == KINDS[kind]
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", descriptor["digest"])
    found = layout[f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"]
    assert len(found) == descriptor["size"]
    assert hashlib.sha256(found).hexdigest() == descriptor["digest"].removeprefix("sha256:")
    return found


def test_the_layout_keeps_the_rules_of_the_specification(tmp_path: Path) -> None:
    layout = made(tmp_path)
    assert json.loads(layout["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(layout["index.json"])
    assert (index["schemaVersion"], index["mediaType"]) == (2, KINDS["index"])
    [entry] = index["manifests"]
    assert entry["platform"] == {"architecture": "arm64", "os": "linux", "variant": "v8"}
    manifest = json.loads(blob(layout, entry, "manifest"))
    assert (manifest["schemaVersion"], manifest["mediaType"]) == (2, KINDS["manifest"])
    config = json.loads(blob(layout, manifest["config"], "config"))
    assert (config["architecture"], config["os"], config["rootfs"]["type"]) == ("arm64", "linux", "layers")
    layers = [gzip.decompress(blob(layout, layer, "layer")) for layer in manifest["layers"]]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in layers]
    assert len([step for step in config["history"] if not step.get("empty_layer")]) == len(layers)
    assert layers[0] == BASE
    names = {"oci-layout", "index.json"} | {
        f"blobs/sha256/{one['digest'].removeprefix('sha256:')}"
        for one in (entry, manifest["config"], *manifest["layers"])
    }
    assert layout.keys() == names


def test_the_agent_runs_without_rights_and_writes_only_its_volumes(tmp_path: Path) -> None:
    layout = made(tmp_path)
    manifest = json.loads(blob(layout, json.loads(layout["index.json"])["manifests"][0], "manifest"))
    config = json.loads(blob(layout, manifest["config"], "config"))["config"]
    user, _, group = config["User"].partition(":")
    assert int(user) >= 1000
    assert int(group) >= 1000
    assert config["Volumes"].keys() == {"/var/lib/geartrain", "/etc/geartrain"}
    assert config["Entrypoint"] == ["/opt/geartrain/venv/bin/gear-agent"]
    layer = gzip.decompress(blob(layout, manifest["layers"][1], "layer"))
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        members = {one.name: one for one in archive}
    own = {name for name, one in members.items() if (one.uid, one.gid) != (0, 0)}
    assert own == {"var/lib/geartrain", "etc/geartrain", "etc/geartrain/join.toml"}
    assert {members[name].uid for name in own} == {int(user)}
    assert members["etc/geartrain/join.toml"].mode == 0o600
    assert not any(one.mode & 0o6022 for one in members.values() if not one.issym())
    assert members["opt/geartrain/venv/bin/python"].linkname == "/usr/bin/python3.11"


def test_the_same_input_gives_the_same_bytes_however_the_base_is_packed(tmp_path: Path) -> None:
    packed = (BASE, gzip.compress(BASE, 1, mtime=3), lzma.compress(BASE))
    first, *others = (made(tmp_path, base, "amd64") for base in packed)
    assert all(other == first for other in others)
    assert json.loads(first["index.json"])["manifests"][0]["platform"]["architecture"] == "amd64"


def test_the_agent_finds_bytecode_that_fits_whatever_the_times(tmp_path: Path) -> None:
    """Of the Python that runs here: each module is loaded from its bytecode, though its source is gone."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    files = {"found/__init__.py": "", "found/it.py": "import sys\nNAMES = {'a', 'b'}\nprint('found')\n"}
    files |= {"found/bad.py": "this is no Python"}
    parts = {"found-1-py3-none-any.whl": wheel("found", "1", files=files)}
    wheels = Wheels((), {**some_wheels().files, **parts}, some_wheels().pip)
    what = Content(Target.of("amd64", here), wheels, None)
    first, other = _layer(what), _layer(what)
    assert first == other
    packages = f"opt/geartrain/venv/lib/python{here}/site-packages"
    compiled = {path: one.content for path, one in first.items() if path.endswith(".pyc")}
    tag = sys.implementation.cache_tag
    assert f"{packages}/geartrain_edge/parent/__pycache__/main.{tag}.pyc" in compiled
    assert not [path for path in compiled if "bad" in path]
    content = compiled[f"{packages}/found/__pycache__/it.{tag}.pyc"]
    assert content is not None
    unchecked = (1).to_bytes(4, "little")  # PEP 552
    assert content[:8] == importlib.util.MAGIC_NUMBER + unchecked
    assert f"/{packages}/found/it.py".encode() in content
    assert str(Path(tempfile.gettempdir())).encode() not in content
    for path, one in first.items():
        if path.startswith(f"{packages}/found/") and one.content is not None:
            place = tmp_path / path.removeprefix(f"{packages}/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(b"raise SystemError" if path.endswith("it.py") else one.content)
    run = subprocess.run(
        [sys.executable, "-c", "import found.it"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.stderr) == ("found\n", "")
    other_python = next(one for one in PYTHONS if one != here)
    assert not [
        p for p in _layer(Content(Target.of("amd64", other_python), wheels, None)) if p.endswith(".pyc")
    ]


def test_what_cannot_be_a_base_is_said_and_nothing_stays(tmp_path: Path) -> None:
    for base, said in (
        (b"no tar at all" * 100, "is no tar file"),
        (b"\x1f\x8b" + bytes(40), "is no tar file"),
        (tar({"usr/bin/python3.9": Entry(b"")}), r"has no /usr/bin/python3\.11"),
    ):
        with pytest.raises(MistakeError, match=said):
            made(tmp_path, base)
        assert [path.name for path in tmp_path.iterdir()] == ["root.tar"]


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "a/../../evil", "a\\b"])
def test_a_wheel_that_leaves_its_folder_is_refused(tmp_path: Path, path: str) -> None:
    sound = some_wheels()
    evil = {**sound.files, "evil-1-py3-none-any.whl": wheel("evil", "1", files={path: "x"})}
    (tmp_path / "root.tar").write_bytes(BASE)
    wheels = Wheels(sound.pins, evil, sound.pip)
    with pytest.raises(MistakeError, match="is no sound wheel"):
        write_container(content(wheels=wheels), tmp_path / "root.tar", tmp_path / "agent.tar")
    assert not (tmp_path / "agent.tar").exists()
