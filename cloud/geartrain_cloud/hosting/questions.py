"""Questions for the state of a key, and their answers, as small files between control and the Spark host.

Beside the record's path: control asks, the host has a micro-batch answer, control reads. Guarantees: every
file is private and appears in one step. Of several answers to a question the first stays. What nobody takes
away is removed once it has expired.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.files import make_private_folder, whole_files, write_private
from geartrain.control.questions import KEYS_MAX

OPEN_MAX = 1_000
"""Questions of all flows that may wait at a time."""
EXPIRES_S = 60.0
"""So long a question waits for a micro-batch, and its answer for who asked, at the most."""

_ENCODE = msgspec.json.Encoder().encode


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """id: its own; flow: the instance; step: whose state; key: as a person wrote it, None to be told some of
    the keys.
    """

    id: str
    flow: str
    step: str
    key: str | None = None


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a key at the end of a micro-batch.

    id: of the question; positions: where the micro-batch ends, by partition of the log; clocks: of the flow's
    sources there, and clock_us that of the step, microseconds; run: which pass over its log; key: as JSON has
    it; found: whether the step keeps anything of it; told: the fields of `geartrain.state.told.Told`; keys:
    some of the step's, where none was asked for; refused: the sentence where there is no answer.
    """

    id: str
    positions: dict[str, int] = {}
    clocks: dict[str, int] = {}
    clock_us: int | None = None
    run: int = 1
    key: Any = None
    found: bool = False
    told: dict[str, Any] = {}
    keys: list[Any] = []
    refused: str = ""


class QuestionFolder:
    """The folder that control and the host share."""

    def __init__(self, folder: Path) -> None:
        self._asked, self._answers = folder / "asked", folder / "answers"

    def ask(self, question: Question) -> None:
        """Ask; raises `OSError`."""
        write_private(self._asked / question.id, _ENCODE(question))

    def count(self) -> int:
        """How many wait."""
        return len(_names(self._asked))

    def asked(self) -> set[str]:
        """The ids of those that wait."""
        return set(_names(self._asked))

    def read(self, name: str) -> Question | None:
        """A question that waits; None for one that is gone or cannot be read, which nobody can answer."""
        try:
            found = msgspec.json.decode((self._asked / name).read_bytes(), type=Question)
        except (OSError, msgspec.DecodeError):
            return None
        return found if found.id == name else None

    def answer(self, answer: Answer) -> None:
        """Answer a question that waits, unless it was answered before; raises `OSError`."""
        if not (self._asked / answer.id).exists():
            return
        make_private_folder(self._answers)
        draft = self._answers / f".{answer.id}.{os.urandom(6).hex()}"
        write_private(draft, _ENCODE(answer))
        with suppress(FileExistsError):
            os.link(draft, self._answers / answer.id)
        draft.unlink(missing_ok=True)

    def answered(self, name: str) -> Answer | None:
        """The answer to a question, None where there is none yet."""
        try:
            return msgspec.json.decode((self._answers / name).read_bytes(), type=Answer)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            return Answer(name, refused=f"the answer cannot be read: {error}")

    def forget(self, name: str) -> None:
        """Remove a question and its answer."""
        for folder in (self._asked, self._answers):
            with suppress(OSError):
                (folder / name).unlink(missing_ok=True)

    def sweep(self, now_s: float | None = None) -> None:
        """Remove what has expired; now_s: seconds since 1970, None for now."""
        oldest = (time.time() if now_s is None else now_s) - EXPIRES_S
        for folder in (self._asked, self._answers):
            for path in folder.iterdir() if folder.is_dir() else ():
                with suppress(OSError):
                    if path.stat().st_mtime < oldest:
                        path.unlink()


class BatchFolder:
    """The questions of one group that its next micro-batch answers, a file of a number each.

    A micro-batch names in its offsets up to which number it answers. Questions are no part of what it
    computes: where a file is gone, it answers nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, number: int, questions: Mapping[str, list[Question]]) -> None:
        """Have the next micro-batch answer; questions: by what `asked_name` says. Raises `OSError`."""
        write_private(self._folder / str(number), _ENCODE(questions))

    def newest(self, after: int) -> int:
        """The highest number, `after` where there is none behind it."""
        return max([after, *self._numbers()])

    def between(self, after: int, upto: int) -> dict[str, list[Question]]:
        """What a micro-batch answers, by the same."""
        found: dict[str, list[Question]] = {}
        for number in sorted(self._numbers()) if upto > after else ():
            if after < number <= upto:
                with suppress(OSError, msgspec.DecodeError):
                    raw = (self._folder / str(number)).read_bytes()
                    for name, several in msgspec.json.decode(raw, type=dict[str, list[Question]]).items():
                        found.setdefault(name, []).extend(several)
        return found

    def forget(self, upto: int) -> None:
        """Remove those up to a number, which were answered or expired."""
        for number in self._numbers():
            if number <= upto:
                with suppress(OSError):
                    (self._folder / str(number)).unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        return [int(name) for name in _names(self._folder) if name.isascii() and name.isdecimal()]


def _names(folder: Path) -> list[str]:
    """Those of whole files, at most `OPEN_MAX`."""
    return [path.name for path in whole_files(folder)[:OPEN_MAX]]


def merged(answers: Iterable[Answer]) -> list[Answer]:
    """One answer to each question, of those that several shards gave in one micro-batch."""
    best: dict[str, Answer] = {}
    for one in answers:
        before = best.get(one.id)
        if before is None:
            best[one.id] = one
        elif one.keys or before.keys:
            keys = [*before.keys, *one.keys][:KEYS_MAX]
            best[one.id] = msgspec.structs.replace(before, keys=keys, found=True)
        elif (one.found or one.refused) and not before.found:  # whoever has the key, even if it cannot say
            best[one.id] = one
    return list(best.values())
