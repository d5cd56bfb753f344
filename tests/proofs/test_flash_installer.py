"""The installer on a machine of its own, without a network: it installs, runs, repeats, refuses and goes."""

from __future__ import annotations

import io
import json
import os
import platform
import socket
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from geartrain_client.flash.container import write_container
from geartrain_client.flash.installer import FOLDER, Content, installer
from geartrain_client.flash.settings import Address, DeviceSettings
from geartrain_client.flash.target import Target
from geartrain_client.flash.wheels import collect
from tests.programs import SYSTEM_PYTHON, system_python
from tests.proofs.clean_root import CleanRoot
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.namespaces, pytest.mark.systemd]

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
AGENT = "/opt/geartrain/venv/bin/gear-agent"
DEVICE = 'device = "d1"\nstate = "/var/lib/geartrain"\nbroker = "127.0.0.1:9"\n'
JOIN = b'url = "https://127.0.0.1:9"\ntoken = "t"\nca_fingerprint = "sha256:00"\n'


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Content:
    """What `gear flash` installs here: wheels of this checkout and of the package index."""
    target = Target.of(ARCH, system_python() or "")
    settings = DeviceSettings("pi-7", ("time.example",), None, Address.of("10.0.0.5/24", "10.0.0.1", ()))
    return Content(target, collect(target, (), tmp_path_factory.mktemp("wheels")), JOIN, settings)


def unpacked(folder: Path, content: Content) -> str:
    """The path of `install.sh`, unpacked from the installer."""
    with tarfile.open(fileobj=io.BytesIO(installer(content))) as archive:
        archive.extractall(folder, filter="tar")
    return str(folder / FOLDER / "install.sh")


def files(root: Path) -> dict[str, tuple[int, int]]:
    """What lies below a folder: size and inode of each file."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(root))] = (status.st_size, status.st_ino)
    return found


def test_it_installs_runs_repeats_and_goes(content: Content, tmp_path: Path) -> None:
    script = unpacked(tmp_path, content)
    with CleanRoot(tmp_path / "root") as root:
        before = root.run("cat", "/etc/passwd").stdout
        done = root.run("sh", script)
        assert (done.returncode, done.stderr) == (0, "")
        assert "it joins its platform as soon as there is a network" in done.stdout
        _check_places(root)
        units = [f"/etc/systemd/system/geartrain-{one}.service" for one in ("agent", "join")]
        verified = root.run("systemd-analyze", "verify", *units)
        assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
        _check_agent_runs(root, tmp_path)

        there = files(root.at("/opt/geartrain"))
        root.at("/var/lib/geartrain/spool").write_bytes(b"state")
        again = root.run("sh", script)
        assert (again.returncode, again.stderr) == (0, "")
        assert files(root.at("/opt/geartrain")) == there
        assert "has joined already" in again.stdout

        gone = root.run("sh", "/opt/geartrain/install.sh", "--uninstall")
        assert (gone.returncode, gone.stderr) == (0, "")
        assert not root.at("/opt/geartrain").exists()
        assert not list(root.at("/etc/systemd/system").rglob("geartrain-*"))
        assert root.at("/var/lib/geartrain/spool").read_bytes() == b"state"
        assert root.at("/etc/geartrain/device.toml").exists()
        assert root.run("sh", script).returncode == 0
        purged = root.run("sh", script, "--uninstall", "--purge")
        assert (purged.returncode, purged.stderr) == (0, "")
        assert not root.at("/var/lib/geartrain").exists()
        assert not root.at("/etc/geartrain").exists()
        assert root.run("cat", "/etc/passwd").stdout == before
        assert root.run("sh", script, "--uninstall", "--purge").returncode == 0


def _check_places(root: CleanRoot) -> None:
    uid = int(root.run("id", "-u", "geartrain").stdout)
    for path in ("/etc/geartrain", "/var/lib/geartrain"):
        status = root.at(path).stat()
        assert (status.st_mode & 0o777, status.st_uid) == (0o700, uid)
    join = root.at("/etc/geartrain/join.toml")
    assert join.read_bytes() == JOIN
    assert (join.stat().st_mode & 0o777, join.stat().st_uid) == (0o600, uid)
    compiled = list(root.at("/opt/geartrain").rglob("geartrain_edge/**/*.pyc"))
    assert len(compiled) > 50
    flags = {int.from_bytes(path.read_bytes()[4:8], "little") for path in compiled}
    assert flags == {0b11}  # valid by the hash of the source, whatever the times
    wanted = root.at("/etc/systemd/system/multi-user.target.wants")
    assert {path.name for path in wanted.glob("geartrain-*")} == {
        "geartrain-agent.service",
        "geartrain-join.service",
    }
    assert not any(
        path.stat().st_uid for path in root.at("/opt/geartrain").rglob("*") if not path.is_symlink()
    )
    assert root.at("/etc/hostname").read_text(encoding="ascii") == "pi-7\n"
    ntp = root.at("/etc/systemd/timesyncd.conf.d/geartrain.conf").read_text(encoding="ascii")
    assert ntp == "[Time]\nNTP=time.example\n"
    told = [
        root.at(path)
        for path in (
            "/etc/netplan/90-geartrain.yaml",
            "/etc/NetworkManager/system-connections/geartrain.nmconnection",
            "/etc/systemd/network/10-geartrain.network",
        )
    ]
    [network] = [path for path in told if path.exists()]
    assert "10.0.0.5/24" in network.read_text(encoding="ascii")


def _check_agent_runs(root: CleanRoot, folder: Path) -> None:
    """As the unit starts it: as its user, and until it says that it is ready."""
    root.at("/etc/geartrain/device.toml").write_text(DEVICE, encoding="ascii")
    root.run("chown", "geartrain:geartrain", "/etc/geartrain/device.toml")
    root.run("chmod", "600", "/etc/geartrain/device.toml")
    address = folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes:
        notes.bind(str(address))
        address.chmod(0o777)
        passage = [path for path in address.parents if path.stat().st_mode & 0o001 == 0]
        for path in passage:
            path.chmod(path.stat().st_mode | 0o001)
        as_user = ["setpriv", "--reuid=geartrain", "--regid=geartrain", "--init-groups"]
        variables = ["env", "-i", f"NOTIFY_SOCKET={address}", "PATH=/usr/bin"]
        command = [*root.enter, *variables, *as_user, AGENT, "--device", "/etc/geartrain/device.toml"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        _end_when_ready(process, notes)
    imported = root.run(
        "/opt/geartrain/venv/bin/python", "-Ic", "import geartrain_edge.joining.main, sys; print(sys.prefix)"
    )
    assert imported.returncode == 0, imported.stderr
    assert imported.stdout.startswith("/opt/geartrain/")


@pytest.mark.parametrize(
    ("spoil", "opt", "said"),
    [
        ("arch", "size=512m", "this installer is for "),
        ("python", "size=512m", "install python3.14, or make an installer with gear flash --python 3."),
        ("room", "size=4m", "make room there, then run this again"),
        ("files", "size=512m,nr_inodes=300", "is its disk full?"),
        ("wheel", "size=512m", "a file of the installer is damaged"),
    ],
)
def test_it_refuses_in_one_sentence_and_leaves_no_program(
    content: Content, tmp_path: Path, spoil: str, opt: str, said: str
) -> None:
    target = content.target
    if spoil == "arch":
        other = {"amd64": "arm64", "arm64": "amd64"}[target.arch]
        content = replace(content, target=replace(target, arch=other))
    if spoil == "python":
        content = replace(content, target=replace(target, python="3.14"))
    script = unpacked(tmp_path, content)
    if spoil == "wheel":
        wheel = next(Path(script).parent.glob("wheels/msgspec*"))
        wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
    with CleanRoot(tmp_path / "root", opt) as root:
        done = root.run("sh", script)
        assert done.returncode == 1
        assert said in done.stderr.splitlines()[-1]
        assert not root.at("/opt/geartrain/venv").exists()
        assert not list(root.at("/opt/geartrain").glob("*/complete"))
        assert not list(root.at("/etc/systemd/system").rglob("geartrain-*"))
        if opt != "size=512m":
            root.run("mount", "-o", "remount,size=512m,nr_inodes=0", "/opt")
            assert root.run("sh", script).returncode == 0
            assert root.run(AGENT, "--device", "/none").returncode == 2


@pytest.mark.parametrize(
    "times_s", [(0.2, 1.0), pytest.param((0.05, 0.5, 2.0, 4.0), marks=pytest.mark.long)], ids=["few", "more"]
)
def test_killed_at_any_time_it_is_repeated(
    content: Content, tmp_path: Path, times_s: tuple[float, ...]
) -> None:
    script = unpacked(tmp_path, content)
    with CleanRoot(tmp_path / "root") as root:
        for seconds in times_s:
            root.run("sh", script, "--uninstall", "--purge")
            root.run("timeout", "--signal=KILL", str(seconds), "sh", script)
            done = root.run("sh", script)
            assert (done.returncode, done.stderr) == (0, ""), seconds
            assert root.run(AGENT, "--device", "/none").returncode == 2
            assert root.at("/etc/geartrain/join.toml").read_bytes() == JOIN


def test_the_container_runs_its_agent_without_rights_on_a_root_that_is_read_only(
    content: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, image = tmp_path / "base.tar", tmp_path / "agent.tar"
    _pack_base(base, content.target.python)
    write_container(content, base, image)
    layout, root = tmp_path / "layout", tmp_path / "root"
    with tarfile.open(image) as archive:
        archive.extractall(layout, filter="tar")
    index = json.loads((layout / "index.json").read_text(encoding="utf-8"))

    def blob(digest: str) -> Path:
        return layout / "blobs" / digest.replace(":", "/")

    manifest = json.loads(blob(index["manifests"][0]["digest"]).read_text(encoding="utf-8"))
    config = json.loads(blob(manifest["config"]["digest"]).read_text(encoding="utf-8"))["config"]
    for layer in manifest["layers"]:
        with tarfile.open(blob(layer["digest"])) as archive:
            archive.extractall(root, filter="tar")
    user, group = config["User"].split(":")
    for volume in config["Volumes"]:
        for path in (root / volume[1:]).rglob("*"):
            os.chown(path, int(user), int(group))
        os.chown(root / volume[1:], int(user), int(group))
    (root / "etc/geartrain/device.toml").write_text(DEVICE, encoding="ascii")
    os.chown(root / "etc/geartrain/device.toml", int(user), int(group))
    (root / "etc/geartrain/device.toml").chmod(0o600)
    script = (
        'mount --make-rprivate / && mount --bind "$1" "$1" && mount --bind "$1/var/lib/geartrain" '
        '"$1/var/lib/geartrain" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
    )
    words = [*config["Entrypoint"], *config["Cmd"]]
    chroot = ["chroot", f"--userspec={config['User']}", str(root), *words]
    command = ["unshare", "--mount", "--net", "sh", "-c", script, "sh", str(root), *chroot]
    variables = dict(pair.split("=", 1) for pair in config["Env"])
    state = root / "var/lib/geartrain"
    monkeypatch.chdir(state)  # a socket's address is short
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes:
        notes.bind("notify")
        os.chown("notify", int(user), int(group))
        variables |= {"PATH": os.environ["PATH"], "NOTIFY_SOCKET": f"{config['WorkingDir']}/notify"}
        process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
        _end_when_ready(process, notes)
    assert (state / "parent.lock").stat().st_uid == int(user)


def _end_when_ready(process: subprocess.Popen[str], notes: socket.socket) -> None:
    """Wait until the agent says that it is ready; then it ends in good order."""
    notes.settimeout(WAIT_S)
    try:
        said = b""
        while b"READY=1" not in said:
            said = notes.recv(4096)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors


def _pack_base(path: Path, python: str) -> None:
    """A root file system with this machine's Python and the libraries that it needs."""
    program = Path(SYSTEM_PYTHON).resolve()
    library = Path(f"/usr/lib/python{python}")
    left_out = {"test", "__pycache__", "ensurepip", "idlelib", "tkinter", "lib2to3", "turtledemo"}
    modules = [one for one in library.rglob("*") if one.is_file() and not left_out & set(one.parts)]
    needing = [program, *(one for one in modules if one.suffix == ".so")]
    listed = subprocess.run(["ldd", *map(str, needing)], check=False, capture_output=True, text=True).stdout
    needed = {
        word
        for line in listed.splitlines()
        for word in line.split()
        if word.startswith("/") and ":" not in word
    }
    folder = next(Path(one).parent for one in needed if "libc.so" in one)
    needed |= {
        str(one) for name in ("pthread", "dl", "rt", "gcc_s") for one in folder.glob(f"lib{name}.so.*")
    }
    with tarfile.open(path, "w") as archive:
        archive.add(program, f"usr/bin/python{python}")
        for one in modules:
            archive.add(one.resolve(), str(one)[1:])
        for name in sorted(needed):
            archive.add(Path(name).resolve(), name[1:])
