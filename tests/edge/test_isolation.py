"""Apps of one device are kept from each other's files, by Landlock of the real kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from geartrain.control.states import App
from geartrain_edge.landlock import give_up, landlock_abi
from tests.edge.device_parent import ROOT, Device, Platform, app
from tests.waiting import WAIT_S

ABI_OF_SCOPES = 6


def is_absent() -> bool:
    """Whether the kernel lacks what these tests are about; then nothing is given up, and that is said."""
    if landlock_abi():
        return False
    print("not run: this kernel has no Landlock")
    assert not give_up([Path("/nowhere")], [], [])
    return True


def prying() -> App:
    return App("prying.1", "tests.edge.prying:flow", cut="cloud")


def told(device: Device, isolation: str) -> str:
    """What the prying app says it got at, beside another that runs and one that comes later."""
    (device.state / "identity").mkdir(parents=True)
    (device.state / "identity" / "identity.pem").write_text("of the device")
    (device.state / "secrets" / "stocks").mkdir(parents=True)
    (device.state / "secrets" / "stocks" / "db").write_text("of another app")
    text = device.file.read_text().replace("[labels]", f"isolation = {isolation}\n[labels]")
    device.file.write_text(f'{text}[apps.prying.sources.pried]\nfolder = "{device.state}"\n')
    found = ""

    async def story(platform: Platform) -> None:
        nonlocal found
        platform.want(app("stocks.1"))
        device.start()
        await platform.until(lambda: device.status("stocks.1").get("state") == "greeting")
        pid = device.status("stocks.1")["pid"]
        platform.want(app("stocks.1"), app("stocks.2"), prying())
        await platform.until(lambda: platform.state("prying.1") is not None)
        await platform.until(lambda: "got at" in platform.why("prying.1"))
        found = platform.why("prying.1").partition("got at ")[2]
        assert device.status("stocks.1")["pid"] == pid
        assert (device.state / "identity" / "identity.pem").exists()

    device.run(story)
    return found


def test_an_app_gets_at_its_own_files_and_the_identity_alone(device: Device) -> None:
    if is_absent():
        return
    found = told(device, "true")
    signals = "" if landlock_abi() >= ABI_OF_SCOPES else ", signal"  # Linux 6.12 keeps these back, too
    assert found == f"own, identity{signals}"
    assert not (device.state / "stocks.1" / "drain").exists()


def test_without_isolation_apps_of_one_user_get_at_each_other(device: Device) -> None:
    """What is kept back above is there to be had."""
    found = told(device, "false").split(", ")
    assert {
        "own",
        "identity",
        "spool",
        "options",
        "secrets",
        "desired",
        "change",
        "forge",
        "memory",
        "signal",
    } <= {*found}


STORY = """
import errno, os, sys
from pathlib import Path
from geartrain_edge.landlock import give_up
root = Path(sys.argv[1])
(root / "link").symlink_to(root / "in" / "secret")
assert give_up([root / "in", root / "missing"], [root / "in" / "open"], [root / "in" / "seen"])
def is_denied(what):
    try:
        what()
    except OSError as error:  # a link or a move that would widen access is said to be one across devices
        return error.errno in (errno.EACCES, errno.EXDEV)
    return False
(root / "in" / "open" / "new").write_text("x")
os.rename(root / "in" / "open" / "new", root / "other" / "new")
assert (root / "in" / "seen" / "file").read_text() == "seen"
assert set(os.listdir(root / "in")) == {"open", "secret", "seen"}
for what in (
    (root / "in" / "secret" / "file").read_text,
    (root / "link" / "file").read_text,
    lambda: (root / "in" / "later").write_text("x"),
    lambda: (root / "missing").write_text("x"),
    lambda: (root / "in" / "seen" / "file").write_text("x"),
    lambda: os.truncate(root / "in" / "seen" / "file", 0),
    lambda: (root / "in" / "seen" / "file").unlink(),
    lambda: os.link(root / "in" / "secret" / "file", root / "other" / "linked"),
    lambda: os.rename(root / "in" / "secret", root / "other" / "secret"),
):
    assert is_denied(what), what
pid = os.fork()
if not pid:
    os._exit(not is_denied((root / "in" / "secret" / "file").read_text))
assert os.waitpid(pid, 0)[1] == 0
print("kept")
"""


def test_what_is_given_up_does_not_come_back_by_any_way(tmp_path: Path) -> None:
    if is_absent():
        return
    for name in ("in/secret", "in/open", "in/seen", "other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(Path(name).name)
    done = subprocess.run(
        [sys.executable, "-c", STORY, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr
    assert (tmp_path / "in" / "secret" / "file").read_text() == "secret"
