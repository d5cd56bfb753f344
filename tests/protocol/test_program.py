"""Program archives: wheels as they lie unpacked come out as they went in; odd ones are refused."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile

import pytest

from geartrain.adapters.machine import machine
from geartrain.bundle import ProgramArchive, code_hash, pack, pack_program, unpacked_wheels
from geartrain.bundle.program import ENTRY, PROGRAM
from geartrain.errors import BundleError

FILES = {
    ENTRY: b"def main(): ...\n",
    "msgspec/_core.so": b"\x7fELF" + bytes(1_000),
    "geartrain/__init__.py": b"",
}


def packed(files: dict[str, bytes], **parts: str) -> tuple[str, bytes]:
    manifest, raw = pack_program(
        files, **({"version": "0.3.0", "python": "3.11", "architecture": "aarch64"} | parts)
    )
    return manifest.code, raw


def wheel(files: dict[str, bytes]) -> io.BytesIO:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out


def test_what_is_packed_comes_out_compiled_modules_too() -> None:
    code, raw = packed(FILES)
    found = ProgramArchive(io.BytesIO(raw))
    assert (
        code == found.manifest.code == code_hash({n: hashlib.sha256(c).hexdigest() for n, c in FILES.items()})
    )
    contents = {name: b"".join(parts) for name, parts in found.files()}
    assert contents == {**FILES, PROGRAM: found.manifest.to_json()}
    assert json.loads(contents[PROGRAM])["files"][ENTRY] == hashlib.sha256(FILES[ENTRY]).hexdigest()
    assert raw == packed(dict(reversed(FILES.items())))[1]
    assert (found.manifest.version, found.manifest.machine) == ("0.3.0", "3.11 aarch64")


def test_it_runs_on_the_machine_that_it_was_packed_for_alone() -> None:
    manifest = ProgramArchive(io.BytesIO(packed(FILES)[1])).manifest
    manifest.check_fits("3.11 aarch64")
    for here in ("3.12 aarch64", "3.11 x86_64"):
        with pytest.raises(BundleError, match=f"is for Python 3.11 aarch64, and Python {here} is here"):
            manifest.check_fits(here)
    python, architecture = machine().split(" ")
    assert python.startswith("3.")
    assert architecture


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(BundleError, match=f"the program has no {ENTRY}"):
        packed({"a.py": b""})
    with pytest.raises(BundleError, match=f"the program has no {PROGRAM}"):
        ProgramArchive(io.BytesIO(pack({"mine/flow.py": b""})[1]))
    for files in ({**FILES, "../out.py": b""}, {**FILES, "a\\b": b""}, {**FILES, ENTRY + "/x": b""}):
        with pytest.raises(BundleError):
            packed(files)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        ('{"files": {}, "version": "", "python": "3.11", "architecture": "x"}', "cannot be read"),
        ('{"files": {}, "version": "1", "python": "3.11", "architecture": "x", "format": 2}', "has format 2"),
        (
            '{"files": {}, "version": "1", "python": "3.11", "architecture": "x"}',
            "in the archive of the program",
        ),
    ],
)
def test_an_odd_manifest_is_refused(content: str, said: str) -> None:
    out = wheel({PROGRAM: content.encode(), **FILES})
    with pytest.raises(BundleError, match=said):
        ProgramArchive(out)


def test_a_changed_file_is_found() -> None:
    _, raw = packed(FILES)
    manifest = ProgramArchive(io.BytesIO(raw)).manifest
    out = wheel({PROGRAM: manifest.to_json(), **FILES, ENTRY: b"def main(): 0\n\n"})
    with pytest.raises(BundleError, match="of the program is not what its manifest says"):
        ProgramArchive(out).check()


def test_wheels_are_laid_beside_one_another() -> None:
    one = wheel({"a/__init__.py": b"", "a-1.data/purelib/b.py": b"1", "a-1.data/scripts/a": b"#!python"})
    two = wheel({"c/x.so": b"2", "a/__init__.py": b""})
    found = unpacked_wheels([("a-1-py3-none-any.whl", one), ("c-1-cp311.whl", two)])
    assert found == {"a/__init__.py": b"", "b.py": b"1", "c/x.so": b"2"}
    other = wheel({"a/__init__.py": b"other"})
    with pytest.raises(BundleError, match=r"c\.whl has a file 'a/__init__.py' that another wheel has"):
        unpacked_wheels([("a.whl", one), ("c.whl", other)])
