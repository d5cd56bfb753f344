"""Importing a module of ours changes nothing in the process that does: neither settings nor other modules.

Each distribution is imported module by module in a child process. The libraries that it brings along are
imported before, so that what these change is not counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.source import PARTS
from tests.waiting import WAIT_S

CHILD = """
import asyncio, gc, importlib, json, logging, os, pkgutil, signal, sys, threading, warnings

def ours(name):
    return name.partition(".")[0] in PARTS

def umask():
    mask = os.umask(0o22)
    os.umask(mask)
    return mask

def settings():
    known = logging.root.manager.loggerDict
    loggers = [logging.root, *(known[name] for name in sorted(known))]
    return {
        "gc": (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()),
        "sys.meta_path": [repr(one) for one in sys.meta_path],
        "sys.path_hooks": [repr(one) for one in sys.path_hooks],
        "sys.path": list(sys.path),
        "sys.excepthook": repr(sys.excepthook),
        "threading.excepthook": repr(threading.excepthook),
        "threads": threading.active_count(),
        "signals": {str(n): repr(signal.getsignal(n)) for n in signal.valid_signals()},
        "logging": {
            one.name: (one.level, one.disabled, one.propagate, [repr(h) for h in one.handlers])
            for one in loggers
            if isinstance(one, logging.Logger)
            and (one.level or one.handlers or one.disabled or not one.propagate)
        },
        "warnings": [repr(one) for one in warnings.filters],
        "environment": dict(os.environ),
        "umask": umask(),
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
    }

def modules(package):
    yield package
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        yield found.name

PARTS, package, libraries = json.loads(sys.argv[1])
for name in libraries:
    try:
        importlib.import_module(name)
    except Exception:
        pass
before, found = settings(), []
for name in modules(package):
    importlib.import_module(name)
    after = settings()
    found += [f"{name} changes {what}" for what, held in after.items() if held != before[what]]
    before = after
for name, module in list(sys.modules.items()):
    if not ours(name) and ours(type(module).__module__):
        found.append(f"{name} in sys.modules is a stand-in")
print(json.dumps([found, [name for name in sys.modules if not ours(name)]]))
"""


def imported(package: str, libraries: list[str], folder: Path | None = None) -> tuple[list[str], list[str]]:
    """What the modules of a package change after these libraries, and what libraries they bring along."""
    told = json.dumps([[*PARTS.values(), package], package, libraries])
    command = [sys.executable, "-c", CHILD, told]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    found, brought = json.loads(done.stdout.splitlines()[-1])
    return found, brought


@pytest.mark.slow
@pytest.mark.parametrize("package", PARTS.values())
def test_import_of_each_module_changes_nothing(package: str) -> None:
    alone, libraries = imported(package, [])
    assert [one for one in alone if "stand-in" in one] == []
    assert imported(package, libraries)[0] == []


GUILTY = {
    "gc": "import gc\ngc.set_threshold(10_000)",
    "sys.meta_path": "import sys\nsys.meta_path.insert(0, type('F', (), {'find_spec': lambda *_: None}))",
    "signals": "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "logging": "import logging\nlogging.basicConfig(level=logging.INFO)",
    "warnings": "import warnings\nwarnings.simplefilter('ignore', ImportWarning)",
    "environment": "import os\nos.environ['A'] = 'b'",
}
STAND_IN = "import sys, types\nclass Stub(types.ModuleType): ...\nsys.modules['xml.dom'] = Stub('xml.dom')"


def test_what_an_import_changes_is_found(tmp_path: Path) -> None:
    (tmp_path / "guilty").mkdir()
    (tmp_path / "guilty" / "__init__.py").touch()
    for number, text in enumerate(GUILTY.values()):
        (tmp_path / "guilty" / f"m{number}.py").write_text(text)
    (tmp_path / "guilty" / "stub.py").write_text(STAND_IN)
    assert imported("guilty", [], tmp_path)[0] == [
        *(f"guilty.m{number} changes {what}" for number, what in enumerate(GUILTY)),
        "xml.dom in sys.modules is a stand-in",
    ]


def test_control_starts_without_what_takes_long_to_import() -> None:
    libraries = {"pyspark", "pyarrow", "numpy", "pandas"}
    code = f"import sys, geartrain_cloud.control.main\nprint(*({libraries} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
