"""The last answer of an address that is asked again and again: how it is known again, also after a restart.

Below `geartrain_devices.http_poll`. Guarantees: an answer is on the disk before a record of it is given out,
with the numbers of its records. So the position of a restart says how many of them the agent has, and no
server is asked whether an answer has changed that is not there whole. The file is locked, so that two
processes never share it.
"""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import msgspec

from geartrain.adapters.file_lock import take_lock
from geartrain.adapters.files import write_durable
from geartrain.errors import SourceError

_VALIDATOR_CHARS_MAX = 1_000


class Answered(msgspec.Struct, frozen=True):
    """An answer: its digest, how many of its records were given, and by what its server knows it again:
    ETag, else Last-Modified.
    """

    digest: str = ""
    records: int = 0
    etag: str = ""
    modified: str = ""

    @property
    def conditions(self) -> dict[str, str]:
        """The headers by which a server answers only what is new."""
        if self.etag:
            return {"If-None-Match": self.etag}
        return {"If-Modified-Since": self.modified} if self.modified else {}


NOTHING = Answered()


def answered(body: bytes, etag: str, modified: str, date: str, records: int) -> Answered:
    """An answer with all its records.

    Args:
        body: its bytes.
        etag: its header ETag, "" for none.
        modified: its header Last-Modified, "" for none.
        date: its header Date, "" for none.
        records: how many it has.

    Returns:
        The answer. A Last-Modified of the second in which the answer was made is left out: another change may
        come in that second.
    """
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    is_old = _is_before(modified, date)
    return Answered(digest, records, _header(etag), _header(modified) if is_old else "")


def _header(value: str) -> str:
    fits = len(value) <= _VALIDATOR_CHARS_MAX and value.isascii() and value.isprintable()
    return value if fits else ""


def _is_before(modified: str, date: str) -> bool:
    try:
        return parsedate_to_datetime(date) - parsedate_to_datetime(modified) >= timedelta(seconds=1)
    except (ValueError, TypeError, OverflowError):  # one is no date, or one has no zone
        return False


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """begin, end: the numbers of its first record, and behind its last."""

    split: str
    answer: Answered
    begin: int
    end: int
    version: int = 1


class HttpPlace:
    """The last answer of one split, kept in a file of the folder `keep`."""

    def __init__(self, where: str, split: str, url: str, keep: Path) -> None:
        """where: how sentences begin. Raises `SourceError` where the folder cannot be used, or is in use."""
        name = hashlib.blake2b(f"{split}\n{url}".encode(), digest_size=8).hexdigest()
        self._where, self._split, self._path = where, split, keep / f"{name}.json"
        self._lock = take_lock(
            keep / f"{name}.lock",
            SourceError,
            unusable=f"{where}: keep = {str(keep)!r} cannot be used",
            taken=f"{where}: another process asks as {split} and keeps its place in {keep}: end it, or set "
            "another folder as keep",
        )
        try:
            self._kept = self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> _Kept | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise SourceError(
                f"{self._where}: {self._path}, which says what was answered last, cannot be read ({error}): "
                "remove it, and the next answer counts as new"
            ) from None

    def at(self, position: int) -> Answered:
        """The last answer as an agent has it that stands at `position`."""
        kept = self._kept
        if kept is None or position < kept.begin:
            return NOTHING
        if position >= kept.end:
            return kept.answer
        return Answered(kept.answer.digest, position - kept.begin)

    def keep(self, answer: Answered, end: int) -> None:
        """Make this the last answer, durably. end: the number behind its last record. Raises
        `SourceError`.
        """
        kept = _Kept(self._split, answer, end - answer.records, end)
        if kept == self._kept:
            return
        try:
            write_durable(self._path, msgspec.json.encode(kept))
        except OSError as error:
            raise SourceError(f"{self._where}: {self._path} cannot be written: {error.strerror}") from None
        self._kept = kept

    def close(self) -> None:
        """Let others have the folder."""
        os.close(self._lock)
