"""A plugin of pytest: a test that waited in vain runs once more, alone, when all others have ended.

It stands beside the record's path, with all tests. A busy machine can make a test wait in vain, or refuse
it a port or a process, while nothing is wrong. Guarantees: such a test is never left out of the result. Once
it has run again, the summary names it under "waited in vain once", and build/flaky.json keeps it. The run
fails where it fails a second time, or where there are more than `WAITS_MAX`. Any other failure is final: a
test that fails on data is never tried again.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.drawing import commit
from tests.waiting import WAIT_S, WaitedInVainError, show_logs

WAITS_MAX = 3
"""So many waits may run out in one run. Tests that share a fixture share its wait, too."""
SECOND = "GEARTRAIN_SECOND_TRY"
"""Names, for a second try, the file that it writes its outcomes to."""
VAIN = "vain"
"""The outcome of a test that is to run once more."""
KEPT_MAX = 1_000
REFUSED = frozenset(
    (
        *(errno.EADDRINUSE, errno.EADDRNOTAVAIL),  # no port
        *(errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE),  # no process, memory or file
    )
)


@dataclass
class Wait:
    """A test that waited in vain. exception: the name of its type, and the error of the system if it has one;
    wait: which of the waits of the run it was; date: in ISO 8601, UTC; load: of the machine's last minute;
    second: what came of the second try, empty where there was none.
    """

    test: str
    exception: str
    wait: str
    date: str
    commit: str
    load: float
    second: str = ""


def is_vain(error: BaseException, lasted_s: float) -> bool:
    """Whether a wait of `WAIT_S` ran out, or the system had no port or process to give.

    lasted_s: how long the test was at it. A library's own error of a timeout counts only where a whole wait
    has gone by: a shorter one is what the test is about.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(is_vain(one, lasted_s) for one in error.exceptions)
    if isinstance(error, WaitedInVainError):
        return True
    if isinstance(error, TimeoutError | subprocess.TimeoutExpired):
        return lasted_s >= WAIT_S
    return isinstance(error, OSError) and error.errno in REFUSED


class SecondTry:
    """What one process of pytest knows of tests that waited in vain."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.is_second = SECOND in os.environ
        self.waits: dict[str, Wait] = {}
        """By test."""
        self.failed = set[str]()
        """Tests that failed otherwise as well, which is final."""
        self._outcomes: dict[str, str] = {}
        self._errors: list[BaseException] = []
        """Each once: a fixture's is raised again for each of its tests."""

    # Where tests run

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Mark a report of a wait that ran out: it is neither passed nor failed."""
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        if error is None or not report.failed or not is_vain(error, call.duration):
            return report
        if not isinstance(error, WaitedInVainError) and (logs := show_logs()):
            report.sections.append(("logs of what the test has started", logs))
        if self.is_second:
            return report
        number = next((n for n, one in enumerate(self._errors) if one is error), len(self._errors))
        self._errors += [error] if number == len(self._errors) else []
        code = errno.errorcode.get(error.errno or 0, "") if isinstance(error, OSError) else ""
        report.outcome = VAIN  # type: ignore[assignment]
        wait = Wait(
            item.nodeid,
            " ".join(filter(None, (type(error).__name__, code))),
            f"{os.environ.get('PYTEST_XDIST_WORKER', '')}/{number}",
            datetime.now(UTC).isoformat(timespec="seconds"),
            commit(),
            round(os.getloadavg()[0], 1),
        )
        report.wait = asdict(wait)  # type: ignore[attr-defined]
        return report

    # Where reports come together

    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """How a report of such a test is shown."""
        return (VAIN, "V", ("WAITED IN VAIN", {"yellow": True})) if report.outcome == VAIN else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what became of a phase of a test."""
        if report.outcome == VAIN:
            self.waits.setdefault(report.nodeid, Wait(**report.wait))
        elif report.failed:
            self.failed.add(report.nodeid)
        before = self._outcomes.get(report.nodeid, "passed")
        self._outcomes[report.nodeid] = before if report.passed else report.outcome

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Try again what waited in vain, once no other process is at work."""
        if self.is_second and not hasattr(self.config, "workerinput"):
            Path(os.environ[SECOND]).write_text(json.dumps(self._outcomes), encoding="utf-8")
        if self.is_second or hasattr(self.config, "workerinput") or not self.waits:
            return
        is_whole = not session.shouldstop and not session.shouldfail
        is_whole = is_whole and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        again = [test for test in self.waits if test not in self.failed]
        if again and is_whole and not self.are_too_many:
            outcomes = self._try_again(again)
            for test in again:
                self.waits[test].second = "passed" if outcomes.get(test) == "passed" else "failed"
        keep(self.config.rootpath / "build" / "flaky.json", self.waits.values())
        is_good = not self.are_too_many and all(one.second == "passed" for one in self.waits.values())
        if not is_good and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @property
    def are_too_many(self) -> bool:
        """Whether more waits ran out than a busy machine explains."""
        return len({one.wait for one in self.waits.values()}) > WAITS_MAX

    def _try_again(self, tests: list[str]) -> dict[str, str]:
        """Run tests in a process of their own, one after the other; what became of each."""
        outcomes = self.config.rootpath / "build" / f"second_try-{os.getpid()}.json"
        outcomes.parent.mkdir(exist_ok=True)
        terminal = self.config.pluginmanager.getplugin("terminalreporter")
        terminal.ensure_newline()
        terminal.section("second try of what waited in vain")
        terminal.flush()
        options = [f"--rootdir={self.config.rootpath}", "-p", "no:cacheprovider", "-q"]
        if self.config.inipath is not None:
            options += ["-c", str(self.config.inipath)]
        places = [f"{self.config.rootpath}/{test}" for test in tests]
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *self._plugins(), *places],
                cwd=self.config.invocation_params.dir,
                env=environment | {SECOND: str(outcomes)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
            terminal.write(done.stdout)
            found: dict[str, str] = json.loads(outcomes.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            terminal.write_line(f"the second try did not end: {error}")
            return {}
        finally:
            outcomes.unlink(missing_ok=True)
        return found

    def _plugins(self) -> Iterable[str]:
        """The options -p of the command line, but for that of processes side by side."""
        for name in self.config.getoption("plugins") or []:
            if not name.startswith("xdist"):
                yield from ("-p", name)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the tests that waited in vain, and what follows."""
        if not self.waits or self.is_second:
            return
        terminalreporter.section("waited in vain once")
        for report in terminalreporter.stats.get(VAIN, []):
            terminalreporter.write_line(f"{report.nodeid} ({report.when})")
            terminalreporter.write_line(report.longreprtext)
        for one in self.waits.values():
            second = f"{one.second} at its second try" if one.second else "not tried again"
            terminalreporter.write_line(f"{one.test}: {one.exception} at load {one.load:g}, {second}")
        if self.are_too_many:
            count = len({one.wait for one in self.waits.values()})
            terminalreporter.write_line(f"FAILED: {count} waits ran out in one run; {WAITS_MAX} are the most")
        elif lost := [one.test for one in self.waits.values() if one.second != "passed"]:
            terminalreporter.write_line(f"FAILED: waited in vain, and did not pass since: {', '.join(lost)}")


def keep(file: Path, waits: Iterable[Wait]) -> None:
    """Add tests that waited in vain to those of former runs."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = []
    kept = [*(kept if isinstance(kept, list) else []), *map(asdict, waits)]
    file.parent.mkdir(exist_ok=True)
    new = file.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(kept[-KEPT_MAX:], indent=1) + "\n", encoding="utf-8")
    new.replace(file)


def pytest_configure(config: pytest.Config) -> None:
    """Begin."""
    config.pluginmanager.register(SecondTry(config), "second_try")
