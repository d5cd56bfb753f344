"""The proof of `gear flash --build`: a device starts from an image and its rows arrive in Spark,
each once, though its power is cut five times.

Run by `make flash-proof`. It needs qemu, and takes a quarter of an hour for each architecture where the
processor is emulated. What is in the tables is compared with plain Python.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from geartrain.adapters.files import make_private_folder
from geartrain.adapters.toml_text import to_toml
from geartrain_client.flash.image_build import PYTHON, ImageOptions, build_image
from geartrain_client.flash.installer import Content
from geartrain_client.flash.partitions import partitions
from geartrain_client.flash.settings import DeviceSettings
from geartrain_client.flash.target import Target
from geartrain_client.flash.wheels import collect
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.platform.runs import tables_of_run
from geartrain_cloud.sinks.tables import rows
from tests.control.platform_client import Client
from tests.flash_image.guest import HOST, MEMORY_MIB, Guest
from tests.ports import free_port
from tests.proofs.test_platform_kills import FLOW, folded, write_readings
from tests.waiting import WAIT_S

HERE = Path(__file__).parent
DEVICE, APP = "card", "heat"
ROWS, ROWS_A_SECOND, CUTS = 3_000, 20.0, 5
LIMIT_S = 3_600.0
READINGS = "usr/share/heat/readings.csv"
SETTLED_S = 8.0
"""How long rows must have come, after a start, before the power is cut again."""
QUIET_S = 5.0
"""How long no row comes, once all have come that were sent before the power was cut."""

Files = Mapping[str, tuple[int, bytes]]


def say(text: str) -> None:
    """Print a line with the time, at once."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def until(what: str, done: Callable[[], Any], still: Callable[[], str]) -> Any:
    """Wait for something; fails with what `still` says where it does not come."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := done()):
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come: {what}\n{still()}")
        time.sleep(0.5)
    return found


class Platform:
    """`gear up` in a folder, and a client of its REST."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        make_private_folder(self.state)
        ports = f"mqtt_port = {free_port()}\ndevice_port = {free_port()}\n"
        (self.state / "platform.toml").write_text(f'[fleet]\naddress = "{HOST}"\n{ports}', encoding="utf-8")
        self.places = PlatformPlaces(self.state)
        command = [sys.executable, "-m", "geartrain_client.cli", "up", "--state", str(self.state)]
        with (folder / "up.log").open("wb") as said:
            self.process = subprocess.Popen(command, stdout=said, stderr=said, cwd=folder)
        until("REST of the platform", lambda: read_report(self.places.door), self.logs)

    def ask(self, method: str, path: str, body: Any = None, key: str = "") -> Any:
        """Ask, and expect to be answered well."""
        door, token = read_report(self.places.door), self.places.token.read_text().strip()
        for _ in range(60):
            try:
                code, answer = Client(door["url"], token).ask(method, path, body, key)
                break
            except OSError:
                time.sleep(1)
        else:
            raise AssertionError(f"no answer to {method} {path}: {self.logs()}")
        assert 200 <= code < 300, (method, path, code, answer)
        return answer

    def gear(self, *words: str) -> None:
        """Run `gear` as the flow's author does, with keys of their own."""
        environment = {**os.environ, "GEARTRAIN_KEYS": str(self.state.parent / "keys")}
        command = [sys.executable, "-m", "geartrain_client.cli", *words]
        done = subprocess.run(
            command, cwd=self.state.parent, env=environment, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        say(f"gear {words[0]}: {(done.stdout + done.stderr).splitlines()[-1]}")

    def rows_in_tables(self, instance: str) -> int:
        report = read_report(self.places.spark_status).get("flows", {}).get(instance, {})
        return int(report.get("rows", 0))

    def logs(self) -> str:
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-600:]}" for path in self.places.logs.glob("*")
        )

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Costs:
    """What the console has said of costs: at each time, of the machine and of each process."""

    machine: list[tuple[float, int, int, str]] = field(default_factory=list)
    processes: list[tuple[float, int, int, int, int, str]] = field(default_factory=list)

    @staticmethod
    def of(said: str) -> Costs:
        found = Costs()
        for line in said.splitlines():
            words = line[max(line.find("COSTS"), 0) :].split()
            if words[:2] == ["COSTS", "machine"] and len(words) == 6:
                found.machine.append((float(words[2]), int(words[3]), int(words[4]), words[5]))
            elif words[:2] == ["COSTS", "process"] and len(words) == 8:
                numbers = [int(word) for word in words[3:7]]
                found.processes.append((float(words[2]), *numbers, words[7]))  # type: ignore[arg-type]
        return found


def extra_files() -> Files:
    """What the proof adds to the root: what it measures with, the console, and readings for the source."""
    unit = "[Unit]\nAfter=local-fs.target\n[Service]\nExecStart=/bin/sh /usr/lib/geartrain/measure\n"
    return {
        "usr/lib/geartrain/measure": (0o755, (HERE / "measure.sh").read_bytes()),
        "etc/systemd/system/measure.service": (0o644, unit.encode()),
        "etc/systemd/system/multi-user.target.d/measure.conf": (0o644, b"[Unit]\nWants=measure.service\n"),
        "etc/systemd/journald.conf.d/console.conf": (0o644, b"[Journal]\nForwardToConsole=yes\n"),
    }


def built(arch: str, folder: Path, readings: bytes, join: bytes) -> Path:
    """The image, built as `gear flash --build` does."""
    begun, output = time.monotonic(), folder / f"{arch}.img"
    target = Target.of(arch, PYTHON)
    work = folder / "wheels"
    work.mkdir()
    content = Content(target, collect(target, (), work), join, DeviceSettings(hostname=DEVICE))
    files = {**extra_files(), READINGS: (0o644, readings)}
    places = build_image(ImageOptions(content, output, root_files=files), say)
    sizes = ", ".join(
        f"{place.name.removeprefix('geartrain-')} {place.size / 1e6:.0f} MB" for place in places
    )
    written = output.stat().st_blocks * 512 / 1e6
    say(f"built in {time.monotonic() - begun:.0f} s: {sizes}; {written:.0f} MB of the file are written")
    return output


def proven(arch: str, folder: Path) -> None:
    """Build, start, cut the power five times, and compare."""
    (folder / "heat.py").write_text(FLOW, encoding="utf-8")
    expected = write_readings(folder / "readings.csv", DEVICE, ROWS, 7)
    with_platform = Platform(folder)
    guest: Guest | None = None
    try:
        with_platform.gear("key", "new", "--name", "author")
        assert with_platform.ask("POST", "/devices", {"name": DEVICE}, DEVICE)["joins"]
        invited = with_platform.ask("POST", f"/devices/{DEVICE}/token", {})
        join = to_toml({key: invited[key] for key in ("url", "token", "ca_fingerprint")})
        image = built(arch, folder, (folder / "readings.csv").read_bytes(), join.encode())
        guest = Guest(arch, image, folder)
        guest.start()
        options = ["--name", APP, "--devices", DEVICE, "--no-wait"]
        options += ["--set", f"readings.speed={ROWS_A_SECOND}"]
        options += ["--device-set", f"{DEVICE}:readings.path=/{READINGS}"]
        with_platform.gear("submit", "heat:flow", "--state", str(with_platform.state), *options)
        instance = f"{APP}.1"
        watched(guest, with_platform, instance)
        path = tables_of_run(with_platform.places.tables(instance), 1)
        compare(path, expected)
        say(f"{arch}: the power was cut {CUTS} times; each of {ROWS} rows is in the table once, and its fold")
        report_costs(guest)
        guest.cut_power()
        check_data_partition(guest, image)
    finally:
        if guest is not None:
            guest.cut_power()
        with_platform.end()


def watched(guest: Guest, with_platform: Platform, instance: str) -> None:
    """Cut the power five times while rows arrive, then wait for the end."""

    def still() -> str:
        return f"{guest.said()[-3_000:]}\n{with_platform.logs()}"

    def count() -> int:
        return with_platform.rows_in_tables(instance)

    for number in range(1, CUTS + 2):
        before = count()
        assert guest.is_on(), f"qemu has ended: {still()}"
        until(f"rows after start {number}", partial(lambda known: count() > known, before), still)
        first = time.monotonic() - guest.started_at
        took = guest.startup_s()
        own = f" (kernel {took[0]:.1f} s, userspace {took[1]:.1f} s)" if took else ""
        load = f"load {os.getloadavg()[0]:.1f}"
        say(f"start {number}: first new rows in Spark's table after {first:.0f} s{own}, {load}")
        if number > CUTS:
            break
        time.sleep(SETTLED_S + number)
        assert before < count() < 2 * ROWS, "the power is cut while rows arrive, and some are missing yet"
        guest.cut_power()
        say(f"power cut {number}: {settled(count)} rows are in the two tables")
        guest.start()
    until("the end", lambda: with_platform.ask("GET", f"/apps/{APP}")["state"] == "ended", still)


def settled(count: Callable[[], int]) -> int:
    """How many rows there are when all that was sent is there: as many as some seconds before."""
    known = -1
    while known != (now := count()):
        known = now
        time.sleep(QUIET_S)
    return known


def compare(path: Path, expected: list[tuple[str, int, float]]) -> None:
    """The tables hold each row once, and what plain Python makes of them."""
    assert sorted(tuple(row.values()) for row in rows(path, "every")) == sorted(expected)
    assert sorted(tuple(row.values()) for row in rows(path, "results")) == sorted(folded(expected))
    assert rows(path, "dead_letters") == []


def report_costs(guest: Guest) -> None:
    """Print what the last life of the device has cost."""
    time.sleep(100)  # the app has ended: what an idle device costs
    costs = Costs.of(guest.said())
    assert costs.machine, "the device has said nothing of its costs"
    assert {root for *_, root in costs.machine} == {"squashfs:ro"}, "the root can be written"
    for when, available, written, _ in costs.machine:
        say(f"at {when:.0f} s: {available / 1024:.0f} MiB of {MEMORY_MIB} available, {written} bytes written")
    for when, pid, rss, pss, ticks, name in costs.processes:
        say(f"at {when:.0f} s: {pid} RSS {rss} KiB, PSS {pss} KiB, CPU {ticks / 100:.1f} s, {name[:90]}")


def check_data_partition(guest: Guest, image: Path) -> None:
    """The file system of the data partition is whole once its journal has been read, after a last cut."""
    raw, data = guest.folder / "disk.raw", guest.folder / "data.ext4"
    subprocess.run(["qemu-img", "convert", "-O", "raw", str(guest.disk), str(raw)], check=True)
    with image.open("rb") as file:
        place = partitions(file, image.stat().st_size)[-1]
    with raw.open("rb") as disk, data.open("wb") as to:
        disk.seek(place.offset)
        to.write(disk.read(place.size))
    raw.unlink()
    subprocess.run(["e2fsck", "-E", "journal_only", "-p", str(data)], check=True, capture_output=True)
    done = subprocess.run(["e2fsck", "-fn", str(data)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    data.unlink()
    say("after a last cut: e2fsck finds nothing to mend on the data partition")


def main() -> None:
    """Run it for the architectures that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arch", nargs="*", default=["amd64", "arm64"])
    parser.add_argument("--keep", type=Path, help="a folder for the images and what was said")
    options = parser.parse_args()
    for arch in options.arch:
        versions = json.dumps({"machine": platform.platform(), "cores": os.cpu_count()})
        qemu = "qemu-system-x86_64" if arch == "amd64" else "qemu-system-aarch64"
        said = subprocess.run([qemu, "--version"], check=True, capture_output=True, text=True).stdout
        say(f"{arch}: {versions}, {said.splitlines()[0]}, load {os.getloadavg()[0]:.1f}")
        with tempfile.TemporaryDirectory(prefix="flash-proof-") as place:
            folder = (options.keep / arch) if options.keep else Path(place)
            folder.mkdir(parents=True, exist_ok=True)
            proven(arch, folder)
        say(f"{arch}: done, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
