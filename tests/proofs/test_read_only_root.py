"""A platform where the root file system is read-only, as in a hardened container: two folders are enough."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.control.platform_client import client_of
from tests.proofs.test_platform import FLOW, gear, until_ended, write_readings
from tests.supervisor.test_up import own_port
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.namespaces]

_SETUP = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
awk '{print $2}' /proc/self/mounts | sort -u | while read -r place; do
    case "$place" in
        /proc*|/sys*|/dev*|"$1") ;;
        *) mount -o remount,ro,bind "$place" 2>/dev/null || true ;;
    esac
done
shift
exec "$@"
"""
"""Makes all read-only but one folder, and goes over to a command."""
GEAR = (sys.executable, "-m", "geartrain_client.cli")


def words(writable: Path, *command: str) -> list[str]:
    """Those by which a command runs where only `writable` can be written."""
    return ["unshare", "--mount", "sh", "-c", _SETUP, "sh", str(writable), *command]


def environment(temporary: Path, state: Path) -> dict[str, str]:
    """The variables of such a command: the folder for temporary files, and that of the platform's state."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return own | {"TMPDIR": str(temporary), "GEARTRAIN_STATE": str(state)}


def run(writable: Path, env: dict[str, str], *arguments: str) -> tuple[int, str]:
    """The exit code of `gear`, and all that it prints, on one line."""
    done = subprocess.run(
        words(writable, *GEAR, *arguments),
        env=env,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    return done.returncode, " ".join(done.stdout.split())


def test_a_state_folder_and_one_for_temporary_files_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writable = tmp_path / "writable"
    state, temporary = writable / "state", writable / "temporary"
    temporary.mkdir(parents=True)
    monkeypatch.chdir(writable)
    (writable / "heat.py").write_text(FLOW, encoding="utf-8")
    highs = write_readings(writable / "readings.csv", range(4), 1)
    own_port(state)
    env = environment(temporary, state)
    code, said = run(writable, env, "doctor")
    assert (code, "MISSING" in said) == (0, False), said
    up = words(writable, *GEAR, "up")
    with subprocess.Popen(up, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            client = client_of(state)
            gear(state, "device", "add", "d1", "--local")
            path = f"--set=readings.path={writable / 'readings.csv'}"
            gear(state, "submit", "heat:flow", "--cut", "cloud", "--no-wait", path)
            until_ended(client, "heat")
            assert dict(client.get("/apps/heat/tables/highs")["rows"]) == highs
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            assert "started again" not in process.stderr.read()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def test_what_is_lacking_is_refused_in_a_sentence_that_names_the_variable(tmp_path: Path) -> None:
    (tmp_path / "writable").mkdir()
    state = tmp_path / "writable" / "state"
    lacking = environment(tmp_path / "temporary", state)
    sentence = "no folder for temporary files can be written, neither TMPDIR nor /tmp, /var/tmp"
    for arguments in (["up"], ["demo", "stocks"], ["doctor"]):
        code, said = run(tmp_path / "writable", lacking, *arguments)
        assert code in (1, 2)
        assert sentence in said
        assert "Traceback" not in said
    assert list(tmp_path.glob("writable/state/*")) == []
    elsewhere = environment(tmp_path / "writable", tmp_path / "state")
    code, said = run(tmp_path / "writable", elsewhere, "up")
    assert code == 2
    assert said.endswith(
        f"gear: the state folder {tmp_path / 'state'} cannot be used (Read-only file system): name one that "
        "can be written, with --state or GEARTRAIN_STATE"
    )
    code, said = run(tmp_path / "writable", elsewhere, "doctor")
    assert code == 1
    assert f"{tmp_path} cannot be written, where the platform's state would lie: set GEARTRAIN_STATE" in said
