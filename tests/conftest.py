"""What all tests share: the programs that the machine has, and the rule that nothing is left out in silence.

Under CI=true a skipped test makes the run fail, and so does a missing mosquitto, PostgreSQL or chromium.
Elsewhere the tests that drive it are left out, and a line at the end of the run says so. Tests that take any
broker run on amqtt if there is no mosquitto.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from geartrain_cloud.broker import find_mosquitto
from tests import second_try, spark_classes, spark_session
from tests.postgres_server import postgres
from tests.programs import IN_CI, PROGRAMS, begin, find_chromium, leave_out
from tests.spark_session import scope_of, spark

__all__ = ["postgres", "spark"]

# Nothing is judged by the clock, drawn examples neither: a machine may be busy.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")

# A seed names the same drawn flow in every process: hypothesis would else draw one value in twenty among the
# constants of the modules that the process has loaded by then.
providers._get_local_constants = Constants

# As agents set it in their main(), so that fewer searches for garbage are made.
gc.set_threshold(10_000)

PROOFS = Path(__file__).parent / "proofs"

notes_key = pytest.StashKey[list[str]]()
skipped_key = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The browser for playwright's `executable_path`; start it with `--no-sandbox`."""
    path = find_chromium()
    assert path, "chromium is not installed: install it, or set CHROMIUM to its path"
    return path


@pytest.fixture(scope="session")
def broker_kind() -> Literal["mosquitto", "amqtt"]:
    """The broker that the end-to-end tests run on."""
    return "mosquitto" if find_mosquitto() else "amqtt"


def pytest_configure(config: pytest.Config) -> None:
    spark_classes.use()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has what it runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what tests start begins with the default
    _leave_the_users_own(config)
    config.stash[notes_key] = []
    config.stash[skipped_key] = []
    config.pluginmanager.register(Reports(config))
    second_try.pytest_configure(config)


def _leave_the_users_own(config: pytest.Config) -> None:
    """No keys, token or platform of whoever runs the tests: gear would sign with these, or ask that one."""
    for name in ("CA", "KEYS", "STATE", "TOKEN", "URL"):
        os.environ.pop(f"GEARTRAIN_{name}", None)
    folder = tempfile.TemporaryDirectory(prefix="geartrain-home-")
    config.add_cleanup(folder.cleanup)
    os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_STATE_HOME"] = folder.name


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(PROOFS):
            item.add_marker("proof")
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.timeout(0))  # one may take hours
        asked = getattr(item, "fixturenames", ())
        if "spark" in asked:
            item.add_marker("spark")
            spark_session.check(item)
        for program in PROGRAMS:
            if program.fixture in asked:
                item.add_marker(program.marker)
    _longest_first(items)
    if not IN_CI:
        left_out, line = leave_out(items)
        config.hook.pytest_deselected(items=left_out)
        config.stash[notes_key] += [line] if line else []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    begin(item)


def _longest_first(items: list[pytest.Item]) -> None:
    """What shares Spark's session, then files with slow tests: so processes side by side end together."""
    slow = {item.path for item in items if any(map(item.get_closest_marker, ("slow", "spark", "chromium")))}
    shared = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: (item.path not in shared, item.path not in slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files side by side, as `--dist loadfile` has them, but for those that share Spark's session."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # there with the option only

    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = lambda nodeid: scope_of(nodeid, config.rootpath)
    return scheduler


def pytest_sessionfinish(session: pytest.Session) -> None:
    worker: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if worker is not None:  # one of several processes: the first one says it
        worker["notes"] = session.config.stash[notes_key]
    elif IN_CI and session.config.stash[skipped_key] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


class Reports:
    """What is left out, seen by the process that prints the summary: it gets the reports of all processes."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that was skipped; an expected failure is reported so, too."""
        if report.skipped:
            self.config.stash[skipped_key].append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module that was skipped."""
        if report.skipped:
            self.config.stash[skipped_key].append(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take the notes of a process that ends."""
        told = getattr(node, "workeroutput", {}).get("notes", [])
        self.config.stash[notes_key] += [note for note in told if note not in self.config.stash[notes_key]]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for note in config.stash[notes_key]:
        terminalreporter.write_line(f"note: {note}")
    if IN_CI and (skipped := config.stash[skipped_key]):
        terminalreporter.write_line(f"FAILED: skipped, which CI does not allow: {', '.join(skipped)}")
