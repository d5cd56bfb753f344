"""Small wheels for the tests of `gear flash`: as a package index would have them, made in memory."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from geartrain import __version__
from geartrain_client.flash.wheels import Pin, Wheels


def wheel(
    name: str,
    version: str,
    needs: Sequence[str] = (),
    extras: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> bytes:
    """A wheel of pure Python."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {extra}" for extra in extras] + [f"Requires-Dist: {need}" for need in needs]
    content = {
        f"{info}/METADATA": "\n".join(lines) + "\n\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(files or {}),
    }
    content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return out.getvalue()


def write_wheels(folder: Path, *made: tuple[str, str, bytes]) -> None:
    """Put wheels into a folder, named as pip wants it."""
    folder.mkdir(exist_ok=True)
    for name, version, content in made:
        (folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl").write_bytes(content)


def own_parts(
    edge_needs: Sequence[str] = (), extras: Sequence[str] = (), version: str = __version__
) -> list[tuple[str, str, bytes]]:
    """The three distributions of a device; the agent needs what is named."""
    agent = {
        "geartrain_edge/__init__.py": "",
        "geartrain_edge/agent/__init__.py": "",
        "geartrain_edge/agent/process.py": "def main():\n    print('agent')\n    return 0\n",
        "geartrain_edge/agent/main.py": "",
        "geartrain_edge/parent/__init__.py": "",
        "geartrain_edge/parent/main.py": "",
    }
    return [
        ("geartrain", version, wheel("geartrain", version)),
        ("geartrain-devices", version, wheel("geartrain-devices", version, extras=extras)),
        ("geartrain-edge", version, wheel("geartrain-edge", version, edge_needs, files=agent)),
    ]


def some_wheels() -> Wheels:
    """What `collect` would give for the three distributions."""
    made = own_parts()
    pins = tuple(Pin(name, version, hashlib.sha256(content).hexdigest()) for name, version, content in made)
    files = {
        f"{name.replace('-', '_')}-{version}-py3-none-any.whl": content for name, version, content in made
    }
    return Wheels(pins, files, ("pip-25.3-py3-none-any.whl", wheel("pip", "25.3")))
