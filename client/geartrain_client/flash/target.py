"""What kind of machine is flashed: its architecture and its Python, and by which names each tool knows them.

Guarantees: an architecture or a Python that cannot be served is refused in a sentence that says why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from geartrain.errors import MistakeError

GLIBC_MINOR_MAX = 36
"""Wheels may ask for glibc 2.36, that of Debian 12 and Raspberry Pi OS of 2023, and no newer one."""
GLIBC_MINOR_MIN = 17

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
DEFAULT_PYTHON = "3.11"

_MACHINES = {"arm64": ("aarch64", "arm64"), "amd64": ("x86_64", "amd64")}
_OTHERS = {
    "armhf": "msgspec and cffi, which the agent is built on, have no wheel for it (armv7l): use a 64-bit "
    "system, which all boards since the Raspberry Pi 3 run",
    "armv7l": "it is called armhf, and msgspec and cffi have no wheel for it: use a 64-bit system",
    "aarch64": "it is called arm64",
    "x86_64": "it is called amd64",
}


@dataclass(frozen=True, slots=True)
class Target:
    """arch: `arm64` or `amd64`, as Debian and OCI call it; python: such as `3.11`."""

    arch: str
    python: str

    @staticmethod
    def of(arch: str, python: str) -> Target:
        """The target of two options; raises `MistakeError`."""
        if arch not in _MACHINES:
            why = _OTHERS.get(arch, "the architectures are arm64 and amd64")
            raise MistakeError(f"--arch {arch} cannot be served: {why}")
        if python not in PYTHONS:
            wrong = (
                "it is two numbers, such as 3.11" if not re.fullmatch(r"3\.\d+", python) else "no such wheels"
            )
            raise MistakeError(f"--python {python} cannot be served: {wrong}; it may be {', '.join(PYTHONS)}")
        return Target(arch, python)

    @staticmethod
    def of_machine(machine: str, python: str) -> Target:
        """The target of a device that says what `uname -m` says there; raises `MistakeError`."""
        found = next((arch for arch, names in _MACHINES.items() if machine in names), machine)
        return Target.of(found, python)

    @property
    def machine(self) -> str:
        """The name in wheels' tags: `aarch64` or `x86_64`."""
        return _MACHINES[self.arch][0]

    @property
    def machines(self) -> tuple[str, ...]:
        """What `uname -m` may say there."""
        return _MACHINES[self.arch]

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platform tags of wheels that run there, newest glibc first."""
        minors = range(GLIBC_MINOR_MAX, GLIBC_MINOR_MIN - 1, -1)
        return (*(f"manylinux_2_{minor}_{self.machine}" for minor in minors), f"manylinux2014_{self.machine}")

    @property
    def markers(self) -> dict[str, str]:
        """What a requirement's marker may ask about the device's Python."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }
