"""The memory of a process counts what it has started, and a process that is gone is no error."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from geartrain_cloud.control.machine import ProcessMeter, processor_seconds
from tests.waiting import Wait

CODE = """
import subprocess, sys
inner = subprocess.Popen([sys.executable, "-c", "held = b'x' * (64 << 20); print('up', flush=True); input()"],
                         stdin=subprocess.PIPE)
sys.stdin.read()
inner.kill()
"""


def test_a_process_is_measured_with_those_that_it_has_started() -> None:
    command = [sys.executable, "-c", CODE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"up\n"
        meter = ProcessMeter()
        rss, share = meter.of([one.pid, os.getppid()])[one.pid]
        family = [psutil.Process(one.pid), *psutil.Process(one.pid).children(recursive=True)]
        assert len(family) == 2
        known = sum(each.memory_info().rss for each in family)
        assert rss is not None
        assert abs(rss - known) < 8 << 20
        assert rss > 64 << 20
        assert share is None
        assert meter.of([one.pid])[one.pid][1] is not None
        assert one.stdin is not None
        one.stdin.close()
    wait = Wait("a killed process to leave")
    while meter.of([one.pid])[one.pid] != (None, None):  # what it has killed is still leaving
        wait.check()


BUSY = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "while __import__('time').process_time() < 0.6: pass"])
print("up", flush=True)
sys.stdin.read()
"""


def test_what_an_ended_process_has_used_counts_for_the_one_that_started_it() -> None:
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"up\n"
        used = processor_seconds([one.pid])
        times = psutil.Process(one.pid).cpu_times()
        assert used.keys() == {one.pid}
        assert used[one.pid] >= 0.5
        assert abs(used[one.pid] - sum(times[:4])) < 0.2
        assert one.stdin is not None
        one.stdin.close()
    assert processor_seconds([one.pid]) == {}
