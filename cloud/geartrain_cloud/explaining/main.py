"""`python -m geartrain_cloud.explaining.main`: one explanation, or one page of records, by a short-lived
process.

Between REST and the tracer; it alone imports the app's code. It reads a question as JSON on stdin and
writes `{"answer"}` or `{"refused"}` to stdout. Guarantees: the answer is bounded, a refusal one sentence.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from geartrain.errors import GeartrainError
from geartrain_cloud.explaining.question import (
    ANSWER_BYTES_MAX,
    QUESTION_BYTES_MAX,
    Question,
    RecordsQuestion,
)

if TYPE_CHECKING:
    from geartrain.planning import Plan

Asked = Question | RecordsQuestion


def main() -> int:
    """Answer the question on stdin; the exit code is 0 where there is an answer, a refusal too."""
    out = os.dup(1)
    os.dup2(2, 1)  # a user's module may print
    try:
        said = _answer(msgspec.json.decode(sys.stdin.buffer.read(QUESTION_BYTES_MAX), type=Asked))
    except GeartrainError as error:
        said = msgspec.json.encode({"refused": " ".join(str(error).split())})
    with os.fdopen(out, "wb") as file:
        file.write(said)
    return 0


def _answer(question: Question | RecordsQuestion) -> bytes:
    """The answer as JSON; raises `GeartrainError`. What a page does without is not imported for one: that
    takes longer than most pages.
    """
    if isinstance(question, RecordsQuestion):
        from geartrain_cloud.explaining.records import page_of

        return msgspec.json.encode({"answer": page_of(question)})
    from geartrain_cloud.explaining.answer import explain

    return _bounded(explain(question, _plan(question)))


def _plan(question: Question) -> Plan:
    from geartrain.flow.loading import load_flow
    from geartrain.graph.without import without
    from geartrain.planning.mixed import make_mixed_plan
    from geartrain_cloud.bundles.importing import import_from

    import_from(question.bundle)
    graph = without(load_flow(question.flow).graph(), question.without).with_options(question.options)
    return make_mixed_plan(graph, question.cut, question.cuts)


def _bounded(answer: dict[str, Any]) -> bytes:
    """The answer as JSON, with fewer records shown where it would be too large."""
    while len(said := msgspec.json.encode({"answer": answer})) > ANSWER_BYTES_MAX:
        shown = answer["records"]["shown"]
        if not shown:
            return msgspec.json.encode({"refused": "the row is too large to be shown"})
        answer["records"]["shown"] = shown[len(shown) // 2 + 1 :]
    return said


if __name__ == "__main__":
    sys.exit(main())
