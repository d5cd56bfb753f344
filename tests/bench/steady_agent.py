"""`python -m tests.bench.steady_agent RECORDS FOLDER`: the agent on work A, with its memory on the way.

A process of its own, because memory is that of a process. Lines are made as they are read, batches are acked
by a broker in memory, and one JSON line tells the resident megabytes at every tenth of the way.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geartrain.records.event_time import SECOND_US
from tests.bench.at_the_edge import run_agent
from tests.bench.test_bench_a_windows import KEYS, START_US, parsed, plan_over


def main() -> None:
    """Run, and print {"mb": [ten figures], "peak_mb": …, "cpu_s": …, "means": …}."""
    count, folder = int(sys.argv[1]), Path(sys.argv[2])
    found: list[float] = []

    def made(numbers: Sequence[int]) -> tuple[list[int], list[Any]]:
        while numbers and len(found) < 10 and numbers[-1] >= count * (len(found) + 1) // 10 - 1:
            found.append(_memory_mb("VmRSS"))
        return parsed([_line(number) for number in numbers])

    done = run_agent(plan_over(range(count), made), folder, acks=True)
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {"mb": found, "peak_mb": _memory_mb("VmHWM"), "cpu_s": used.ru_utime + used.ru_stime}
    print(json.dumps(told | {"means": done.counters["rows.means"]}))


def _line(number: int) -> bytes:
    time_us = START_US + number // KEYS * SECOND_US
    return b'{"sensor":"sensor-%03d","time":%d,"celsius":%s}' % (
        number % KEYS,
        time_us,
        str(number * 7 % 80 / 4).encode(),
    )


def _memory_mb(figure: str) -> float:
    """What the system says; the peak of `getrusage` would be that of the process which started this one."""
    with Path("/proc/self/status").open(encoding="ascii") as status:
        return int(next(line for line in status if line.startswith(figure)).split()[1]) / 1_024


if __name__ == "__main__":
    main()
