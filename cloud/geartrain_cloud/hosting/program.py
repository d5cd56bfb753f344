"""Which program pickles a query: a pickle is for the program that made it, and for no other.

Between the process that prepares a flow, which notes it, and the host, which opens no pickle of another one.
Guarantees: it is the same in each process of one installation. It changes with any file of Geartrain, and
with the versions of Python and Spark.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path

import pyspark

from geartrain_cloud.hosting.code import hash_of

_PACKAGES = ("geartrain", "geartrain_cloud", "geartrain_devices")
"""Of which pickled queries have objects; the last one need not be installed."""


@cache
def program() -> str:
    """A hash that stands for the program of this process, as its files were when it was first asked."""
    total = sha256(f"{sys.version_info[:2]} {pyspark.__version__}".encode())
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            total.update(hash_of(name, [Path(one) for one in spec.submodule_search_locations]).encode())
    return total.hexdigest()
