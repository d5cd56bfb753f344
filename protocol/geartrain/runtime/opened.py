"""Sources at work: they are opened here, and what they and their splits give is checked.

Stands between a source, which may be a user's own, and whoever reads it. Guarantees: whatever a source
raises or returns against its contract is one `SourceError` that names the source, the split and the call. The
numbers of a split never repeat while it is read on, so that no two records have one origin.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Mapping, Sequence
from itertools import islice
from operator import lt
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from geartrain.concurrency.client_id import client_id
from geartrain.declarations.source import Batch, Reject, Source, Split
from geartrain.errors import GeartrainError, SourceError
from geartrain.graph.conform import describe, raw_form
from geartrain.graph.graph import Graph, Step
from geartrain.operators.source import SourceOperator
from geartrain.records.codes import CODE
from geartrain.records.event_time import EARLIEST_TIME, END_OF_TIME
from geartrain.runtime.secrets import refuse_secrets
from geartrain.schema.codec import short_form
from geartrain.schema.storable import INT64_MAX, as_numbers, is_unicode

_LOG = logging.getLogger("geartrain.source")

OUT_OF_ORDERNESS_US_MAX = 1 << 61
"""The largest bound of a split, about 73,000 years."""
NOTE_BYTES_MAX, NOTE_KEY_BYTES_MAX = 4_096, 256
_COUNT = re.compile(r"[a-z][a-z0-9_]{0,63}")


class OpenedSplit(msgspec.Struct, frozen=True):
    """A split of the source step `step`, as its source opened it."""

    step: str
    source: Source[Any]
    split: CheckedSplit


def open_sources(graph: Graph, device: str, shared: Path | None = None, life: str = "") -> list[OpenedSplit]:
    """The splits of all sources of `graph` that `device` holds, in the order of the steps. Of a source that
    is not enabled there it holds none. shared: the folder by which apps of the device share what can be
    opened only once, None where there is one app. life: tells this run of the flow on this device from every
    other, for the ids of splits that are clients. Where it is empty, each such split makes an id of its own.

    Raises `SourceError` for a source that cannot be opened, asks for a secret that nobody has put
    in, or gives what is no split.
    """
    opened: list[OpenedSplit] = []
    for step in graph.sources():
        if isinstance(step.operator, SourceOperator) and step.operator.enabled:
            refuse_secrets(step)
            source = step.operator.source
            splits = _open(step, source, device)
            if shared is not None and source.exclusive:
                for split in splits:
                    split.share(shared, graph.name)
            if life:
                for split in splits:
                    split.name_client(client_id("source", life, device, graph.name, step.id, split.name))
            opened += [OpenedSplit(step.id, source, split) for split in splits]
    names = [(one.step, one.split.name) for one in opened]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        where, name = doubled
        raise SourceError(
            f"source {where}: two splits are named {name!r}: give each split of a source a name of its own "
            "in the fleet"
        )
    return opened


def _open(step: Step, source: Source[Any], device: str) -> list[CheckedSplit]:
    where = f"source {step.id}"
    try:
        found: Any = source.open(device, step.id, step.out)
    except GeartrainError:
        raise
    except (Exception, SystemExit) as error:
        raise SourceError(f"{where}: open raised {described(error)}: mend {type(source).__name__}") from error
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise SourceError(
            f"{where}: open returned {short_form(found)}, but it must return a list of splits: "
            f"mend {type(source).__name__}"
        )
    return [CheckedSplit(where, split) for split in found]


class CheckedSplit:
    """A split whose reads are checked; it is a `Split` itself."""

    def __init__(self, source: str, split: Split) -> None:
        """source: how sentences call it, `source quotes`. Raises `SourceError` for what is no split."""
        self._split, self._at, self._last = split, -1, -1
        for lacking in ("name", "out_of_orderness_us", "read", "close"):
            if not hasattr(split, lacking):
                what = short_form(split)
                raise SourceError(f"{source}: open returned {what}, which is no split: it lacks {lacking}")
        name: Any = split.name
        if not isinstance(name, str) or not name or not is_unicode(name):
            raise SourceError(
                f"{source}: the name of a split is {short_form(name)}, but it must be a text: "
                "it is part of each record's origin"
            )
        self.name: str = name
        self._where = f"{source}, split {self.name}"
        given = split.out_of_orderness_us
        bound = as_numbers([given], int)
        if bound is None or not 0 <= bound[0] <= OUT_OF_ORDERNESS_US_MAX:
            raise SourceError(
                f"{self._where}: out_of_orderness_us is {short_form(given)}, but it must be an int of "
                "microseconds, 0 or more"
            )
        self.out_of_orderness_us: int = bound[0]
        self.live_clock = bool(getattr(split, "live_clock", False))  # of a `LiveSplit`
        """Whether events carry the device's time."""

    @property
    def is_behind(self) -> bool:
        """Whether there may be records that it has not given: of an `AskingSplit`."""
        return bool(getattr(self._split, "is_behind", False))

    def share(self, folder: Path, app: str) -> None:
        """As `SharedSplit.share`; raises `SourceError` for a split that cannot."""
        share: Any = getattr(self._split, "share", None)
        if share is None:
            raise SourceError(f"{self._where}: its source is exclusive, so that it must define share")
        share(folder, app)

    def name_client(self, client_id: str) -> None:
        """As `ClientSplit.name_client`; of no use to a split that is no client."""
        name: Any = getattr(self._split, "name_client", None)
        if name is not None:
            name(client_id)

    def take_notes(self, notes: Mapping[bytes, bytes]) -> None:
        """As `NotingSplit.take_notes`; of no use to a split that notes nothing."""
        take: Any = getattr(self._split, "take_notes", None)
        if take is not None:
            take(notes)

    async def read(self, position: int, limit: int) -> Batch:
        """What the split gives, checked; raises `SourceError`."""
        try:
            found: Any = self._split.read(position, limit)
            if isinstance(found, Awaitable):
                found = await found
        except GeartrainError:
            raise
        except (Exception, SystemExit) as error:
            call = f"read({position}, {limit})"
            raise SourceError(f"{self._where}: {call} raised {described(error)}") from error
        if not isinstance(found, Batch):
            self._refuse(position, f"returned {short_form(found)}, but it must return a {Batch.__name__}")
        return self._checked(found, position)

    def _checked(self, poll: Batch, position: int) -> Batch:
        for column in ("values", "times", "numbers", "rejects"):
            given: Any = getattr(poll, column)
            if not isinstance(given, Sequence) or isinstance(given, str | bytes):
                self._refuse(position, f"gave {short_form(given)} as {column}: give a list")
        count, times, numbers = len(poll.values), len(poll.times), len(poll.numbers)
        if not count == times == numbers:
            self._refuse(position, f"gave {count} values, {times} times and {numbers} numbers: give one each")
        moved = as_numbers([poll.position], int)
        if moved is None or not position <= moved[0]:
            self._refuse(position, f"gave the position {short_form(poll.position)}: give an int, never less")
        if (count or poll.rejects) and moved[0] == position and not poll.ended:
            self._refuse(
                position, "gave rows and its position did not move: give the position after these rows"
            )
        self._check_numbers(poll.numbers, position)
        rejects = [self._reject(one, position) for one in poll.rejects]
        self._at = moved[0]
        self._check_beside(poll, position)
        if not rejects and type(poll.ended) is bool:
            return poll
        return replace(poll, rejects=rejects, ended=bool(poll.ended))

    def _check_beside(self, poll: Batch, position: int) -> None:
        """Refuse counts and notes that are none."""
        counts: Any = poll.counts
        if not isinstance(counts, Mapping) or not all(
            isinstance(name, str) and _COUNT.fullmatch(name) and type(count) is int and count >= 0
            for name, count in counts.items()
        ):
            self._refuse(
                position,
                f"gave the counts {short_form(counts)}: give ints, 0 or more, by names such as rows_empty",
            )
        notes: Any = poll.notes
        if not isinstance(notes, Mapping) or not all(
            type(key) is bytes
            and len(key) <= NOTE_KEY_BYTES_MAX
            and (value is None or (type(value) is bytes and len(value) <= NOTE_BYTES_MAX))
            for key, value in notes.items()
        ):
            self._refuse(
                position,
                f"gave the notes {short_form(notes)}: give at most {NOTE_BYTES_MAX:,} bytes, by a key of at "
                f"most {NOTE_KEY_BYTES_MAX} bytes",
            )

    def _check_numbers(self, given: Sequence[Any], position: int) -> None:
        """Refuse numbers that are none, or that do not ascend, from one read to the next too."""
        if position != self._at:
            self._last = -1
        if not given:
            return
        numbers = given
        if type(given) is not range:
            found = as_numbers(list(given), int)
            if found is None:
                self._refuse(position, f"gave {short_form(given)} as numbers: give ints of 64 bits")
            numbers = found
        first, last = numbers[0], numbers[-1]
        if not 0 <= first <= last <= INT64_MAX or not _ascend(numbers):
            self._refuse(position, f"gave the numbers {short_form(given)}: they must ascend from 0 or more")
        if first <= self._last:
            self._refuse(
                position,
                f"gave the number {first} after {self._last}: no two records of a split may have one number, "
                "so count on where the last read ended",
            )
        self._last = last

    def _reject(self, one: Any, position: int) -> Reject:
        """A reject as a dead letter can hold it."""
        if not isinstance(one, Reject):
            self._refuse(position, f"gave {short_form(one)} as a reject: give a {Reject.__name__}")
        number = as_numbers([one.number], int)
        if number is None or number[0] < 0:
            self._refuse(
                position, f"gave a reject with the number {short_form(one.number)}: give an int, 0 or more"
            )
        code: Any = one.code
        if not isinstance(code, str) or CODE.fullmatch(code) is None:
            self._refuse(
                position,
                f"gave a reject with the code {short_form(code)}: give 1 to 40 lower-case letters, digits "
                "and _, the first a letter",
            )
        reason: Any = one.reason
        raw: Any = one.raw
        time = None if one.event_time is None else as_numbers([one.event_time], int)
        return Reject(
            number[0],
            reason if isinstance(reason, str) else short_form(reason),
            raw if isinstance(raw, bytes) else raw_form(raw),
            time[0] if time and EARLIEST_TIME <= time[0] < END_OF_TIME else None,
            code,
        )

    def _refuse(self, position: int, what: str) -> NoReturn:
        raise SourceError(f"{self._where}: read from position {position} {what}")

    async def close(self) -> None:
        """Release what `open` took; what that raises is logged, so that all splits are closed."""
        try:
            closed: Any = self._split.close()
            if isinstance(closed, Awaitable):
                await closed
        except Exception as error:  # noqa: BLE001 - of a user's own split
            _LOG.warning("%s: close raised %s", self._where, described(error))


def _ascend(numbers: Sequence[int]) -> bool:
    if type(numbers) is range:
        return numbers.step > 0
    return all(map(lt, numbers, islice(numbers, 1, None)))


def described(error: BaseException) -> str:
    """An error of a user's code as half a sentence, with the line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return describe(error)
    return f"{describe(error)} ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"
