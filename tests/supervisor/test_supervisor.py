"""The supervisor over small processes that really die."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from geartrain.errors import ConfigError
from geartrain_cloud import bounded_log
from geartrain_cloud.errors import FullDiskError, SupervisorError
from geartrain_cloud.supervisor import child as child_module
from geartrain_cloud.supervisor import supervise
from geartrain_cloud.supervisor.child import Child, ChildSpec, ChildState, how_it_ended, last_lines
from geartrain_cloud.supervisor.supervise import StopSignal, Supervisor
from tests.waiting import WAIT_S, Wait

STAY = "import time; time.sleep(600)"
WITH_GRANDCHILD = """
    import pathlib, subprocess, sys, time
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path(sys.argv[1]).write_text(str(inner.pid))
    time.sleep(600)
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path, grace_s=0.5) as one:
        yield one


def spec(folder: Path, code: str, *arguments: str) -> ChildSpec:
    command = (sys.executable, "-c", textwrap.dedent(code), *arguments)
    return ChildSpec("dummy", command, folder / "logs" / "dummy.log")


def started(supervisor: Supervisor, wanted: ChildSpec) -> Child:
    """Have this process and no other."""
    supervisor.follow([wanted])
    return supervisor.children[wanted.name]


def until(condition: Callable[[], bool], supervisor: Supervisor | None = None) -> None:
    wait = Wait("what a child is to come to")
    while not condition():
        wait.check()
        if supervisor is not None:
            supervisor.check()
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text(encoding="utf-8") != "")
    return int(path.read_text(encoding="utf-8"))


def test_killed_process_is_started_again(supervisor: Supervisor, tmp_path: Path) -> None:
    child = started(supervisor, spec(tmp_path, STAY))
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: child.restarts == 1 and child.pid not in (None, first), supervisor)
    assert supervisor.happenings == ["dummy was killed by SIGKILL and is started again (1)"]
    published = json.loads((tmp_path / "processes.json").read_text(encoding="utf-8"))
    said = {"pid": child.pid, "state": "running", "restarts": 1, "why": "", "since_us": child.since_us}
    assert published == {"dummy": said}


def test_exit_with_0_is_a_death(supervisor: Supervisor, tmp_path: Path) -> None:
    child = started(supervisor, spec(tmp_path, "pass"))
    until(lambda: child.restarts == 2, supervisor)
    assert supervisor.happenings[0] == "dummy ended with 0 and is started again (1)"


def test_who_ends_by_itself_is_told_with_the_last_line_that_it_said(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    child = started(
        supervisor, spec(tmp_path, "print('one', flush=True); raise SystemExit('no such package')")
    )
    until(lambda: child.restarts == 1, supervisor)
    assert supervisor.happenings == ["dummy ended with 1 and is started again (1): no such package"]


def test_a_full_disk_is_named_where_a_process_had_no_room_to_say_so(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gear up` said only that control had ended with 1, again and again: its log was empty."""
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=4096))
    child = started(supervisor, spec(tmp_path, "raise SystemExit(1)"))
    until(lambda: child.restarts == 1, supervisor)
    assert supervisor.happenings == [
        f"dummy ended with 1 and is started again (1): the disk of {child.spec.log.parent} is full: make room"
    ]


def test_a_working_folder_that_is_gone_is_named(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java does not start there, so `gear up` asked for another Java again and again."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    (tmp_path / "project").rmdir()
    child = started(supervisor, spec(tmp_path, "raise SystemExit('there is no Java')"))
    until(lambda: child.restarts == 1, supervisor)
    (happened,) = supervisor.happenings
    assert happened == (
        "dummy ended with 1 and is started again (1): the folder in which gear up was started is gone: "
        "start gear up again in one that stays; there is no Java"
    )


def test_a_round_without_room_is_made_up_for_when_there_is_some(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gear up` ended with all its processes when the first of them ended on a full disk."""
    child = started(supervisor, spec(tmp_path, STAY))
    first = child.pid
    assert first is not None
    with monkeypatch.context() as full:
        full.setattr(supervise, "write_private", no_room)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(FullDiskError, match=r"processes\.json cannot be written: No space"):
            until(lambda: child.restarts == 1, supervisor)
    assert supervisor.happenings == ["dummy was killed by SIGKILL and is started again (1)"]
    until(lambda: child.pid not in (None, first), supervisor)
    supervisor.check()
    published = json.loads((tmp_path / "processes.json").read_text(encoding="utf-8"))
    assert published["dummy"]["restarts"] == 1
    assert published["dummy"]["pid"] == child.pid


def no_room(path: Path, content: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_ignores_sigterm_is_killed_with_its_group(supervisor: Supervisor, tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + textwrap.dedent(WITH_GRANDCHILD)
    child = started(supervisor, spec(tmp_path, code, str(tmp_path / "pid")))
    leader, grandchild = child.pid, pid_in(tmp_path / "pid")
    supervisor.stop()
    assert child.state is ChildState.STOPPED
    assert leader is not None
    until(lambda: not is_alive(leader) and not is_alive(grandchild))


def test_one_that_has_just_ended_is_stopped_like_any(supervisor: Supervisor, tmp_path: Path) -> None:
    """Nobody has asked for its exit code yet, and its group is still to be ended."""
    child = started(supervisor, spec(tmp_path, WITH_GRANDCHILD, str(tmp_path / "inner")))
    inner, pid = pid_in(tmp_path / "inner"), child.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    supervisor.stop()
    until(lambda: not is_alive(inner))
    assert child.pid is None
    assert child.state is ChildState.STOPPED


def test_death_of_a_process_ends_its_group(supervisor: Supervisor, tmp_path: Path) -> None:
    child = started(supervisor, spec(tmp_path, WITH_GRANDCHILD, str(tmp_path / "pid")))
    grandchild = pid_in(tmp_path / "pid")
    assert is_alive(grandchild)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: child.restarts == 1, supervisor)
    until(lambda: not is_alive(grandchild))


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("ignoring", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"])
def test_processes_die_with_the_supervisor(tmp_path: Path, guarded: bool, ignoring: str) -> None:
    code = f"""
        import pathlib, sys, time
        from geartrain_cloud.supervisor.child import ChildSpec
        from geartrain_cloud.supervisor.supervise import Supervisor
        folder = pathlib.Path(sys.argv[1])
        work = "import os, pathlib, sys;" + {ignoring!r} + "p = pathlib.Path(sys.argv[1]);" + (
            "p.with_suffix('.new').write_text(str(os.getpid())); p.with_suffix('.new').rename(p);" + {STAY!r}
        )
        command = (sys.executable, "-c", work, str(folder / "pid"))
        with Supervisor(folder) as one:
            one.follow([ChildSpec("dummy", command, folder / "dummy.log", guarded={guarded})])
            time.sleep(600)
    """
    outer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)])
    pid = pid_in(tmp_path / "pid")
    known = json.loads((tmp_path / "processes.json").read_text(encoding="utf-8"))["dummy"]["pid"]
    assert is_alive(pid)
    assert (known != pid) == guarded
    outer.kill()
    outer.wait()
    until(lambda: not is_alive(pid) and not is_alive(known))


@pytest.mark.parametrize(
    ("code", "how"),
    [("raise SystemExit(7)", "ended with 7"), ("import os; os.abort()", "was killed by SIGABRT")],
)
def test_guarded_process_ends_as_itself(supervisor: Supervisor, tmp_path: Path, code: str, how: str) -> None:
    child = started(supervisor, replace(spec(tmp_path, code), guarded=True))
    until(lambda: child.restarts == 1, supervisor)
    assert supervisor.happenings == [f"dummy {how} and is started again (1)"]


def test_kill_of_a_guard_is_that_of_its_process(supervisor: Supervisor, tmp_path: Path) -> None:
    child = started(supervisor, replace(spec(tmp_path, WITH_GRANDCHILD, str(tmp_path / "pid")), guarded=True))
    inner = pid_in(tmp_path / "pid")
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: child.restarts == 1, supervisor)
    until(lambda: not is_alive(inner))


def test_guarded_process_is_asked_to_end(supervisor: Supervisor, tmp_path: Path) -> None:
    code = """
        import pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(sys.argv[2]).touch(), sys.exit(0)))
        pathlib.Path(sys.argv[1]).write_text("1")
        time.sleep(600)
    """
    started(
        supervisor, replace(spec(tmp_path, code, str(tmp_path / "up"), str(tmp_path / "asked")), guarded=True)
    )
    pid_in(tmp_path / "up")
    supervisor.stop()
    assert (tmp_path / "asked").exists()


def test_missing_guarded_program_is_a_sentence_of_its_log(supervisor: Supervisor, tmp_path: Path) -> None:
    child = started(supervisor, ChildSpec("nothing", ("/nowhere/nothing",), tmp_path / "x.log", guarded=True))
    until(lambda: child.restarts == 1, supervisor)
    assert "/nowhere/nothing cannot be started: No such file" in child.why


def test_log_is_private_and_set_aside_when_long(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_log, "LOG_BYTES_MAX", 10)
    child = started(supervisor, spec(tmp_path, "print('a first long line')"))
    log = child.spec.log
    until(lambda: log.with_name("dummy.log.1").exists(), supervisor)
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.with_name("dummy.log.1").read_text(encoding="utf-8") == "a first long line\n"


def test_last_lines_of_odd_logs(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert last_lines(log).startswith("  ([Errno 2]")
    log.write_bytes(b"")
    assert last_lines(log) == "  (it is empty)"
    log.write_bytes(b"one\n\ntwo \xff\n")
    assert last_lines(log) == "  one\n  two \\xff"


def test_ends_in_words() -> None:
    assert [how_it_ended(code) for code in (1, -9, -200)] == [
        "ended with 1",
        "was killed by SIGKILL",
        "was killed by signal 200",
    ]


def test_signals_are_noted_and_nothing_is_interrupted() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignal() as stop:
        assert not stop.wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(WAIT_S)
        assert stop.received is signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before


def test_a_folder_that_cannot_be_written_is_a_sentence_and_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "processes.json").mkdir()  # so that no file can take its place
    reason = r"processes\.json cannot be written: .*; make room on its disk"
    with pytest.raises(SupervisorError, match=reason), Supervisor(tmp_path) as supervisor:
        started(supervisor, spec(tmp_path, "import time; time.sleep(600)"))
    assert supervisor.children["dummy"].pid is None

    (tmp_path / "file").write_text("")
    wanted = replace(spec(tmp_path, ""), log=tmp_path / "file" / "dummy.log")
    with pytest.raises(SupervisorError, match=r"dummy\.log cannot be written: .*; make room on its disk"):
        Child(wanted).start()


def test_what_failed_first_is_what_is_said(tmp_path: Path) -> None:
    (tmp_path / "processes.json").mkdir()
    with pytest.raises(ConfigError, match="this first"), Supervisor(tmp_path):
        raise ConfigError("this first")


def named(folder: Path, name: str, code: str, version: str = "") -> ChildSpec:
    command = (sys.executable, "-c", textwrap.dedent(code))
    return ChildSpec(name, command, folder / "logs" / f"{name}.log", version=version)


def test_a_process_that_dies_at_once_stops_no_other(supervisor: Supervisor, tmp_path: Path) -> None:
    specs = [named(tmp_path, "good", STAY), named(tmp_path, "bad", "import sys; sys.exit('no luck')")]
    supervisor.follow(specs)
    good, bad = supervisor.children["good"], supervisor.children["bad"]
    pid = good.pid
    until(lambda: bad.restarts >= 3, supervisor)
    assert good.pid == pid
    assert good.restarts == 0
    assert "no luck" in json.loads((tmp_path / "processes.json").read_text(encoding="utf-8"))["bad"]["why"]


def test_a_process_is_never_given_up_and_is_tried_more_seldom(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.follow([named(tmp_path, "bad", "import sys; sys.exit(1)")])
    child = supervisor.children["bad"]
    delays = []
    for _ in range(40):
        before = time.monotonic()
        child.plan_restart()
        delays.append(child.start_at_s - before)
    assert delays[-1] == pytest.approx(child_module.DELAY_S_MAX, abs=0.1)
    assert all(now <= then + 0.1 for now, then in pairwise(delays))


@pytest.mark.parametrize("code", [2, 3])
def test_a_process_that_refuses_is_said_to_have_failed(
    supervisor: Supervisor, tmp_path: Path, code: int
) -> None:
    text = f"import sys; print('wrong key', file=sys.stderr); sys.exit({code})"
    supervisor.follow([named(tmp_path, "bad", text), named(tmp_path, "good", STAY)])
    child = supervisor.children["bad"]
    until(lambda: child.state is ChildState.FAILED, supervisor)
    assert child.why == "wrong key"
    assert supervisor.children["good"].state is ChildState.RUNNING
    supervisor.follow([named(tmp_path, "bad", STAY, "2"), named(tmp_path, "good", STAY)])
    until(lambda: "bad" not in supervisor.children, supervisor)
    supervisor.follow([named(tmp_path, "bad", STAY, "2"), named(tmp_path, "good", STAY)])
    assert supervisor.children["bad"].state is ChildState.RUNNING


def test_a_program_that_is_not_there_is_tried_again(supervisor: Supervisor, tmp_path: Path) -> None:
    missing = ChildSpec("none", (str(tmp_path / "none"),), tmp_path / "logs" / "none.log")
    supervisor.follow([missing])
    assert "cannot be started" in supervisor.children["none"].why
    (tmp_path / "none").write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    (tmp_path / "none").chmod(0o700)
    until(lambda: supervisor.children["none"].state is ChildState.RUNNING, supervisor)


def test_what_is_wanted_no_longer_ends_and_what_reads_something_else_starts_anew(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    kept, gone = named(tmp_path, "kept", STAY), named(tmp_path, "gone", stubborn)
    supervisor.follow([kept, gone, named(tmp_path, "changed", STAY, "1")])
    first = {name: child.pid for name, child in supervisor.children.items()}
    for _ in range(2):  # the same again changes nothing
        supervisor.follow([kept, named(tmp_path, "changed", STAY, "2")])
    assert supervisor.children["gone"].state is ChildState.ENDING
    until(lambda: set(supervisor.children) == {"kept"}, supervisor)
    supervisor.follow([kept, named(tmp_path, "changed", STAY, "2")])
    assert supervisor.children["kept"].pid == first["kept"]
    assert supervisor.children["changed"].pid not in (None, first["changed"])
    for name in ("gone", "changed"):
        assert not is_alive(first[name] or 0)


def test_the_log_of_a_process_that_runs_for_years_is_bounded(
    tmp_path: Path, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_log, "LOG_BYTES_MAX", 10_000)
    code = (
        "import sys, time\nfor n in range(100_000): sys.stdout.write(f'line {n}\\n'), sys.stdout.flush()\n"
        + STAY
    )
    child = started(supervisor, spec(tmp_path, code))
    log, former = child.spec.log, child.spec.log.with_name("dummy.log.1")
    until(former.exists, supervisor)
    until(lambda: log.stat().st_size <= 10_000, supervisor)
    assert former.stat().st_mode & 0o777 == 0o600
    assert child.state is ChildState.RUNNING
