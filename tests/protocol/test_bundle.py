"""Bundles: what is packed is what comes out; an archive, however it is made, is refused at worst."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.bundle import MANIFEST, Archive, Manifest, code_hash, pack
from geartrain.bundle import archive as reading
from geartrain.errors import BundleError, ConfigError
from geartrain.revision import code_of, contents_of
from tests.protocol.test_code import FILES, code_in, forget, write

MINE = {"mine/__init__.py": b"", "mine/flow.py": b"flow = 1\n" * 50, "mine/data.bin": bytes(range(256))}


def opened(raw: bytes) -> Archive:
    return Archive(io.BytesIO(raw))


def contents(raw: bytes) -> dict[str, bytes]:
    return {name: b"".join(parts) for name, parts in opened(raw).files()}


def made(
    files: dict[str, bytes],
    listed: dict[str, bytes] | None = None,
    change: Callable[[zipfile.ZipInfo], None] | None = None,
) -> bytes:
    """An archive of these files, with a manifest of `listed`."""
    named = {n: hashlib.sha256(c).hexdigest() for n, c in (files if listed is None else listed).items()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, json.dumps({"files": named}))
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            if change is not None:
                change(info)
            archive.writestr(info, content)
    return out.getvalue()


def test_what_is_packed_comes_out_and_its_hash_is_that_of_the_code() -> None:
    manifest, raw = pack(MINE, geartrain=">=0.2,<0.3", python=">=3.11")
    found = opened(raw)
    found.check()
    assert found.manifest == manifest
    assert contents(raw) == {**MINE, MANIFEST: manifest.to_json()}
    assert manifest.code == code_hash({n: hashlib.sha256(c).hexdigest() for n, c in MINE.items()})


def test_an_archive_depends_on_the_files_alone() -> None:
    once = pack(MINE)[1]
    assert once == pack(dict(reversed(MINE.items())))[1]
    assert once != pack({**MINE, "mine/flow.py": b"flow = 2\n"})[1]


def test_a_flows_bundle_has_the_hash_that_the_installed_flow_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = write(tmp_path / "here")
    code = code_in(installed, monkeypatch)
    (installed / "coldtest" / "flow.py").write_bytes(FILES["flow.py"].replace("\n", "\r\n").encode())
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(installed))
        forget("coldtest")
        manifest, raw = pack(contents_of("coldtest.flow:flow"))
    assert manifest.code == code.hash
    assert manifest.files == code.files
    unpacked = tmp_path / "there"
    for name, content in contents(raw).items():
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_bytes(content)
    assert code_in(unpacked, monkeypatch) == code
    (unpacked / "coldtest" / "tasks.py").write_text("changed = 1\n")
    assert code_in(unpacked, monkeypatch).hash != code.hash
    (unpacked / "coldtest" / "tasks.py").unlink()
    with pytest.raises(ConfigError, match=r"bundle .*tasks.py"):
        code_in(unpacked, monkeypatch)


def wheel(path: Path, files: dict[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def project(folder: Path, table: str, root: str = "src") -> Path:
    write(folder / root)
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "coldtest"\nrequires-python = ">=3.11"\n[tool.geartrain]\n{table}'
    )
    return folder / root


@pytest.mark.parametrize("root", ["src", "."])
def test_a_project_names_more_files_and_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    own = {"purelib/__init__.py": "answer = 42\n", "purelib-1.0.dist-info/METADATA": "Name: purelib\n"}
    wheel(tmp_path / "wheels" / "purelib-1.0-py3-none-any.whl", own)
    table = (
        'files = ["coldtest/*.csv", "coldtest/page.py"]\nwheels = ["wheels/purelib-1.0-py3-none-any.whl"]\n'
    )
    place = project(tmp_path, table, root)
    code = code_in(place, monkeypatch)
    plain = code_in(write(tmp_path / "plain"), monkeypatch)
    more = set(code.files) - set(plain.files)
    assert more == {"coldtest/data.csv", "coldtest/page.py", *own}
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(place))
        forget("coldtest")
        manifest, raw = pack(contents_of("coldtest.flow:flow"))
    assert manifest.code == code.hash
    assert contents(raw)["purelib/__init__.py"] == b"answer = 42\n"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('files = ["../secret"]', r"files: '../secret': write a pattern below"),
        ('files = ["/etc/passwd"]', r"files: '/etc/passwd': write a pattern below"),
        ('files = ["coldtest/*.parquet"]', r"no file below .* is called so"),
        ('files = ["coldtest/fast.so"]', r"fast.so is made for one machine"),
        ('files = ["coldtest/out.csv"]', r"out.csv is a link that leads out"),
        ('files = "coldtest"', r"\[tool.geartrain\] files: expected array, got str"),
        ("file = []", r"unknown field file"),
        ('python = "3.11"', r"'3.11' is no range of versions"),
        ('wheels = ["fast-1-cp311-cp311-linux_x86_64.whl"]', r"only a wheel of pure Python"),
        ('wheels = ["gone-1-py3-none-any.whl"]', r"gone-1-py3-none-any.whl' cannot be read: No such file"),
        ('wheels = ["odd-1-py3-none-any.whl"]', r"odd-1.*: the wheel is no zip archive"),
        ('wheels = ["data-1-py3-none-any.whl"]', r"it holds data-1.data/scripts/x, which would have to be"),
        ('wheels = ["same-1-py3-none-any.whl"]', r"two files coldtest/tasks.py"),
    ],
)
def test_mistakes_in_a_project_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, said: str
) -> None:
    place = project(tmp_path, f"{table}\n")
    (place / "coldtest" / "fast.so").write_bytes(b"\x7fELF")
    (tmp_path / "outside.csv").write_text("1\n")
    (place / "coldtest" / "out.csv").symlink_to(tmp_path / "outside.csv")
    (tmp_path / "odd-1-py3-none-any.whl").write_bytes(b"PK" * 100)
    wheel(tmp_path / "data-1-py3-none-any.whl", {"data-1.data/scripts/x": "1"})
    wheel(tmp_path / "same-1-py3-none-any.whl", {"coldtest/tasks.py": "other = 1\n"})
    with pytest.raises(ConfigError, match=said):
        code_in(place, monkeypatch)


def test_a_compiled_module_goes_into_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, {"__init__.py": "", "flow.py": "from coldtest import quick\n", "quick.so": ""})
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder))
        forget("coldtest")
        assert "coldtest/quick.so" in code_of("coldtest.flow:flow").files
        with pytest.raises(ConfigError, match=r"coldtest/quick.so is made for one machine"):
            contents_of("coldtest.flow:flow")


def linked(info: zipfile.ZipInfo) -> None:
    info.external_attr, info.create_system = (stat.S_IFLNK | 0o777) << 16, 3


def device(info: zipfile.ZipInfo) -> None:
    info.external_attr, info.create_system = (stat.S_IFCHR | 0o666) << 16, 3


def squeezed(info: zipfile.ZipInfo) -> None:
    info.compress_type = zipfile.ZIP_BZIP2


def declared(raw: bytes, name: str, size: int) -> bytes:
    """The archive with another unpacked size for a file, in both places where a zip has it."""
    found = bytearray(raw)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        info = archive.getinfo(name)
    struct.pack_into("<L", found, info.header_offset + 22, size)
    central = raw.index(b"PK\x01\x02" + raw[info.header_offset + 4 : info.header_offset + 4], 0)
    while raw[central + 46 : central + 46 + len(name)] != name.encode():
        central = raw.index(b"PK\x01\x02", central + 1)
    struct.pack_into("<L", found, central + 24, size)
    return bytes(found)


def doubled(name: str) -> bytes:
    """An archive with two files of one name."""
    raw = made({name: b"one", "x" * len(name): b"two"}, {name: b"one"})
    return raw.replace(b"x" * len(name), name.encode())


def ended(raw: bytes, **changed: int) -> bytes:
    """The archive with another end."""
    fields = ["disk", "first", "here", "count", "directory", "offset", "comment"]
    values = list(struct.unpack("<4s4H2LH", raw[-22:]))
    for name, value in changed.items():
        values[1 + fields.index(name)] = value
    return raw[:-22] + struct.pack("<4s4H2LH", *values)


PLAIN = made({"a.py": b"a = 1\n"})
HOSTILE: list[tuple[bytes, str]] = [
    (b"", "it has 0 bytes"),
    (b"PK\x05\x06", "it has 4 bytes"),
    (b"\0" * 500, "is no zip archive in one part"),
    (PLAIN[:-30], "is no zip archive in one part"),
    (PLAIN + b"more", "is no zip archive in one part"),
    (ended(PLAIN, comment=1), "is no zip archive in one part"),
    (ended(PLAIN, disk=1), "is no zip archive in one part"),
    (ended(PLAIN, here=60_000, count=60_000), "has 60,000 entries; 5,000 files are the most"),
    (ended(PLAIN, here=3, count=3), "declares 3 entries and has 2"),
    (ended(PLAIN, directory=2**31), "has a directory of 2,147,483,648 bytes"),
    (made({"../evil.py": b""}), "its name may not be that of a file"),
    (made({"a/../../evil.py": b""}), "its name may not be that of a file"),
    (made({"/etc/passwd": b""}), "its name may not be that of a file"),
    (made({"": b""}), "its name may not be that of a file"),
    (made({"./a.py": b""}), "its name may not be that of a file"),
    (made({"a//b.py": b""}), "its name may not be that of a file"),
    (made({"a\\..\\b.py": b""}), "its name may not be that of a file"),
    (made({"C:/windows.py": b""}), "its name may not be that of a file"),
    (made({"a\nb.py": b""}), "its name may not be that of a file"),
    (made({"a\x1b[2J.py": b""}), "its name may not be that of a file"),
    (made({"../": b""}, {}), "its name may not be that of a file"),
    (made({"n" * 300: b""}), "its name may not be that of a file"),
    (made({"/".join("d" * 40): b""}), "its name may not be that of a file"),
    (doubled("same.py"), "has the file 'same.py' twice"),
    (made({"a": b"", "a/b.py": b""}), "has 'a' as a file and as a folder"),
    (made({"a": b"", "a/b/": b""}, {"a": b""}), "has 'a' as a file and as a folder"),
    (made({"a": b"", "a/": b""}, {"a": b""}), "has the file 'a' twice"),
    (made({"a.py": b"/etc/passwd"}, change=linked), "is no plain file but a link or a device"),
    (made({"a.py": b""}, change=device), "is no plain file but a link or a device"),
    (made({"a.py": b"x"}, change=squeezed), "packed in a way that is not known"),
    (made({"a.py": bytes(2 << 20)}), "is more than 200 times as large"),
    (declared(PLAIN, "a.py", 17 << 20), "has more than 16 MiB"),
    (declared(PLAIN, "a.py", 2**31), "would be larger than 64 MiB"),
    (made({"a.py": b"1"}, {}), "'a.py' is in the archive of the bundle alone"),
    (made({}, {"a.py": b"1"}), "'a.py' is in the manifest of the bundle alone"),
    (made({"a.py": b"2"}, {"a.py": b"1"}), "'a.py' of the bundle is not what its manifest says"),
    (declared(made({"a.py": b"abcdef" * 9}), "a.py", 5), "'a.py' cannot be unpacked"),
    (declared(PLAIN, "a.py", 900), "'a.py' (has 6 bytes, and 900 are declared|cannot be unpacked)"),
]


@pytest.mark.parametrize(
    ("raw", "said"), HOSTILE, ids=[f"{n}-{said[:30]}" for n, (_, said) in enumerate(HOSTILE)]
)
def test_a_hostile_archive_is_refused_in_a_sentence(raw: bytes, said: str) -> None:
    with pytest.raises(BundleError, match=said):
        opened(raw).check()


def test_folders_within_folders_are_no_files() -> None:
    listed = {"a/b/c.py": b"1"}
    opened(made({"a/": b"", "a/b/": b"", **listed}, listed)).check()


def test_entries_over_one_another_are_refused() -> None:
    """One packed file that many entries name: a bomb whose ratio is small for each."""
    raw = made({f"f{n}.py": b"" for n in range(20)} | {"z.py": bytes(range(256)) * 40}, {})
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        kernel, others = (
            archive.getinfo("z.py"),
            [i for i in archive.infolist() if i.filename.startswith("f")],
        )
    found, at = bytearray(raw), len(raw) - 22
    for info in others:
        at = raw.index(b"PK\x01\x02")
        while raw[at + 46 : at + 46 + len(info.filename)] != info.filename.encode():
            at = raw.index(b"PK\x01\x02", at + 1)
        struct.pack_into("<LL", found, at + 20, kernel.compress_size, kernel.file_size)
        struct.pack_into("<L", found, at + 42, kernel.header_offset)
    with pytest.raises(BundleError, match="lie over one another"):
        opened(bytes(found))


def test_too_much_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BUNDLE_BOUNDS", reading.Bounds(archive_bytes=100))
    with pytest.raises(BundleError, match="100 are the most"):
        opened(PLAIN)
    monkeypatch.undo()
    monkeypatch.setattr(reading, "BUNDLE_BOUNDS", reading.Bounds(files=1))
    with pytest.raises(BundleError, match="has 3 entries; 1 files are the most"):
        pack({"a.py": b"", "b.py": b""})


def test_a_bundle_without_a_manifest_or_with_an_odd_one_is_refused() -> None:
    for content, said in (
        (None, "has no geartrain-bundle.json"),
        ("{", "the manifest cannot be read"),
        ('{"files": {"a.py": "00"}}', "the manifest cannot be read"),
        ('{"files": {}, "format": 2}', "has format 2, and this version of Geartrain knows 1"),
        ('{"files": {}, "python": "==3"}', "is no range of versions"),
        ("[" * 100_000, "the manifest cannot be read"),
        (" " * (3 << 20), "the manifest has more than"),
    ):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            if content is not None:
                archive.writestr(MANIFEST, content)
        with pytest.raises(BundleError, match=said):
            opened(out.getvalue())


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_spoiled_bytes_raise_nothing_else(data: st.DataObject) -> None:
    raw = bytearray(pack(MINE)[1])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    try:
        found = contents(bytes(raw))
    except BundleError:
        return
    assert {name: found[name] for name in MINE if name in found} == {n: MINE[n] for n in MINE if n in found}


@pytest.mark.parametrize(
    ("wanted", "version", "fits"),
    [
        ("", "0.2.0", True),
        (">=0.2,<0.3", "0.2.0", True),
        (">=0.2,<0.3", "0.2.17rc1", True),
        (">=0.2,<0.3", "0.3.0", False),
        (">=0.2.1", "0.2", False),
        (">=3.11", "3.9", False),
        (">=3.11", "3.13", True),
        ("<0.3.0", "0.3", False),
    ],
)
def test_a_bundle_says_which_versions_can_run_it(wanted: str, version: str, fits: bool) -> None:
    manifest = Manifest({}, wanted)
    if fits:
        manifest.check_fits(version, "3.11")
    else:
        with pytest.raises(BundleError, match=f"needs Geartrain {wanted}, and Geartrain {version} is here"):
            manifest.check_fits(version, "3.11")
