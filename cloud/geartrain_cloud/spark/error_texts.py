"""What Spark says of a query that stands or has failed: the one reader of its sentences.

Spark's errors come through py4j as text. Beside everything that runs a query. Guarantees: a text of another
form is no special case, and its first line is told.
"""

from __future__ import annotations

_STATE_LOST = "[CANNOT_LOAD_STATE_STORE"
_NOTHING_NEW = "Waiting for data to arrive"
_TRACEBACK = "Traceback (most recent"


def is_spark_error(error: BaseException) -> bool:
    """Whether an error came through Spark, with a trace for a text."""
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def has_lost_state(trace: str) -> bool:
    """Whether Spark cannot read what a query keeps."""
    return _STATE_LOST in trace


def waits_for_data(status: str) -> bool:
    """Whether a query has found nothing to do, by the message of its status."""
    return status == _NOTHING_NEW


def root_cause(trace: str) -> str:
    """The sentence at the heart of a trace of Spark: that of the first Python traceback in it, else that of
    Java's last cause.
    """
    lines = trace.splitlines()
    inside = False
    for line in lines:
        if line.lstrip().startswith(_TRACEBACK):
            inside = True
        elif inside and line and not line.startswith((" ", "\t")):
            kind, _, words = line.partition(": ")
            return words.strip() if kind.startswith("geartrain") and words else line.strip()
    causes = [line.strip() for line in lines if line.startswith("Caused by: ")]
    if causes:
        return causes[-1].removeprefix("Caused by: ")
    return next((line.strip() for line in lines if line.strip()), "Spark gave no reason")
