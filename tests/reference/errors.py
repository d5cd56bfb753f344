"""The words of Python's own errors, which differ from version to version."""

from __future__ import annotations

from collections.abc import Callable


def reason_of(calculate: Callable[[], object]) -> str:
    """The reason of a dead letter whose function does this, which has to raise."""
    try:
        found = calculate()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"it gives {found!r} and does not raise")


FLOAT_DIVIDED = reason_of(lambda: 1.0 / 0.0)
INTEGER_DIVIDED = reason_of(lambda: 1 // 0)
