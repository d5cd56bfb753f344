"""Pickled queries, each in a file named by its hash, made by a process that ends and opened by Spark's
workers.

Between `prepare`, which alone imports a user's module to plan a flow, and the workers, which run it.
Guarantees: a file is opened only if this user alone may write it and its bytes have the hash that the version
of the plan names. Pickles never leave this machine.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from pathlib import Path
from typing import cast

from pyspark.serializers import CloudPickleSerializer

from geartrain.adapters.files import write_durable
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.spark.compile import Query

HASH_CHARACTERS = 64


def put_plan(folder: Path, query: Query) -> str:
    """Keep a query durably; its hash. Raises `OSError`, and Spark's error for what cannot be pickled."""
    raw: bytes = CloudPickleSerializer().dumps(query)  # type: ignore[no-untyped-call]
    name = sha256(raw).hexdigest()
    path = _path(folder, name)
    if not path.exists():
        write_durable(path, raw)
    return name


def open_plan(folder: Path, name: str) -> Query:
    """The query of that hash; raises `HostError` where the file is not to be trusted."""
    path = _path(folder, name)
    try:
        found = path.stat()
        raw = path.read_bytes()
    except OSError as error:
        raise HostError(f"the plan {path} cannot be read ({error.strerror or error})") from None
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise HostError(f"the plan {path} may be written or read by others: give it mode 0600 or remove it")
    if sha256(raw).hexdigest() != name:
        raise HostError(f"the plan {path} is damaged: its content has another hash than its name says")
    return cast(Query, CloudPickleSerializer().loads(raw))  # type: ignore[no-untyped-call]


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.plan"
