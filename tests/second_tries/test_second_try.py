"""The plugin that tries once more what waited in vain, in real runs of tiny suites, side by side and not."""

from __future__ import annotations

import asyncio
import errno
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import waiting
from tests.second_try import KEPT_MAX, SECOND, Wait, is_vain, keep
from tests.waiting import WAIT_S, WaitedInVainError, in_time, note_log, wait_for

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BEGIN = """
import errno, pytest
from pathlib import Path
from tests.waiting import WaitedInVainError

def once(name, error=None):
    "Raises where it is called for the first time."
    seen = Path(__file__).with_name(name + ".seen")
    if not seen.exists():
        seen.touch()
        raise error or WaitedInVainError("the " + name)
"""
PORT = "OSError(errno.EADDRINUSE, 'Address already in use')"
SIDE_BY_SIDE = ["-p", "xdist", "-n", "2", "--dist", "loadfile"]
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    processes = getattr(request, "param", SIDE_BY_SIDE)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    for name in ("PYTEST_XDIST_WORKER", SECOND):
        monkeypatch.delenv(name, raising=False)

    def run_suite(*options: str, **files: str) -> pytest.RunResult:
        pytester.makepyfile(**{f"test_{name}": BEGIN + text for name, text in files.items()})
        return pytester.runpytest_subprocess("-p", "tests.second_try", *processes, *options)

    return run_suite


def flaky(pytester: pytest.Pytester) -> list[dict[str, Any]]:
    found = json.loads((pytester.path / "build" / "flaky.json").read_text(encoding="utf-8"))
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("run", [SIDE_BY_SIDE, []], ids=["side by side", "alone"], indirect=True)
def test_what_passes_the_second_time_is_named_and_kept(run: Run, pytester: pytest.Pytester) -> None:
    done = run(
        a="def test_wait(): once('row')\ndef test_good(): pass",
        b=f"@pytest.mark.parametrize('n', ['x//y z'])\ndef test_port(n): once('port', {PORT})",
    )
    assert done.ret == 0
    done.stdout.fnmatch_lines(
        [
            "*waited in vain once*",
            "*waited 900 s in vain for the row*",
            "test_a.py::test_wait: WaitedInVainError at load *, passed at its second try",
        ]
    )
    done.stdout.fnmatch_lines(["test_b.py::test_port?x//y z?: OSError EADDRINUSE at load *, passed at its*"])
    done.stdout.fnmatch_lines(["*1 passed, 2 vain*"])
    kept = sorted(flaky(pytester), key=lambda one: str(one["test"]))
    assert [one["test"] for one in kept] == ["test_a.py::test_wait", "test_b.py::test_port[x//y z]"]
    assert [one["exception"] for one in kept] == ["WaitedInVainError", "OSError EADDRINUSE"]
    assert all(one["date"] and one["load"] >= 0 and one["second"] == "passed" for one in kept)
    assert run(a="def test_wait(): pass").ret == 0
    assert len(flaky(pytester)) == 2


@pytest.mark.parametrize("run", [SIDE_BY_SIDE, []], ids=["side by side", "alone"], indirect=True)
def test_what_fails_twice_fails_the_run(run: Run, pytester: pytest.Pytester) -> None:
    done = run(
        a="def test_wait(): raise WaitedInVainError('Godot')",
        b="def test_data():\n    once('row')\n    assert 'lost' == 'row'\ndef test_good(): once('good')",
    )
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*'lost' == 'row'*"])
    (line,) = [
        line for line in done.outlines if line.startswith("FAILED: waited in vain, and did not pass since: ")
    ]
    assert {*line.partition("since: ")[2].split(", ")} == {"test_a.py::test_wait", "test_b.py::test_data"}
    assert sorted(one["second"] for one in flaky(pytester)) == ["failed", "failed", "passed"]


@pytest.mark.parametrize(("count", "code"), [(3, 0), (4, 1)])
def test_more_than_three_fail_the_run_and_are_not_tried_again(
    count: int, code: int, run: Run, pytester: pytest.Pytester
) -> None:
    text = "\n".join(f"def test_{n}(): once('row{n}')" for n in range(count))
    assert run(a=text).ret == code
    assert [one["second"] for one in flaky(pytester)] == ["" if code else "passed"] * count


def test_what_fails_on_data_is_never_tried_again(run: Run, pytester: pytest.Pytester) -> None:
    done = run(
        a="""
def test_data(): once('row', AssertionError('doubled'))
def test_other(): once('file', OSError(errno.ENOENT, 'gone'))
def test_short(): once('answer', TimeoutError())
def test_wait(): once('wait')
"""
    )
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*3 failed, 1 vain*"])
    assert [(one["test"], one["second"]) for one in flaky(pytester)] == [("test_a.py::test_wait", "passed")]


FIXTURE = """
@pytest.fixture(scope="module")
def broker(): once('broker'); yield 1
""" + "\n".join(f"def test_{n}(broker): assert broker" for n in range(6))


def test_a_fixture_of_a_module_waits_once_for_all_its_tests(run: Run, pytester: pytest.Pytester) -> None:
    done = run(a=FIXTURE)
    assert done.ret == 0
    assert [one["second"] for one in flaky(pytester)] == ["passed"] * 6
    assert len({one["wait"] for one in flaky(pytester)}) == 1


def test_a_fixture_that_waits_in_vain_at_its_end_is_tried_again(run: Run, pytester: pytest.Pytester) -> None:
    text = "@pytest.fixture\ndef broker():\n    yield 1\n    once('end')\ndef test_end(broker): {}"
    assert run(a=text.format("pass")).ret == 0
    assert [one["second"] for one in flaky(pytester)] == ["passed"]
    (pytester.path / "end.seen").unlink()
    assert run(a=text.format("assert not broker")).ret == pytest.ExitCode.TESTS_FAILED
    assert flaky(pytester)[-1]["second"] == ""


def test_the_first_failure_that_ends_a_run_is_one_of_data(run: Run, pytester: pytest.Pytester) -> None:
    assert run("-x", a="def test_1(): once('row')\ndef test_2(): pass").ret == 0
    assert [one["second"] for one in flaky(pytester)] == ["passed"]
    (pytester.path / "row.seen").unlink()
    done = run("-x", a="def test_1(): once('row')\ndef test_2(): assert 0\ndef test_3(): pass")
    assert done.ret != 0
    assert flaky(pytester)[-1]["second"] == ""
    done.stdout.fnmatch_lines(["*not tried again*"])


def test_it_is_the_same_where_nothing_may_be_left_out(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    skips = "def test_skips():\n    once('port')\n    pytest.skip('has no port')"
    assert run(a=skips, b="def test_wait(): once('row')").ret == pytest.ExitCode.TESTS_FAILED
    assert {one["test"]: one["second"] for one in flaky(pytester)} == {
        "test_a.py::test_skips": "failed",
        "test_b.py::test_wait": "passed",
    }


# What is in vain


@pytest.mark.parametrize(
    ("error", "lasted_s", "vain"),
    [
        (WaitedInVainError("rows"), 1.0, True),
        (ExceptionGroup("two", [WaitedInVainError("rows"), OSError(errno.ENOMEM, "")]), 1.0, True),
        (ExceptionGroup("two", [WaitedInVainError("rows"), KeyError("x")]), 1.0, False),
        (OSError(errno.EAGAIN, ""), 1.0, True),
        (OSError(errno.ENOSPC, ""), 1.0, False),
        (OSError("EADDRINUSE"), 1.0, False),
        (TimeoutError(), WAIT_S - 1, False),
        (TimeoutError(), WAIT_S + 1, True),
        (subprocess.TimeoutExpired("gear", 60), 61.0, False),
        (subprocess.TimeoutExpired("gear", WAIT_S), WAIT_S + 1, True),
        (AssertionError("waited 900 s in vain"), WAIT_S + 1, False),
    ],
    ids=repr,
)
def test_types_and_codes_decide_and_no_wording(error: Exception, lasted_s: float, vain: bool) -> None:
    assert is_vain(error, lasted_s) is vain


def test_a_damaged_file_begins_anew_and_a_long_one_loses_its_oldest(tmp_path: Path) -> None:
    file, wait = tmp_path / "build" / "flaky.json", Wait("t", "E", "/0", "2026-01-01", "c", 1.0)
    file.parent.mkdir()
    file.write_text("{", encoding="utf-8")
    keep(file, [wait])
    assert len(json.loads(file.read_text(encoding="utf-8"))) == 1
    keep(file, [wait] * KEPT_MAX)
    assert len(json.loads(file.read_text(encoding="utf-8"))) == KEPT_MAX
    assert [one.name for one in file.parent.iterdir()] == ["flaky.json"]


def test_a_wait_that_runs_out_says_for_what_and_shows_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WAIT_S", 0.01)
    monkeypatch.setattr(waiting, "_logs", {})
    note_log(tmp_path / "agent.log").write_text("the last line\n", encoding="utf-8")
    note_log(tmp_path / "none.log")
    with pytest.raises(WaitedInVainError) as caught:
        wait_for("three rows", lambda: None)
    told = str(caught.value).splitlines()
    assert told[0] == "waited 0.01 s in vain for three rows"
    assert told[1:] == [f"--- the end of {tmp_path}/agent.log", "the last line"]


def test_a_wait_ends_with_what_it_sees() -> None:
    seen = iter([0, "", "rows"])
    assert wait_for("rows", lambda: next(seen)) == "rows"


async def _waits(monkeypatch: pytest.MonkeyPatch) -> int:
    async def never() -> None:
        await asyncio.Event().wait()

    async def fail() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(WaitedInVainError, match="the end of days"):
        await in_time("the end of days", never())
    monkeypatch.setattr(waiting, "WAIT_S", 900.0)
    with pytest.raises(TimeoutError, match="of its own"):
        await in_time("a number", fail())
    return await in_time("a number", asyncio.sleep(0, 7))


def test_waits_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAIT_S", 0.01)
    assert asyncio.run(_waits(monkeypatch)) == 7
