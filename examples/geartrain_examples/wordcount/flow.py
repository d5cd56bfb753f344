"""Word count: lines of text, their words, how often each was seen, to a table.

gear run geartrain_examples.wordcount.flow:flow --set lines.records=1000 --output build/words
"""

import random
from collections.abc import Iterator

from geartrain import Flow, Record, Table, agg
from geartrain_devices.simulated import SimulatedSensor

WORDS = ["gear", "train", "wheel", "edge", "cloud", "spark", "sensor", "record", "spool", "clock"]


class Line(Record):
    """A line of text."""

    text: str


class Word(Record):
    """One word of a line."""

    word: str


class WordCount(Record):
    """How often a word was seen so far."""

    word: str
    seen: int


class Lines(SimulatedSensor[Line]):
    """Lines of a few words, the first words more often."""

    def make(self, random: random.Random, number: int, device: str) -> Line:
        """Up to eight words."""
        size = random.randint(1, 8)
        return Line(" ".join(random.choices(WORDS, range(len(WORDS), 0, -1), k=size)))


def words(line: Line) -> Iterator[Word]:
    """The words of a line."""
    return map(Word, line.text.split())


flow = Flow("wordcount")

lines = flow.source("lines", Lines(records=10_000), out=Line)
counts = lines.flat_map(words).key_by("word").aggregate("counts", out=WordCount, seen=agg.count())
counts.sink("table", Table("words", key=("word",)))
