"""Which code runs: the rules by themselves, and a bundle's folder in a process that has no other path."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from geartrain.bundle import Archive
from geartrain.control.app_reasons import AppCode, app_sentence
from geartrain.control.states import App, Wanted
from geartrain_edge.bundles.choice import (
    Choice,
    TrialPolicy,
    choose,
    failed,
    lived,
    marked,
    started,
    unlived,
)
from geartrain_edge.bundles.folder import BundleFolder
from tests.bundles.versions import bundle
from tests.waiting import WAIT_S

POLICY = TrialPolicy(tries_max=2)
OLD, NEW, OTHER = (App("a.1", "m:f", code=digit * 64) for digit in "123")
PROVED = Choice(proved=OLD, begun=OLD)


def everything(_code: str) -> bool:
    return True


def test_a_start_that_nobody_saw_the_end_of_counts() -> None:
    choice = choose(PROVED, NEW, everything, OLD.code).choice
    for _ in range(POLICY.tries_max):  # power is lost each time
        assert failed(choice, NEW.code, "gone", POLICY, is_final=False) == choice
        choice = started(choice, NEW)
    choice = failed(choice, NEW.code, "gone", POLICY, is_final=False)
    chosen = choose(choice, NEW, everything, OLD.code)
    assert (chosen.run, chosen.fetch) == (OLD, None)
    assert chosen.reason.code == AppCode.WENT_BACK
    sentence = f"bundle {NEW.code[:12]} went back to {OLD.code[:12]}: gone"
    assert app_sentence(chosen.reason) == sentence


def test_a_start_that_has_lived_is_forgiven_unless_it_is_seen_to_fail() -> None:
    choice = choose(PROVED, NEW, everything, OLD.code).choice
    for _ in range(5):
        choice = lived(started(choice, NEW), NEW.code)
    assert failed(choice, NEW.code, "off", POLICY, is_final=False).refused == ""
    for _ in range(POLICY.tries_max):
        choice = unlived(lived(started(choice, NEW), NEW.code), NEW.code)
    assert failed(choice, NEW.code, "ends", POLICY, is_final=False).refused == NEW.code


def test_a_commit_ends_the_trial_and_only_other_code_ends_a_refusal() -> None:
    choice = started(choose(PROVED, NEW, everything, OLD.code).choice, NEW)
    assert marked(choice, OLD.code) == choice  # of the code before it
    done = marked(choice, NEW.code)
    assert (done.proved, done.tried, done.tries) == (NEW, "", 0)
    assert failed(done, NEW.code, "late", POLICY, is_final=True) == done
    refused = failed(choice, NEW.code, "raises", POLICY, is_final=True)
    assert choose(refused, NEW, everything, OLD.code).run == OLD
    other = choose(refused, OTHER, everything, OLD.code)
    assert (other.run, other.choice.refused) == (OTHER, "")
    assert choose(other.choice, NEW, everything, OLD.code).run == NEW


def test_what_runs_stays_until_its_successor_is_here_and_drains_as_that_is_wanted() -> None:
    draining = App("a.1", "m:f", code=NEW.code, wanted=Wanted.DRAIN)
    chosen = choose(PROVED, draining, lambda code: code == OLD.code, OLD.code)
    assert chosen.run == App("a.1", "m:f", code=OLD.code, wanted=Wanted.DRAIN)
    assert chosen.fetch == draining
    assert choose(Choice(), NEW, lambda _: False, "").run is None


RUN = """
import sys
from pathlib import Path
from geartrain.errors import GeartrainError
from geartrain_edge.bundles.running import run_from
try:
    run_from(Path(sys.argv[1]), "coldroom.flow:flow")
    import coldroom.flow
    print(coldroom.flow.__file__)
    import coldroom.extra
except (GeartrainError, ImportError) as error:
    print(f"{type(error).__name__}: {error}")
"""


def test_code_comes_from_the_bundle_alone_and_a_damaged_one_loses_its_name(tmp_path: Path) -> None:
    installed = tmp_path / "installed" / "coldroom"
    installed.mkdir(parents=True)
    for name in ("__init__.py", "flow.py", "extra.py"):
        (installed / name).write_text("")
    code, archive = bundle("good")
    folder = BundleFolder(tmp_path / "bundles")
    folder.draft(code, Archive(io.BytesIO(archive)).files())
    folder.install(code)

    def run() -> list[str]:
        program = f"import sys; sys.path.insert(0, {str(installed.parent)!r})\n{RUN}"
        done = subprocess.run(
            [sys.executable, "-c", program, str(folder.path(code))],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
        return done.stdout.splitlines()

    own = folder.path(code) / "coldroom" / "flow.py"
    assert run() == [str(own), "ModuleNotFoundError: No module named 'coldroom.extra'"]
    assert not list(folder.path(code).rglob("*.pyc"))
    own.write_text(own.read_text() + "\n")
    assert run()[0].startswith("DiskError: the bundle in")
    assert not folder.has(code)
    assert folder.keep({code}) == []
    assert list(folder.root.iterdir()) == []
