"""The installer: one tar.gz that puts the agent onto any Linux with systemd and glibc, without a network.

It holds `install.sh`, the units, the wheels with their hashes, and what the device is told. The image and the
container are made of the same content. Guarantees: the same content gives the same bytes.
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from geartrain import __version__
from geartrain.adapters.files import write_private
from geartrain.errors import MistakeError
from geartrain_client.flash.archive import Entry, gzipped, tar
from geartrain_client.flash.settings import DeviceSettings
from geartrain_client.flash.target import Target
from geartrain_client.flash.wheels import Wheels

FOLDER = "geartrain-installer"
"""The folder in the archive."""
UNITS = ("geartrain-agent.service", "geartrain-join.service")

_HERE = Path(__file__).parent
_COMPILED = 2.2
"""The room of an installed wheel by that of its files: compiled files and whole blocks come on top."""
_SPARE_BYTES = 24 << 20


@dataclass(frozen=True, slots=True)
class Content:
    """What a device gets. join: the file by which it joins its platform, None for a join by hand."""

    target: Target
    wheels: Wheels
    join: bytes | None = None
    settings: DeviceSettings = field(default_factory=DeviceSettings)

    @property
    def environment(self) -> str:
        """The name of the program's folder: the version, and a hash of all that is installed."""
        named = self.target.python.encode() + self.wheels.requirements
        return f"{__version__}-{hashlib.sha256(named).hexdigest()[:12]}"


def files_of(content: Content) -> dict[str, Entry]:
    """The files of the installer by their paths in its folder."""
    files = {f"units/{name}": Entry(unit(name)) for name in UNITS}
    files["install.sh"] = Entry((_HERE / "install.sh").read_bytes(), 0o755)
    files["about"] = Entry(_about(content))
    files["requirements.txt"] = Entry(content.wheels.requirements)
    name, wheel = content.wheels.pip
    files[f"pip/{name}"] = Entry(wheel)
    files |= {f"wheels/{name}": Entry(wheel) for name, wheel in content.wheels.files.items()}
    files |= {f"settings/{name}": Entry(text, 0o600) for name, text in content.settings.files().items()}
    if content.join is not None:
        files["join.toml"] = Entry(content.join, 0o600)
    sums = [
        f"{hashlib.sha256(one.content or b'').hexdigest()}  {path}\n" for path, one in sorted(files.items())
    ]
    return {**files, "SHA256SUMS": Entry("".join(sums).encode())}


def installer(content: Content) -> bytes:
    """The bytes of the installer."""
    return gzipped(tar({f"{FOLDER}/{path}": entry for path, entry in files_of(content).items()}))


def write_output(path: Path, content: bytes) -> None:
    """Write an output, 0600, whole or not at all; raises `MistakeError`."""
    try:
        write_private(path, content)
    except OSError as error:
        raise MistakeError(f"{path} cannot be written: {error.strerror or error}") from None


def unit(name: str) -> bytes:
    """A unit of systemd as `deploy/systemd/device` holds it."""
    return (_HERE / "units" / name).read_bytes()


def _about(content: Content) -> bytes:
    target = content.target
    room = int(content.wheels.unpacked_bytes * _COMPILED) + _SPARE_BYTES
    values = {
        "ARCH": target.arch,
        "MACHINES": " ".join(target.machines),
        "PYTHON": target.python,
        "VERSION": __version__,
        "ENVIRONMENT": content.environment,
        "SIZE_KB": str(room // 1024),
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()).encode()
