"""The process that workers are forked from: what it has imported, and that no thread is lost by a fork."""

from __future__ import annotations

import subprocess
import sys

from geartrain_cloud.spark.worker_daemon import PRELOADED
from tests.waiting import WAIT_S

_SAYS = """
import os, sys
from geartrain_cloud.spark.worker_daemon import PRELOADED, preload
preload()
print(len(os.listdir("/proc/self/task")), all(name in sys.modules for name in PRELOADED))
child = os.fork()
if child == 0:
    import pandas, pyarrow
    table = pyarrow.table({"number": range(1_000)}).to_pandas()
    os._exit(0 if int(table["number"].sum()) == 499_500 else 1)
print(os.waitpid(child, 0)[1])
"""


def test_all_is_imported_without_a_thread_and_works_in_a_fork() -> None:
    assert len(set(PRELOADED)) == len(PRELOADED)
    found = subprocess.run(
        [sys.executable, "-c", _SAYS], capture_output=True, text=True, check=True, timeout=WAIT_S
    )
    assert found.stdout.split() == ["1", "True", "0"], found.stderr
