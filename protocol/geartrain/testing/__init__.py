"""The public test kit: run a flow in a test, crash and resume it, with no broker, no Spark, no files.

>>> from geartrain import Flow
>>> from geartrain.testing import TestingSink, TestingSource, run_flow
>>> def double(n: int) -> int:
...     return 2 * n
>>> out = TestingSink("doubled")
>>> flow = Flow("double")
>>> flow.source("numbers", TestingSource(items=[(1, 10), (2, 20)]), out=int).map(double).sink("out", out)
>>> run_flow(flow).tables["out"]
[(1, 20), (2, 40)]
"""

from geartrain.testing.clock import FakeClock, SeededRandomness
from geartrain.testing.run import Results, Saved, run_flow
from geartrain.testing.sink import TestingSink
from geartrain.testing.source import ABORT, EOF, RunAbortedError, TestingSource

__all__ = [
    "ABORT",
    "EOF",
    "FakeClock",
    "Results",
    "RunAbortedError",
    "Saved",
    "SeededRandomness",
    "TestingSink",
    "TestingSource",
    "run_flow",
]
