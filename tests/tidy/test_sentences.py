"""Sentences that a user reads are short, in all that `CLEANED` in tests/tidy/sentences.py lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy import sentences
from tests.tidy.sentences import CLEANED, WORDS_MAX, cleaned_files, long_sentences, offences
from tests.tidy.source import ROOT


def words(count: int) -> str:
    return " ".join(["word"] * count)


def test_no_sentence_is_too_long_where_they_were_shortened() -> None:
    assert [offence for path in cleaned_files() for offence in offences(path)] == []


def test_what_is_listed_is_there_once() -> None:
    assert sorted(set(CLEANED)) == sorted(CLEANED)
    assert [name for name in CLEANED if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "text",
    [
        f"{words(31)}.",
        f"Short. {words(16)}\n{words(15)}: {words(5)}.",
        f"- {words(20)}\n  {words(11)}",
        f"| short | {words(31)} |",
        f"Args:\n    name: {words(31)}.",
        f"{words(29)} [a link](somewhere) more.",
        f"{words(30)} `some code`.",
    ],
)
def test_a_long_sentence_is_found(text: str) -> None:
    assert len(long_sentences(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"{words(WORDS_MAX)}.",
        f"{words(20)}. {words(20)}? {words(20)}",
        f"{words(20)}\n\n{words(20)}",
        f"- {words(20)}\n- {words(20)}\n1. {words(20)}",
        f"| {words(20)} | {words(20)} |\n| {words(20)} |",
        f"```\n{words(50)}\n```",
        f"{words(20)}\n\n>>> {words(40)}\n>>> 1",
        f"Args:\n    one: {words(20)}\n    two: {words(20)}\n\nReturns:\n    {words(20)}",
        f"{words(25)} `{words(40)}`.",
        f"name: {words(20)}; other, third: {words(20)}; last: {words(20)}.",
    ],
)
def test_short_sentences_are_left_alone(text: str) -> None:
    assert long_sentences(text) == []


def test_only_docstrings_of_what_is_public_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = words(31)
    text = f'"""{long}"""\n'
    code = f"{text}def _own():\n    {text}class Known:\n    def verb(self):\n        {text}"
    (tmp_path / "module.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(sentences, "ROOT", tmp_path)
    assert [offence.split()[0] for offence in offences(Path("module.py"))] == ["module.py:1", "module.py:5"]
