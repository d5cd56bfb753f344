"""`gear-sim`: what it says, how it ends, that it shrinks what it finds, and that a seed leaves one trace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from geartrain_simulation import cli
from geartrain_simulation.campaign import campaign
from geartrain_simulation.campaign.campaign import Report, digests_elsewhere, run_seeds
from geartrain_simulation.campaign.planting import BrokenRunError, Mutant, first_kill, planted
from geartrain_simulation.campaign.regressions import Case, drawn, keep, load, shrunk
from geartrain_simulation.campaign.runs import WORLDS, Key, Result, current_key, run_seed
from geartrain_simulation.campaign.shrinking import Tries, shrink
from geartrain_simulation.cli import main
from geartrain_simulation.fleet.devices import Device
from geartrain_simulation.fleet.troubles import Fault
from tests import mutants
from tests.drawing import few_and_all
from tests.mutants import MUTANTS

REGRESSIONS = Path(__file__).with_name("regressions.json")


@pytest.mark.parametrize("case", load(REGRESSIONS), ids=lambda case: f"{case.seed}-{case.rule}")
def test_what_was_found_once_stays_mended(case: Case) -> None:
    result = case.run()
    assert result.is_good, f"{result.rule}: {result.detail}"


def test_help_shows_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "gear-sim --seed 4711 --trace" in capsys.readouterr().out


@pytest.mark.parametrize("worlds", few_and_all("kinds of worlds", sorted(WORLDS), 2))
def test_worlds_of_each_kind_are_run_and_shown(worlds: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for world in worlds:
        assert main(["--world", world, "--seeds", "2", "--workers", "1", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["done"], said["repeated"], said["differ"]) == (2, [0], []), world
        assert said["virtual_s"] > 2
        assert main(["--world", world, "--seed", "1", "--trace"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert any(" start" in line or " net.publish " in line for line in lines), world
        assert run_seed(1, world).digest in lines[-2], world


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--seeds", "0"],
        ["--seed", "x"],
        ["--seeds", "5", "--mutants"],
        ["--seeds", "5", "--world", "flat"],
    ],
)
def test_a_wrong_option_is_refused_in_a_sentence(
    words: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert "gear-sim: error: " in shown.err
    assert "Traceback" not in shown.err + shown.out


def test_some_seeds_in_two_processes_and_one_of_them_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "12", "--workers", "2"]) == 0
    shown = capsys.readouterr()
    assert "12 of 12 seeds (0 to 11)" in shown.out
    assert "0 broken; 1 run twice, 0 of them with another trace" in shown.out
    assert current_key().python in shown.out
    assert shown.err == ""  # progress is for a terminal


def test_json_tells_programs_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--from", "200", "--workers", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["first"], said["asked"], said["done"], said["is_good"]) == (200, 3, 3, True)
    assert said["repeated"] == [200]
    assert said["violations"] == said["differ"] == []
    assert said["steps"] > 100


def test_one_seed_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(" ingest.1 start" in line for line in lines)
    assert any(line.strip().startswith("Device(name='device-1'") for line in lines)
    assert lines[-1].startswith("every rule held: ")
    assert run_seed(3).digest in lines[-2]
    assert main(["--seed", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == run_seed(3).digest


def test_a_broken_seed_is_shown_with_its_last_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with planted(MUTANTS["trim on puback"]):
        assert main(["--seed", "0"]) == 1
    shown = capsys.readouterr().out
    assert "broken: trimmed <= acked: " in shown
    assert "world failure ViolationError" in shown


def test_a_violation_is_shrunk_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(first: int, count: int, **_options: object) -> Report:
        report = Report(Key("abc", "3.11"), first, count)
        report.take(run_seed(first))
        return report

    file = tmp_path / "regressions.json"
    monkeypatch.setattr(cli, "run_seeds", broken)
    with planted(MUTANTS["trim on puback"]):
        assert main(["--seeds", "1", "--keep", str(file)]) == 1
        assert main(["--seeds", "1", "--keep", str(file)]) == 1  # the same is kept once
    shown = capsys.readouterr().out
    assert "seed 0 breaks 'trimmed <= acked' with no more than this:" in shown
    (case,) = load(file)
    assert (case.seed, case.rule, len(case.devices), case.faults) == (0, "trimmed <= acked", 1, ())
    assert main(["--regressions", "--keep", str(file)]) == 0  # nothing is planted any more
    with planted(MUTANTS["trim on puback"]):
        assert main(["--regressions", "--keep", str(file), "--json"]) == 1


def test_a_file_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "notes.json"
    file.write_text('{"not": "cases"}', encoding="utf-8")
    assert main(["--regressions", "--keep", str(file)]) == 2
    assert "cannot be used as a regression file" in capsys.readouterr().err


def test_mutants_have_a_line_each_and_a_survivor_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {name: MUTANTS[name] for name in ("trim on puback", "no fsync")}
    monkeypatch.setattr(mutants, "MUTANTS", few)
    assert main(["--mutants"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[:2]] == list(few)
    assert all("seed 0 " in line for line in lines[:2])
    assert lines[2].startswith("2 planted faults, 0 not found")
    monkeypatch.setattr(cli, "_kill", _survives)
    assert main(["--mutants", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == dict.fromkeys(few)
    monkeypatch.setattr(cli, "_kill", _breaks)
    assert main(["--mutants"]) == 1
    shown = capsys.readouterr()
    assert shown.out.count("BROKEN") == len(few)
    assert (
        shown.err.splitlines()[0]
        == "gear-sim: a run ended in an error that no checker reported: trim on puback, seed 4: KeyError: 'x'"
    )


def _survives(name: str) -> tuple[None, str]:
    """Of every fault."""
    return None, ""


def _breaks(name: str) -> tuple[None, str]:
    return None, str(BrokenRunError(name, 4, KeyError("x")))


def test_a_fault_that_breaks_a_checker_is_told_by_its_seed() -> None:
    def run(seed: int) -> None:
        raise KeyError(seed)

    with pytest.raises(BrokenRunError, match="odd, seed 7: KeyError: 7"):
        first_kill(Mutant("odd", lambda patches: None, run), [7])


def test_a_word_chooses_planted_faults_and_one_of_no_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_kill", _survives)
    assert main(["--mutants", "fsync", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {name for name in MUTANTS if "fsync" in name} != set()
    assert main(["--mutants", "nothing like it"]) == 2
    assert capsys.readouterr().err == "gear-sim: no planted fault has 'nothing like it' in its name\n"


def test_what_is_installed_without_its_source_says_where_planted_faults_are(tmp_path: Path) -> None:
    installed = tmp_path / "lib" / "python3" / "site-packages"
    shutil.copytree(Path(cli.__file__).parent, installed / "geartrain_simulation")
    done = subprocess.run(
        [sys.executable, "-m", "geartrain_simulation.cli", "--mutants"],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "gear-sim: planted faults are not installed: they stand in tests/mutants of Geartrain's source code, "
        "and gear-sim --mutants of a checkout's own .venv plants them\n"
    )


@pytest.mark.proof
@pytest.mark.parametrize("word", ["two commits", "next revision", pytest.param("", marks=pytest.mark.long)])
def test_the_command_itself_goes_through_planted_faults(word: str, tmp_path: Path) -> None:
    """The first two are those under which a checker has raised; `test_mutants.py` finds each by itself."""
    command = [str(Path(sys.executable).with_name("gear-sim")), "--mutants", *([word] if word else [])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    names, lines = [name for name in MUTANTS if word in name], done.stdout.splitlines()
    assert [line.partition(" seed ")[0].rstrip() for line in lines[:-1]] == names
    assert lines[-1].startswith(f"{len(names)} planted faults, 0 not found")


# Shrinking


def test_shrinking_leaves_only_what_it_takes() -> None:
    tried: list[list[int]] = []

    def fails(parts: Sequence[int]) -> bool:
        tried.append(list(parts))
        return {3, 17} <= set(parts)

    assert shrink(range(40), fails, Tries()) == [3, 17]
    assert len(tried) < 100


def test_shrinking_keeps_what_it_must_and_ends_when_its_tries_do() -> None:
    assert shrink([1, 2, 3], lambda parts: True, Tries()) == []
    assert len(shrink([1, 2, 3], lambda parts: True, Tries(), least=1)) == 1
    assert shrink(range(100), lambda parts: 99 in parts, Tries(1)) == list(range(50, 100))


def test_a_failing_seed_is_shrunk_to_its_smallest_form_and_still_fails() -> None:
    with planted(MUTANTS["watermark ahead of data"]):
        result = next(found for seed in range(50) if (found := run_seed(seed)).rule == "clock")
        case, whole = shrunk(result), drawn(result.seed)
        assert case.rule == "clock"
        assert case.run().rule == "clock"
    assert len(case.faults) < len(whole.faults)
    assert case.run().is_good


def test_cases_come_back_from_their_file(tmp_path: Path) -> None:
    case = Case(
        7, (Device("device-1"),), (Fault("kill", "device-1", point="spool.commit", nth=3),), "rule", "how"
    )
    file = tmp_path / "cases.json"
    assert load(file) == []
    assert keep(file, [case]) == 1
    assert keep(file, [case, replace(case, seed=8)]) == 1
    assert load(file) == [case, replace(case, seed=8)]


# One trace


def test_a_seed_leaves_one_trace_in_another_process_with_another_hash_seed() -> None:
    seeds = [5, 41]
    assert list(digests_elsewhere(seeds).values()) == [run_seed(seed).digest for seed in seeds]


def test_another_trace_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "digests_elsewhere", lambda seeds, kind: dict.fromkeys(seeds, "another"))
    report = run_seeds(0, 2, workers=1)
    assert (report.repeated, report.differ, report.is_good) == ([0], [0], False)


def test_no_more_are_begun_when_many_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report(Key("", "3.11"), 0, 2)
    report.take(Result(0, "digest"))
    assert not report.is_good
    report.take(Result(1, "digest", "rule", "detail"))
    assert not report.is_good
    assert [one.seed for one in report.violations] == [1]
