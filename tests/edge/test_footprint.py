"""The edge stays small: what importing the whole agent brings in, and how much memory that takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.waiting import WAIT_S

HEAVY = {"pyspark", "pyarrow", "numpy", "pandas", "aiohttp", "amqtt", "typer", "rich", "py4j"}
LIGHT = {"aiomqtt", "google", "msgspec", "paho"}
OURS = {"geartrain", "geartrain_devices", "geartrain_edge", "geartrain_examples"}

MEASURE = """
import sys
from geartrain_edge.agent.process import prepare
prepare()
import geartrain_edge.agent.main
import geartrain.adapters.mqtt
import geartrain_examples.stocks.flow
import json
rss = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
tops = sorted({name.split(".")[0] for name in sys.modules})
print(json.dumps([int(rss.split()[1]), tops]))
"""


def test_importing_the_agent_and_a_flow_brings_nothing_heavy(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    rss_kb, tops = json.loads(done.stdout)
    print(
        f"agent, imported: {rss_kb / 1024:.1f} MB RSS"
    )  # held to its bar where bytecode is sure to be there
    assert not HEAVY & set(tops)
    others = {name for name in tops if not name.startswith("_") and name not in sys.stdlib_module_names}
    assert others - LIGHT - OURS - IGNORED == set()


UNUSED = """
import sys
from geartrain_edge.agent.process import prepare
prepare()
import geartrain_edge.agent.main
import dataclasses, json
ours = [module for name, module in sys.modules.items() if name.startswith("geartrain")]
kinds = {kind for module in ours for kind in vars(module).values() if isinstance(kind, type)}
made = sorted(kind.__name__ for kind in kinds if "__dataclass_params__" in vars(kind))
print(json.dumps([sorted(sys.modules), made]))
"""
LATER = {
    "argparse",
    "geartrain.aggregates",
    "geartrain.declarations.cloud_sink",
    "geartrain.declarations.device_sink",
    "geartrain.declarations.task",
    "geartrain.flow.keyed",
    "geartrain.operators.broadcast",
    "geartrain.operators.join",
    "geartrain.operators.process",
    "geartrain_devices",
    "geartrain.declarations.windows",
    "geartrain_edge.sinks.delivering",
    "google.protobuf.text_format",
    "hmac",
}
"""What only some flows need, or none."""


def test_an_agent_imports_no_operator_of_other_flows_and_makes_few_dataclasses(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNUSED]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=True)
    modules, dataclasses = json.loads(done.stdout)
    assert "geartrain_edge.spool.spool" in modules
    assert not LATER & set(modules)
    assert dataclasses == ["Sink", "Source"]  # which users subclass; each costs as much as twenty Structs


ALL_SOURCES = """
import json, pkgutil, sys, importlib
import geartrain_devices
for found in pkgutil.iter_modules(geartrain_devices.__path__):
    importlib.import_module(f"geartrain_devices.{found.name}")
print(json.dumps(sorted(sys.modules)))
"""


def test_the_libraries_of_extras_are_imported_only_by_who_opens_such_a_source(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ALL_SOURCES]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=True)
    modules = json.loads(done.stdout)
    assert {"geartrain_devices.modbus", "geartrain_devices.serial_lines"} <= set(modules)
    assert not {"serial", "pymodbus"} & set(modules)


IGNORED = {"sitecustomize", "usercustomize", "typing_extensions"}
"""What an interpreter may load by itself."""
