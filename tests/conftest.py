"""What all tests share: the programs that the machine has, and the rule that nothing is left out in silence.

Under CI=true a skipped test makes the run fail, and so does a missing browser or database. Elsewhere their
tests are left out with a sentence at the end of the run. The broker's tests run on amqtt if there is no
mosquitto.
"""

from __future__ import annotations

import os
import shutil
from typing import Literal

import pytest
from hypothesis import settings

from tests.postgres_server import find_postgres, postgres

__all__ = ["postgres"]

IN_CI = os.environ.get("CI") == "true"
SBIN = ("/usr/local/sbin", "/usr/sbin", "/opt/homebrew/sbin")  # Debian puts mosquitto off a user's PATH

# Nothing is judged by the clock, drawn examples neither: a machine may be busy.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")

notes_key = pytest.StashKey[list[str]]()
skipped_key = pytest.StashKey[list[str]]()


def find_chromium() -> str | None:
    """The browser's program, if the machine has one."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


def find_mosquitto() -> str | None:
    """The broker's program, if the machine has one."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=os.pathsep.join(SBIN))


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The browser for playwright's `executable_path`; start it with `--no-sandbox`."""
    path = find_chromium()
    assert path, "no chromium was found: install it, or set CHROMIUM to its path"
    return path


@pytest.fixture(scope="session")
def broker_kind(request: pytest.FixtureRequest) -> Literal["mosquitto", "amqtt"]:
    """The broker that the end-to-end tests run on."""
    if find_mosquitto():
        return "mosquitto"
    note = "mosquitto is not installed: the broker's tests ran on amqtt instead."
    request.config.stash[notes_key].append(note)
    return "amqtt"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[notes_key] = []
    config.stash[skipped_key] = []
    config.pluginmanager.register(Reports(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
        if "chromium_path" in getattr(item, "fixturenames", ()):
            item.add_marker("chromium")
        if "postgres" in getattr(item, "fixturenames", ()):
            item.add_marker("postgres")
    _longest_first(items)
    if not IN_CI:
        _leave_out(config, items, "chromium", find_chromium() is not None, "chromium", "the pages")
        _leave_out(config, items, "postgres", find_postgres() is not None, "PostgreSQL", "its tables")


def _longest_first(items: list[pytest.Item]) -> None:
    """Files with tests that are slow before the others, so that processes side by side end together."""
    slow = {item.path for item in items if any(map(item.get_closest_marker, ("slow", "spark", "chromium")))}
    items.sort(key=lambda item: item.path not in slow)


def _leave_out(
    config: pytest.Config, items: list[pytest.Item], marker: str, found: bool, program: str, what: str
) -> None:
    """Leave out the tests that drive a program which is not there, and say so."""
    left_out = [item for item in items if item.get_closest_marker(marker)]
    if left_out and not found:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
        note = f"{program} is not installed: the tests of {what} ({len(left_out)}) were left out."
        config.stash[notes_key].append(note)


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
