"""`gear doctor`: what this machine has of what Geartrain needs, measured where possible."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from geartrain.adapters.temporary import loading_folder
from geartrain.errors import GeartrainError
from geartrain_client.terminal.screen import print_json, results, table_of
from geartrain_cloud.broker import find_mosquitto, free_port
from geartrain_cloud.platform.places import default_state
from geartrain_cloud.spark.java import find_java

FREE_BYTES_MIN = 1 << 30
FSYNCS = 20
PACKAGES = (
    "geartrain",
    "geartrain-client",
    "geartrain-cloud",
    "geartrain-devices",
    "geartrain-edge",
    "geartrain-examples",
)
LIBRARIES = ("pyspark", "pyarrow", "pandas", "protobuf", "msgspec", "aiomqtt", "amqtt", "aiohttp")


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found, and what to do where `ok` is false."""

    name: str
    ok: bool
    found: str


def show_checks(folder: Path | None, *, as_json: bool) -> bool:
    """Print all checks; whether everything needed is there."""
    found = run_checks(folder)
    if as_json:
        print_json([asdict(check) for check in found])
    else:
        lines = [["ok" if check.ok else "MISSING", check.name, check.found] for check in found]
        results().print(table_of("", ["", "check", "found"], lines))
    return all(check.ok for check in found)


def run_checks(folder: Path | None) -> list[Check]:
    """Every check, in the order in which a run would need it.

    Args:
        folder: on the disk to measure; None for the folder for temporary files, if there is one.

    Returns:
        The checks.
    """
    found = [_python(), _packages(), _bytecode(), _java(), _broker(), _ports(), _state()]
    try:
        temporary = loading_folder()
    except GeartrainError as error:
        found.append(Check("temp", False, str(error)))
    else:
        found.append(Check("temp", True, f"{temporary} can be written"))
        folder = folder or temporary
    return found if folder is None else [*found, _disk(folder), _fsync(folder)]


def _python() -> Check:
    found = f"{platform.python_version()} at {sys.executable}, {os.cpu_count()} cores"
    return Check("python", sys.version_info >= (3, 11), found)


def _packages() -> Check:
    missing = [name for name in (*PACKAGES, *LIBRARIES) if _version(name) is None]
    if missing:
        return Check("packages", False, f"not installed: {', '.join(missing)}; run pip install for them")
    versions = {_version(name) for name in PACKAGES}
    listed = ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    if len(versions) > 1:
        apart = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
        return Check("packages", False, f"of different versions: {apart}; install the same of all")
    return Check("packages", True, f"geartrain {versions.pop()} in all parts, {listed}")


def _bytecode() -> Check:
    """Whether processes find compiled what they import; without that each start costs about twice the CPU
    time. Nothing fails by it.
    """
    specs = [find_spec(name.replace("-", "_")) for name in PACKAGES]
    origins = [Path(spec.origin) for spec in specs if spec is not None and spec.origin]
    lacking = [one for one in origins if not Path(cache_from_source(one)).exists()]
    if not lacking:
        return Check("bytecode", True, "processes find compiled what they import")
    if sys.dont_write_bytecode:
        todo = "each process compiles it anew, as PYTHONDONTWRITEBYTECODE is set: unset it"
    elif not os.access(lacking[0].parent, os.W_OK):
        todo = "each process compiles it anew, as that cannot be written: run python -m compileall there once"
    else:
        todo = "the next start writes it"
    return Check("bytecode", True, f"none for {lacking[0].parent}; {todo}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _java() -> Check:
    try:
        java = find_java()
    except GeartrainError as error:
        return Check("java", False, str(error))
    passed = f"; passed over: {'; '.join(java.passed_over)}" if java.passed_over else ""
    return Check("java", True, f"Java {java.version} of {java.origin} at {java.path}{passed}")


def _broker() -> Check:
    mosquitto = find_mosquitto()
    if mosquitto is not None:
        return Check("broker", True, f"mosquitto at {mosquitto}")
    amqtt = _version("amqtt")
    if amqtt is None:
        return Check("broker", False, "neither mosquitto nor amqtt: install one of them")
    return Check("broker", True, f"amqtt {amqtt}, in a process of its own; mosquitto would be faster")


def _ports() -> Check:
    try:
        return Check("ports", True, f"127.0.0.1 can be listened on, such as port {free_port()}")
    except OSError as error:
        return Check("ports", False, f"127.0.0.1 cannot be listened on: {error.strerror or error}")


def _state() -> Check:
    """Whether a platform can keep its state where it would without an option."""
    try:
        state = default_state().absolute()
    except GeartrainError as error:
        return Check("state", False, str(error))
    standing = next(one for one in (state, *state.parents) if one.exists())
    if not os.access(standing, os.W_OK | os.X_OK):
        todo = "set GEARTRAIN_STATE to a folder that can be written, or name one with --state"
        return Check(
            "state", False, f"{standing} cannot be written, where the platform's state would lie: {todo}"
        )
    return Check("state", True, f"the platform's state lies in {state}")


def _disk(folder: Path) -> Check:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check("disk", False, f"{folder}: {error.strerror}")
    found = f"{free / (1 << 30):,.1f} GiB free at {folder}"
    return Check(
        "disk", free >= FREE_BYTES_MIN, found if free >= FREE_BYTES_MIN else f"only {found}; free 1 GiB"
    )


def _fsync(folder: Path) -> Check:
    """What one durable write costs: each commit of an agent and of ingest waits for at least one."""
    block = b"\0" * 4096
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            took = []
            for _ in range(FSYNCS):
                began = time.perf_counter()
                file.write(block)
                file.flush()
                os.fsync(file.fileno())
                took.append(time.perf_counter() - began)
    except OSError as error:
        return Check("fsync", False, f"{folder} cannot be written: {error.strerror}")
    middle, worst = sorted(took)[FSYNCS // 2] * 1_000, max(took) * 1_000
    return Check(
        "fsync", True, f"{middle:.2f} ms in the middle, {worst:.2f} ms at worst, of {FSYNCS} at {folder}"
    )
