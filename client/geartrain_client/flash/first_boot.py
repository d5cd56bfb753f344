"""How a system made by others is brought to run the installer at its first boot.

cloud-init reads `user-data`, Raspberry Pi OS runs `firstrun.sh`; both lie on the boot partition. Guarantees:
what is there stays in force. The installer is run again at each boot until it has succeeded, and is then
removed with its token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.mime.base import MIMEBase
from email.parser import BytesParser
from email.policy import default

from geartrain.errors import MistakeError

INSTALLER = "geartrain-installer.tar.gz"
"""The installer's name on the boot partition."""

READ = ("user-data", "firstrun.sh", "cmdline.txt", "issue.txt")
"""The files that are looked at."""

_KNOWN = {
    "dietpi.txt": "DietPi",
    "armbianEnv.txt": "Armbian",
    "armbian_first_run.txt": "Armbian",
    "image-version-info": "balenaOS",
    "device-type.json": "balenaOS",
    "haos-config.txt": "Home Assistant OS",
    "octopi-wpa-supplicant.txt": "OctoPi",
    "kernel.img.md5": "LibreELEC",
    "flatcar": "Flatcar",
    "alpine.apkovl.tar.gz": "Alpine",
}
_TOKENS = (
    "systemd.run=/boot/firstrun.sh systemd.run_success_action=reboot systemd.unit=kernel-command-line.target"
)
_BOUNDARY = "geartrain-5e0c6f1a"
_CLEANUP = re.compile(r"^\s*(rm -f \S*firstrun\.sh|exit 0)\b.*$", re.MULTILINE)

_INSTALL = r"""for boot in /boot/firmware /boot /boot/efi; do
    [ -f "$boot/geartrain-installer.tar.gz" ] || continue
    work=$(mktemp -d)
    {
        tar -xzf "$boot/geartrain-installer.tar.gz" -C "$work" &&
            sh "$work/geartrain-installer/install.sh" && rm -f "$boot/geartrain-installer.tar.gz"
    } >"$boot/geartrain-install.log" 2>&1
    rm -rf "$work"
    sync
done
"""
_SCRIPT = (
    "#!/bin/sh\n# Geartrain: installs the agent. Once that is done, it finds nothing to do.\n" + _INSTALL
)
_SERVICE = """[Unit]
Description=Geartrain: install the agent from the boot partition
RequiresMountsFor=/boot /boot/firmware
After=local-fs.target

[Service]
Type=oneshot
ExecStart=/usr/local/sbin/geartrain-first-boot

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class FirstBoot:
    """system: what the image was found to be; files: what is written to its boot partition."""

    system: str
    files: dict[str, bytes]


def first_boot(found: Mapping[str, bytes], names: list[str]) -> FirstBoot:
    """What to write, by the files of `READ` and all names there; raises `MistakeError`, naming what it is."""
    if "user-data" in found:
        return FirstBoot("a system with cloud-init", {"user-data": _user_data(found["user-data"])})
    for marker, system in _KNOWN.items():
        if marker in names:
            raise MistakeError(
                f"it is {system} ({marker}), which runs nothing of ours at its first boot: start it, and "
                "then run an installer there (gear flash --installer)"
            )
    if "firstrun.sh" in found:
        return FirstBoot("Raspberry Pi OS", {"firstrun.sh": _first_run(found["firstrun.sh"])})
    line = found.get("cmdline.txt", b"")
    if found.get("issue.txt", b"").startswith(b"Raspberry Pi reference") and line.strip():
        if b"systemd.run" in line:
            raise MistakeError("its cmdline.txt has a program for the first boot already: use a fresh image")
        begun = b"#!/bin/bash\n\nset +e\n\nrm -f /boot/firstrun.sh /boot/firmware/firstrun.sh\n"
        ends = b"sed -i 's| systemd.run.*||g' /boot/cmdline.txt /boot/firmware/cmdline.txt\nexit 0\n"
        line = line.splitlines()[0].rstrip() + f" {_TOKENS}\n".encode()
        return FirstBoot("Raspberry Pi OS", {"firstrun.sh": _first_run(begun + ends), "cmdline.txt": line})
    there = ", ".join(sorted(names)[:8]) or "nothing"
    raise MistakeError(
        "its boot partition has neither user-data (cloud-init) nor firstrun.sh (Raspberry Pi OS), but "
        f"{there}: start the system, and then run an installer there (gear flash --installer)"
    )


def _user_data(there: bytes) -> bytes:
    """The user-data with a part more: a script of each boot, which does nothing once it has succeeded."""
    if there.startswith(b"\x1f\x8b"):
        raise MistakeError("its user-data is compressed: begin from a fresh image")
    parts = [_part("plain", there)] if there.strip() else []
    if re.match(rb"(?i)(content-type:|mime-version:)", there):
        message = BytesParser(policy=default).parsebytes(there)
        if not message.is_multipart():
            raise MistakeError("its user-data has a form of its own: begin from a fresh image")
        there_before = [part.as_bytes() for part in message.iter_parts()]
        parts = [part for part in there_before if INSTALLER.encode() not in part]
    parts.append(_part("x-shellscript-per-boot", _SCRIPT.encode()))
    head = f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"\nMIME-Version: 1.0\n\n'.encode()
    mark = f"--{_BOUNDARY}".encode()
    return head + b"".join(mark + b"\n" + part.rstrip(b"\n") + b"\n" for part in parts) + mark + b"--\n"


def _part(kind: str, content: bytes) -> bytes:
    part = MIMEBase("text", kind, charset="utf-8")
    part["Content-Transfer-Encoding"] = "8bit"
    return part.as_bytes().rstrip(b"\n") + b"\n\n" + content


def _first_run(there: bytes) -> bytes:
    """The script with our part before it removes itself. A service does the work, at each boot until then."""
    text = there.decode("utf-8", "surrogateescape")
    if "geartrain-first-boot" in text:
        raise MistakeError("its firstrun.sh was prepared before: begin from a fresh image")
    ours = (
        "mkdir -p /usr/local/sbin\n"
        f"cat >/usr/local/sbin/geartrain-first-boot <<'GEARTRAIN'\n{_SCRIPT}GEARTRAIN\n"
        "chmod 755 /usr/local/sbin/geartrain-first-boot\n"
        f"cat >/etc/systemd/system/geartrain-first-boot.service <<'GEARTRAIN'\n{_SERVICE}GEARTRAIN\n"
        "systemctl enable geartrain-first-boot.service\n"
    )
    cleanup = _CLEANUP.search(text)
    at = len(text) if cleanup is None else cleanup.start()
    return (text[:at] + ours + text[at:]).encode("utf-8", "surrogateescape")
