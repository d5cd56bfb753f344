"""Questions to flows that run on Spark; answers are compared with what plain Python makes of the log, up to
the positions that they name.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.hosting import questions
from geartrain_cloud.hosting.offsets import QUESTIONS
from geartrain_cloud.hosting.questions import Answer, Question, QuestionFolder
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.tables import rows
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.mill_log import FACTORS, LETTER, MillLog
from tests.hosting.test_hosting import lose_the_last_commit


class Asker:
    """Asks as control does."""

    def __init__(self, hosting: Hosting, log: Path) -> None:
        self.hosting, self.log = hosting, LogReader(log)
        self.folder = QuestionFolder(hosting.wanted.state / "questions")

    def ask(self, flow: str, step: str, key: str | None) -> str:
        name = secrets.token_hex(8)
        self.folder.ask(Question(name, flow, step, key))
        return name

    def answers(self, *names: str) -> list[Answer]:
        self.hosting.until(lambda: all(self.folder.answered(name) is not None for name in names))
        return [self.answer(name) for name in names]

    def answer(self, name: str) -> Answer:
        found = self.folder.answered(name)
        assert found is not None
        return found

    def rows_before(self, flow: str, answer: Answer) -> int:
        """Readings of the log before the positions of an answer."""
        return sum(
            self.log.counts(flow, key, 0, upto).get("readings", 0) for key, upto in answer.positions.items()
        )


def state_of(log: MillLog, sensor: str, upto: int) -> dict[str, float] | None:
    """What the step `adding` keeps of a sensor after so many readings, by plain Python."""
    count, total = 0, 0.0
    for reading, *_ in log.records[:upto]:
        if reading.sensor == sensor and log.number % 3 < reading.value < LETTER:
            count, total = count + 1, total * FACTORS[log.number % len(FACTORS)] + reading.value
    return {"count": count, "total": total} if count else None


@pytest.mark.proof
def test_the_state_of_a_key_is_told_while_the_flow_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "EXPIRES_S", 3_600.0)  # a host may be slow to start again
    wanted = Wanted(tmp_path, monkeypatch)
    first, second = wanted.add("stone.1", 0), wanted.add("wheel.1", 1)
    first.append(300)
    second.append(120)
    wanted.write()
    hosting = Hosting(spark, wanted)
    asker = Asker(hosting, wanted.log)
    try:
        hosting.through("stone.1", "wheel.1")
        before = hosting.host.groups.shared.writer.last.offsets
        # Idle flows: a question alone starts a micro-batch, several share one, and nothing moves.
        names = [asker.ask("stone.1", "adding", f"s{number}") for number in range(5)]
        sensor = second.expected()[0][0]
        other = asker.ask("wheel.1", "adding", sensor)
        unknown, wrong = asker.ask("stone.1", "adding", "nobody"), asker.ask("stone.1", "ading", "s1")
        plain, some = asker.ask("stone.1", "above", "s1"), asker.ask("stone.1", "adding", None)
        found = asker.answers(*names, other, unknown, wrong, plain, some)
        after = hosting.host.groups.shared.writer.last.offsets
        assert {k: v for k, v in after.items() if k != QUESTIONS} == {
            k: v for k, v in before.items() if k != QUESTIONS
        }
        for number, one in enumerate(found[:5]):
            assert one.positions == LogReader(wanted.log).positions("stone.1")
            assert (one.key, one.found, one.refused) == (f"s{number}", True, "")
            assert one.told["state"] == state_of(first, f"s{number}", 300)
            assert one.clock_us == first.records[-1][1]
        assert found[5].told["state"] == state_of(second, sensor, 120)
        assert (found[6].found, found[6].key, found[6].refused) == (False, "nobody", "")
        assert found[7].refused == "there is no step 'ading'; those with a state: adding"
        assert found[8].refused == "step 'above' keeps no state of a key: ask a step that does"
        assert len(found[9].keys) == 20
        assert set(found[9].keys) < {f"s{number}" for number in range(40)}
        # While rows come, an answer is the state at the positions that it names.
        for _ in range(3):
            first.append(130)
            [one] = asker.answers(asker.ask("stone.1", "adding", "s3"))
            assert one.told["state"] == state_of(first, "s3", asker.rows_before("stone.1", one))
        hosting.through("stone.1", "wheel.1")
        # A micro-batch that is run again answers once: the first answer stays.
        [one] = asker.answers(last := asker.ask("stone.1", "adding", "s4"))
        hosting.close()
        lose_the_last_commit(wanted.state)
        hosting = asker.hosting = Hosting(spark, wanted)
        first.append(60)
        hosting.through("stone.1", "wheel.1")
        assert asker.answer(last) == one
        first.assert_tables(wanted.tables("stone.1"))
        second.assert_tables(wanted.tables("wheel.1"))
        assert len(rows(wanted.tables("stone.1"), "each_sum")) == len(first.expected())
    finally:
        hosting.close()
        wanted.close()
