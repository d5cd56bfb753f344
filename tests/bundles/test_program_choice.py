"""Which program a device starts: every short history of starts and wishes, and every loss of power."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from geartrain import __version__
from geartrain.adapters.machine import machine
from geartrain.bundle import pack_program
from geartrain.bundle.program import ENTRY
from geartrain_edge.bundles.folder import BundleFolder
from geartrain_edge.programs.choice import (
    INSTALLED,
    Choice,
    asked,
    next_start,
    not_started,
    noted,
    other_asked,
    passed,
    spared,
)
from geartrain_edge.programs.launch import launch
from geartrain_edge.programs.store import FILE, FOLDER, ProgramStore
from tests.bundles.paper_disk import PaperDisk, lay_out, remains
from tests.waiting import WAIT_S

A, B = "a" * 64, "b" * 64
TRIES = 2
WISHES = {"A": A, "B": B, "I": INSTALLED}


class History:
    """One history, with what must hold at each step of it. works: the programs that reach the platform."""

    def __init__(self, works: set[str]) -> None:
        self.choice, self.works = Choice(), works
        self.wanted, self.runs = "", INSTALLED
        self.starts: dict[str, int] = {}
        self.damaged: set[str] = set()

    def do(self, event: str) -> None:
        if event in WISHES:
            self.want(WISHES[event])
        elif event == "damage":
            self.damaged |= self.choice.codes
        else:
            self.start()

    def want(self, program: str) -> None:
        if program != self.wanted:
            self.starts = {one: count for one, count in self.starts.items() if one == program}
        self.wanted = program
        self.choice = other_asked(self.choice, program)
        if program == self.runs:
            self.choice = asked(self.choice, program, ())
        elif program != self.choice.refused:
            self.damaged.discard(program)  # it is fetched
            self.choice = asked(self.choice, program, ())
            self.start()

    def start(self) -> None:
        def is_whole(program: str) -> bool:
            assert program not in ("", INSTALLED)
            return program not in self.damaged

        before = self.choice
        self.choice, self.runs = next_start(before, is_whole, TRIES)
        assert self.runs in (INSTALLED, before.proved, before.tried)
        assert self.runs not in self.damaged
        if self.runs == self.choice.tried:
            self.starts[self.runs] = self.starts.get(self.runs, 0) + 1
            assert self.starts[self.runs] <= TRIES
            assert self.choice.tries >= 1  # it is counted before it is made
            if self.runs in self.works:
                self.choice = passed(self.choice, self.runs)
                assert self.choice == Choice(proved=self.runs)
                self.starts.pop(self.runs)


@pytest.mark.parametrize("works", [set(), {A}, {A, INSTALLED}, {A, B}, {A, B, INSTALLED}])
def test_every_history_ends_with_what_works(works: set[str]) -> None:
    for events in product((*WISHES, "start", "damage"), repeat=6):
        history = History(works)
        for event in events:
            history.do(event)
        for _ in range(TRIES + 2):
            history.start()
        assert history.runs in works | {INSTALLED}, events
        assert history.choice.tried == "", events
        if history.wanted in works and history.wanted not in history.damaged:
            assert history.runs == history.wanted, events


def test_what_went_back_is_tried_again_only_after_another_was_asked_for() -> None:
    choice = asked(Choice(proved=A), B, ("app.1",))
    for _ in range(TRIES):
        choice, runs = next_start(choice, lambda _: True, TRIES)
        assert runs == B
    choice = noted(choice, B, "it hangs")
    choice, runs = next_start(choice, lambda _: True, TRIES)
    assert (runs, choice) == (A, Choice(proved=A, refused=B, why="it hangs"))
    assert asked(other_asked(choice, B), B, ()) == choice
    assert other_asked(choice, "") == choice
    choice = other_asked(choice, A)
    assert asked(choice, B, ()) == Choice(proved=A, tried=B)


def test_the_installed_program_is_on_trial_where_it_is_asked_for() -> None:
    choice = asked(Choice(proved=A), INSTALLED, ("app.1",))
    assert choice.codes == {A}
    back = choice
    for _ in range(TRIES):
        back, runs = next_start(back, lambda _: True, TRIES)
        assert runs == INSTALLED
    assert passed(back, INSTALLED) == Choice()
    back, runs = next_start(back, lambda _: True, TRIES)
    assert (runs, back.refused, back.codes) == (A, INSTALLED, {A})


def test_a_start_that_was_ended_by_a_person_does_not_count_and_one_that_cannot_be_made_is_the_last() -> None:
    choice = asked(Choice(), A, ())
    for _ in range(5):
        choice, runs = next_start(choice, lambda _: True, TRIES)
        assert runs == A
        choice = spared(choice, A)
    assert spared(choice, INSTALLED) == choice
    assert not_started(choice, A).refused == A
    assert not_started(Choice(proved=A), A) == Choice()
    assert asked(choice, INSTALLED, ()) == Choice()  # what is proved is asked for again


def test_power_loss_while_a_choice_is_kept_leaves_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    disk = PaperDisk(tmp_path / "disk")
    disk.root.mkdir()
    store = ProgramStore(disk.root / FOLDER, disk)
    choices = [Choice(), asked(Choice(), A, ("app.1",)), Choice(proved=A), asked(Choice(proved=A), B, ())]
    ends = []
    for choice in choices[1:]:
        store.save(choice)
        assert store.load() == choice
        ends.append(len(disk.after))
    states = 0
    for step, (what, top) in enumerate(disk.after):
        kept = sum(end <= step + 1 for end in ends)
        for tree in remains(top):
            states += 1
            root = tmp_path / str(states)
            lay_out(tree, root)
            found = ProgramStore(root / FOLDER)
            assert found.load() in choices[kept : kept + 2], what
            if (root / FOLDER).is_dir():  # what is left half is in nobody's way
                found.save(choices[-1])
                assert found.load() == choices[-1]
    print(f"{len(disk.after)} steps, {states} states")
    assert states > 30


def test_a_damaged_choice_is_one_of_nothing(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path / FOLDER)
    store.save(Choice(proved=A, tried=B, tries=1, ran=("app.1",)))
    whole = (store.root / FILE).read_bytes()
    assert (store.root / FILE).stat().st_mode & 0o777 == 0o600
    chance = random.Random(1)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        (store.root / FILE).write_bytes(bytes(damaged))
        assert store.load() in (Choice(), Choice(proved=A, tried=B, tries=1, ran=("app.1",)))
    for odd in (b"", b"[]", b"{}", b'{"checksum": 1, "choice": {}}', b"[" * 50_000):
        (store.root / FILE).write_bytes(odd)
        assert store.load() == Choice()


def made(root: Path, body: str, here: str = "", version: str = "9") -> str:
    """A program that does as `body` says, in the folder of programs; here: what it is made for."""
    python, architecture = (here or machine()).split(" ")
    files = {
        ENTRY: body.encode(),
        "geartrain_edge/__init__.py": version.encode().join((b"# ", b"")),
        "geartrain_edge/agent/__init__.py": b"",
    }
    manifest, _ = pack_program(files, version=version, python=python, architecture=architecture)
    folder = BundleFolder(root)
    contents = [*files.items(), ("geartrain-program.json", manifest.to_json())]
    folder.draft(manifest.code, [(name, [content]) for name, content in contents])
    folder.install(manifest.code)
    return manifest.code


def started(device: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """One start of `gear-agent --device`, whose own program says that the file is wrong."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-P", "-m", "geartrain_edge.agent.process", "--device", str(device)]
    return subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


SHOWS = """
import json, os, signal, sys
print(json.dumps([sys.argv[1:], sys.path[0], os.environ["GEARTRAIN_PROGRAM"], os.environ["PYTHONPATH"],
                  signal.getitimer(signal.ITIMER_REAL)[0], sys.flags.safe_path and sys.dont_write_bytecode]))
"""


@pytest.fixture
def device(tmp_path: Path) -> Path:
    file = tmp_path / "device.toml"
    file.write_text('device = "a b"\nstate = "state"\n[program]\ndeadline_s = 1\ntries_max = 2\n')
    (tmp_path / "state").mkdir()
    return file


def test_the_launcher_starts_the_program_in_its_own_place_with_a_deadline(device: Path) -> None:
    store = ProgramStore(device.parent / "state" / FOLDER)
    code = made(store.root, SHOWS)
    assert "device 'a b'" in started(device).stderr  # nothing is chosen: the installed program runs
    store.save(asked(Choice(), code, ()))
    words, first, program, paths, left_s, is_kept_apart = json.loads(
        started(device, PYTHONPATH="/mine").stdout
    )
    assert (words, first, program) == (["--device", str(device)], str(store.path(code)), code)
    assert paths == f"{store.path(code)}{os.pathsep}/mine"
    assert 0 < left_s <= 2
    assert is_kept_apart
    assert store.load() == Choice(tried=code, tries=1, beside=__version__)
    store.save(passed(store.load(), code))
    assert json.loads(started(device).stdout)[4] == 0.0
    (store.path(code) / ENTRY).write_text("print(1)")  # a damaged one loses its name
    assert "device 'a b'" in started(device).stderr
    assert (store.load(), store.path(code).exists()) == (Choice(beside=__version__), False)


def test_a_newer_program_that_is_installed_later_takes_the_place_of_an_older_one(device: Path) -> None:
    store = ProgramStore(device.parent / "state" / FOLDER)
    old = made(store.root, SHOWS, version="0.1.9")
    new = made(store.root, SHOWS, version="9")
    why = f"version {__version__} was installed on the device after it"
    for before, after in (
        (Choice(old, beside="0.1.0"), Choice(refused=old, why=why)),
        (Choice(old, tried=old, beside="0.1.0"), Choice(refused=old, why=why)),
        (Choice(old, tried=new, beside="0.1.0"), Choice(tried=new, tries=1)),
        (Choice(old, refused=new, why="it hangs", beside="0.1.0"), Choice(refused=new, why="it hangs")),
        (Choice(new, beside="0.1.0"), Choice(new)),
        (Choice(old, beside=__version__), Choice(old)),  # it was asked for since
        (Choice(old), Choice(old)),  # nobody knows
    ):
        store.save(before)
        starts_its_own = "device 'a b'" in started(device).stderr
        assert store.load() == replace(after, beside=__version__)
        assert starts_its_own == (after.tried == "" and after.proved == INSTALLED)


def test_a_program_for_what_this_machine_is_no_more_is_not_started(device: Path) -> None:
    store = ProgramStore(device.parent / "state" / FOLDER)
    code = made(store.root, SHOWS, "3.10 z80")  # Python was exchanged below it
    store.save(Choice(proved=code))
    assert "device 'a b'" in started(device).stderr
    assert (store.load(), store.path(code).exists()) == (Choice(beside=__version__), False)


def test_a_program_that_cannot_be_read_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path) -> bool:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(Path, "is_dir", fails)
    assert not ProgramStore(tmp_path).is_whole(A)


def test_a_program_that_hangs_in_its_first_import_is_ended_and_goes_back(device: Path) -> None:
    store = ProgramStore(device.parent / "state" / FOLDER)
    code = made(store.root, "import time; time.sleep(3_600)")
    store.save(asked(Choice(), code, ()))
    began = time.monotonic()
    for _ in range(2):
        assert started(device).returncode == -signal.SIGALRM
    assert time.monotonic() - began < 60
    assert "device 'a b'" in started(device).stderr
    assert store.load().refused == code


def test_while_another_one_runs_no_start_is_counted(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    store = ProgramStore(device.parent / "state" / FOLDER)
    before = asked(Choice(), made(store.root, SHOWS), ())
    store.save(before)
    with (device.parent / "state" / "parent.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        launch(["--device", str(device)])
    for text in (
        "state = 1\n",
        "[",
        'state = "state"\nprogram = 1\n',
        'state = "state"\n[program]\ntries_max = 0\n',
        'state = "state"\n[program]\ndeadline_s = 10_000_000_000\n',
        'state = "state"\n[program]\ndeadline_s = true\n',
    ):
        device.write_text(text)
        launch(["--device", str(device)])
    monkeypatch.setenv("GEARTRAIN_PROGRAM", "")
    launch(["--device", str(device)])
    assert store.load() == before
