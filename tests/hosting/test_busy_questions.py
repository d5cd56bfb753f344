"""Questions to a busy app: the micro-batch that brings one reads nothing of the log, so that it is short."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain_cloud.hosting.offsets import PLAN, QUESTIONS, asked_name, position_name
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.questions import BatchFolder, Question
from geartrain_cloud.hosting.source import HostReader, HostSpan
from geartrain_cloud.hosting.versions import FIRST, Hosted, Version, Versions
from tests.hosting.mill_log import MillLog

GROUP, APP = "shared", "stone.1"
HOSTED = Hosted(
    APP, 1, "plan", "asked", {}, 1, (0,), 1, ("0",), ("readings",), ("readings",), "identity", rows_max=50
)


class Busy:
    """An app whose log is far ahead of its micro-batches."""

    def __init__(self, folder: Path) -> None:
        MillLog(folder / "log", APP, 0).append(1_000)
        self.places = HostPlaces(folder / "host").group(GROUP)
        self.places.versions.mkdir(parents=True)
        self.versions = Versions(self.places.versions)
        self.versions.publish(Version(FIRST))
        where = {"log": folder / "log", "host": folder / "host", "group": GROUP, "readers": 1}
        self.reader = HostReader(where)
        self.at = self.reader.initialOffset()
        self.versions.publish(Version(FIRST + 1, 1, {HOSTED.name: HOSTED}))

    def ask(self, number: int) -> None:
        question = Question(f"q{number}", APP, "adding", "s1")
        BatchFolder(self.places.questions).put(number, {asked_name(APP, 1): [question]})

    def micro_batch(self) -> tuple[int, list[str]]:
        """How many entries of the log it reads, and what it answers."""
        start, self.at = self.at, self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        place = position_name(HOSTED.name, "0")
        spans = [one for one in self.reader.partitions(start, self.at) if isinstance(one, HostSpan)]
        answers = [asked.question.id for one in spans for asked in one.asked.get(HOSTED.name, ())]
        return self.at[place] - start.get(place, 0), answers


@pytest.fixture
def busy(tmp_path: Path) -> Busy:
    return Busy(tmp_path)


def test_a_question_is_answered_by_a_micro_batch_that_reads_nothing(busy: Busy) -> None:
    assert busy.micro_batch() == (1, [])
    busy.ask(7)
    busy.ask(8)
    assert busy.micro_batch() == (0, ["q7", "q8"])
    assert busy.at[QUESTIONS] == 8
    assert busy.micro_batch() == (1, [])


def test_who_asks_without_end_takes_every_second_micro_batch_at_the_most(busy: Busy) -> None:
    assert busy.micro_batch() == (1, [])
    read = []
    for number in range(6):
        busy.ask(number + 1)
        entries, answers = busy.micro_batch()
        assert answers == [f"q{number + 1}"], "each in the next micro-batch all the same"
        read.append(entries)
    assert read == [0, 1, 0, 1, 0, 1]


def test_a_flow_that_comes_is_not_kept_waiting_by_a_question(busy: Busy) -> None:
    busy.ask(1)
    assert busy.at[PLAN] == FIRST
    entries, _ = busy.micro_batch()
    assert (busy.at[PLAN], entries) == (FIRST + 1, 1)
