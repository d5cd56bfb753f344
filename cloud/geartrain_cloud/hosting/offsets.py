"""The keys of a hosting query's offsets: where each generation of a flow stands, and under which plan.

Between the source of the query, which makes the offsets, and the writer, which reads them in Spark's offset
log. Guarantees: Spark writes them before it runs a micro-batch. So a micro-batch that is run again has the
same positions, the same version of the plan, and the same number in each flow's own count.

A flow comes into a query as a generation, `traffic.3~1`. When it comes back after it was out, it is the next
one. A second run over its log, beside the first, is `traffic.3~2.1`. `traffic.3~1/0` is the position of
`traffic.3~1` in partition 0. `!n:traffic.3~1` counts the micro-batches in which it has moved: its tables know
that count, not Spark's.
"""

from __future__ import annotations

from collections.abc import Mapping

PLAN = "!plan"
"""The version of the plan under which a micro-batch runs."""

QUESTIONS = "!questions"
"""Up to which number a micro-batch has answered questions; not there before the first one. A question is no
part of the log: this key is what starts a micro-batch where nothing else is new.
"""

EMPTIED = "!emptied"
"""The stream of a row which says that the flow of a slot has left: its state goes."""

DROPPED = "!dropped"
"""The stream of a row which says that steps of a slot lose their state: those that its generation names."""

DRAINED = "!drained"
"""The stream of a row which has steps of a slot put out what they hold: those that its generation names."""

LEAVING = "!leaving"
"""The stream of a row which has a slot write what it keeps: its keys are dealt to other slots."""

COMING = "!coming"
"""The stream of a row which has a slot take what former slots have written of its keys."""

TAKEN = "!taken"
"""The stream of a row which has a slot take into its state what steps have kept beside it, which have read
the log of before: those that its generation names.
"""

ASKED = "!asked"
"""The stream of a row that brings a question to a slot."""

ANSWER = "!answer"
"""The stream of a row that brings an answer to the end of the micro-batch."""

TALLY = "!tally"
"""The stream of a row that tells the end of the micro-batch over which slots and keys rows were dealt."""

_COUNT = "!n:"


def generation_name(flow: str, generation: int, run: int = 1) -> str:
    """How a generation of a flow's run is called."""
    return f"{flow}~{generation}" if run == 1 else f"{flow}~{run}.{generation}"


def asked_name(flow: str, run: int) -> str:
    """Under which questions to a flow's run come into a micro-batch, whatever generation it runs there."""
    return f"{flow}~{run}"


def position_name(name: str, key: str) -> str:
    """The key of a position: `key` of the log, as generation `name` reads it."""
    return f"{name}/{key}"


def count_name(name: str) -> str:
    """The key of a generation's own count of micro-batches."""
    return f"{_COUNT}{name}"


def positions_by_name(offsets: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The positions of each generation, by key of the log."""
    found: dict[str, dict[str, int]] = {}
    for name, position in offsets.items():
        if not name.startswith("!"):
            generation, _, key = name.partition("/")
            found.setdefault(generation, {})[key] = position
    return found
