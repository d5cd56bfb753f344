"""A virtual machine that starts from a disk image, as a device does: by its own firmware, loader and kernel.

The disk is a qcow2 over the image. What the guest has not written lies in its memory, and new clusters are
in the tables of the disk only after a flush. So `kill -9` of qemu costs what was not flushed, as a loss of
power does. No packet leaves this machine: the guest has qemu's own network, in which 10.0.2.2 is the host's
loopback.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

HOST = "10.0.2.2"
"""How the guest calls the machine that qemu runs on."""
MEMORY_MIB = 256
CODE, VARIABLES = "/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"
FIRMWARE_ARM = "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd"
_STARTED = re.compile(r"Startup finished in .*")
_SPAN = re.compile(r"(?:(\d+)min ?)?(?:([\d.]+)s)?(?:(\d+)ms)? \((kernel|userspace)\)")


@dataclass
class Guest:
    """One machine: a core and 256 MB. folder: for its disk, and what it says at each start."""

    arch: str
    image: Path
    folder: Path
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None
    started_at: float = field(default=0.0)

    @property
    def disk(self) -> Path:
        return self.folder / "disk.qcow2"

    @property
    def console(self) -> Path:
        return self.folder / f"console-{self.starts}.log"

    def start(self) -> None:
        """Switch it on."""
        if not self.disk.exists():
            made = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(self.image.absolute())]
            subprocess.run([*made, str(self.disk)], check=True)
        self.starts += 1
        self.started_at = time.monotonic()
        with (self.folder / f"qemu-{self.starts}.log").open("wb") as said:
            self.process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )

    def cut_power(self) -> None:
        """kill -9 of qemu."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def said(self) -> str:
        """What the console has said since the last start, without control characters."""
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        return re.sub(r"\x1b\[[0-9;?=]*[A-Za-z]|\r", "", text)

    def is_on(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def startup_s(self) -> tuple[float, float] | None:
        """What systemd says that kernel and userspace took, in seconds of the guest; None before it has."""
        line = _STARTED.search(self.said())
        spans = {
            found[4]: float(found[1] or 0) * 60 + float(found[2] or 0) + float(found[3] or 0) / 1_000
            for found in _SPAN.finditer(line[0] if line else "")
        }
        return (spans["kernel"], spans["userspace"]) if len(spans) == 2 else None

    def _command(self) -> list[str]:
        if self.arch == "amd64":
            variables = self.folder / "variables.fd"
            if not variables.exists():
                shutil.copyfile(VARIABLES, variables)
            command = ["qemu-system-x86_64", "-M", "q35", "-cpu", "max"]
            command += ["-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={CODE}"]
            command += ["-drive", f"if=pflash,format=raw,unit=1,file={variables}"]
        else:
            command = ["qemu-system-aarch64", "-M", "virt", "-cpu", "cortex-a53", "-bios", FIRMWARE_ARM]
        command += ["-m", str(MEMORY_MIB), "-smp", "1", "-nodefaults", "-display", "none"]
        command += ["-drive", f"file={self.disk},format=qcow2,if=virtio,cache=writeback"]
        command += ["-nic", "user,model=virtio-net-pci", "-device", "virtio-rng-pci"]
        return [*command, "-serial", f"file:{self.console}"]
