"""The state folder of a demo: one run's files, held by one program, with a manifest that says what was begun.

It is used before and after the record's path. Guarantees: two programs never work in one folder. A run is
resumed only with the settings with which it was begun, because its spools, log and checkpoints depend on
them.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.file_lock import take_lock
from geartrain.adapters.files import write_private
from geartrain.adapters.layouts import FileLayout
from geartrain.adapters.temporary import temporary_folder
from geartrain.errors import ConfigError
from geartrain.revision import Revision, differences, in_short
from geartrain_cloud.errors import StateError
from geartrain_cloud.revision_file import read_revision

MANIFEST, LOCK_FILE = "demo.json", "demo.lock"
_LAYOUT = FileLayout("geartrain-demo", 1, StateError, "name another folder")
OWN_FILES = frozenset({LOCK_FILE, "input.csv", "input.csv.new", "input"})
"""What may lie in a folder in which nothing has begun."""


class InputFile(msgspec.Struct, frozen=True):
    """The input of a run, and what it held when the run was begun; `sample`: it is the demo's own."""

    path: str
    size: int
    sha256: str
    sample: bool = False

    @staticmethod
    def of(path: Path, *, sample: bool = False) -> InputFile:
        """Read and fingerprint a file; raises `OSError`."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return InputFile(str(path.absolute()), path.stat().st_size, digest, sample)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """A demo that is ready to run, as plain data.

    inputs: the path of each file that it reads, by the name of its option; parts: what each device has, for
    people; steps: the options of the steps; devices: the options of the sources on each device; whole: the
    same for one device that has everything, for measuring; paced: the sources that `--speed` slows down;
    waits_from: the time from which on these wait for the step that moves, "" for none; said: sentences for
    the user.
    """

    inputs: dict[str, str]
    parts: dict[str, list[str]]
    steps: dict[str, dict[str, Any]]
    devices: dict[str, dict[str, dict[str, Any]]]
    whole: dict[str, dict[str, Any]]
    paced: list[str] = []
    waits_from: str = ""
    said: list[str] = []


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What was begun, and whether it has come to its end.

    options: the demo's own, by name, without its files; inputs: these, by the names of their options; setup:
    what the demo made of both; throttle: of each device's link, bytes a second, 0 for none.
    """

    demo: str
    cut: str
    options: dict[str, Any]
    inputs: dict[str, InputFile]
    setup: Setup
    finished: bool = False
    throttle: int = 0
    layout: str = _LAYOUT.text


class StateFolder:
    """A folder taken for one run, beside the lock of its platform; `close` gives it back."""

    def __init__(self, path: Path | None, prefix: str) -> None:
        """Take `path`, made if need be, or a new folder named `prefix...` where temporary files go.

        Raises `StateError` when another program has it, or it holds something else, and `MistakeError` where
        no temporary file can be written.
        """
        try:
            if path is None:
                path = Path(tempfile.mkdtemp(prefix=prefix, dir=temporary_folder()))
        except OSError as error:
            raise StateError(f"no state folder can be made: {error.strerror or error}") from None
        self.path = path.absolute()
        self._lock = take_lock(
            self.path / LOCK_FILE,
            StateError,
            unusable=f"the state folder {path} cannot be used",
            taken=f"the state folder {path} is in use by another gear: wait for it to end",
        )
        if strangers := self._strangers():
            self.close()
            raise StateError(
                f"the state folder {path} holds {strangers[0]!r} but no {MANIFEST}, so it is not a demo's: "
                "name a new or empty folder"
            )

    def _strangers(self) -> list[str]:
        names = {entry.name for entry in self.path.iterdir()}
        return [] if MANIFEST in names else sorted(names - OWN_FILES)

    def manifest(self) -> Manifest | None:
        """What was begun here, None for a new folder; raises `StateError`."""
        return read_manifest(self.path)

    def write(self, manifest: Manifest) -> None:
        """Replace the manifest; raises `StateError`."""
        try:
            content = json.dumps(msgspec.to_builtins(manifest), indent=1, ensure_ascii=False) + "\n"
            write_private(self.path / MANIFEST, content)
        except OSError as error:
            raise StateError(f"the state folder {self.path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Let others have the folder."""
        os.close(self._lock)


def read_manifest(folder: Path) -> Manifest | None:
    """What was begun in a folder, None where nothing was; raises `StateError`."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
        _LAYOUT.check_json(content, f"the state folder {folder}")
        return msgspec.json.decode(content, type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise StateError(f"{path} cannot be read ({error}): name a new state folder") from None


def check_same(manifest: Manifest, given: Mapping[str, Any], folder: Path) -> None:
    """Raise `StateError` naming the first option of `given` that is not the one that the run was begun with.

    given: by option name, None where the user has left it out.
    """
    begun = {
        "demo": manifest.demo,
        "cut": manifest.cut,
        "devices": len(manifest.setup.devices),
        "throttle": manifest.throttle,
        **manifest.options,
    }
    for name, value in given.items():
        if value is not None and value != begun[name]:
            word = name if name == "demo" else f"--{name.replace('_', '-')}"
            former = "left out" if begun[name] in (None, False) else begun[name]
            raise StateError(
                f"the state folder {folder} was begun with {word} {former}, and this run asks for "
                f"{word} {value}: leave the option out to resume, or name another folder"
            )


def check_revision(revision: Revision, flow: str, folder: Path) -> None:
    """Raise `StateError` when the run in a folder was begun with another revision of its flow."""
    try:
        held = read_revision(folder)
    except ConfigError as error:
        raise StateError(f"{error}: name a new state folder") from None
    if held is not None and (found := differences(held, revision)):
        raise StateError(
            f"the state folder {folder} was begun with another revision of the flow {flow} "
            f"({in_short(found)}): resume it with that one, or name another folder"
        )


def check_inputs(manifest: Manifest, given: Mapping[str, Path], folder: Path) -> None:
    """Raise `StateError` when an input is not the one, or not what it was, when the run was begun."""
    for name, path in given.items():
        if name not in manifest.inputs:
            raise StateError(
                f"the state folder {folder} was begun without --{name}: leave --{name} {path} out to resume, "
                "or name another folder"
            )
    for name, begun in manifest.inputs.items():
        _check_input(name, begun, given.get(name), folder)


def _check_input(name: str, begun: InputFile, given: Path | None, folder: Path) -> None:
    path = Path(begun.path) if given is None else given
    try:
        now = InputFile.of(path)
    except OSError as error:
        raise StateError(
            f"the input {path} of the run in {folder} cannot be read: {error.strerror}"
        ) from None
    if (now.size, now.sha256) == (begun.size, begun.sha256):
        return
    if given is not None:
        what = "the sample" if begun.sample else begun.path
        raise StateError(
            f"the state folder {folder} was begun with {what}, and --{name} {given} is not the same: leave "
            "the option out to resume, or name another folder"
        )
    raise StateError(
        f"the input {path} has changed since the run in {folder} was begun: bring the former file back, or "
        "name another folder"
    )
