"""Chooses what is measured: `GEARTRAIN_BENCH_WORK` names one work, by a word of its file's name. Works on
Spark share one session.
"""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the works that were not asked for; a name that no work has is an error that lists them."""
    wanted = os.environ.get("GEARTRAIN_BENCH_WORK", "").lower()
    if not wanted:
        return
    kept = [item for item in items if wanted in _words(item)]
    if not kept:
        known = sorted({word for item in items for word in _words(item)})
        raise pytest.UsageError(f"WORK={wanted}: no work is called so; write one of {', '.join(known)}")
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _words(item: pytest.Item) -> set[str]:
    return set(item.path.stem.removeprefix("test_bench_").lower().split("_"))
