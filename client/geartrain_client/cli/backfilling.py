"""`gear backfill`: history of a device goes to the platform in pieces, and into an app.

Guarantees: it says which way the history takes before anything is changed. What has come is not sent again,
so that after Ctrl-C the same command goes on where it stopped. A history that is there adds nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from geartrain.errors import ConfigError
from geartrain.printable import printable
from geartrain_client.cli.waiting import until_ended, wait_until
from geartrain_client.errors import FailedError
from geartrain_client.rest.answers import AppInfo, Table, answer_as
from geartrain_client.rest.platform import Platform, segment
from geartrain_client.terminal.screen import ProgressLine, notices, print_json, results

PIECE_BYTES = 1 << 20
PIECE_S = 60.0
"""How long the platform may take for a piece."""
WHOLE_S = 660.0
"""The same for all of it: Parquet files are read then."""
LOOK_S = 120.0
"""The same for a look at the first lines."""
HEAD_BYTES, HEADS_BYTES = 1 << 16, 1 << 19
"""Of the first lines of a file, and of all files together, that a dry run sends."""
NAMED_MAX = 5
_LETTERS = "dead_letters"
_FORM = re.compile(r"\.(csv|tsv|jsonl|ndjson|log|txt)(?:(?<=log)[.-][0-9][0-9.-]*)?(\.gz)?\Z|\.(parquet)\Z")
"""The endings of files that are history; a log may have been rotated: `app.log.1`, `app.log-20240131`."""


class _Standing(msgspec.Struct):
    bytes: int
    whole: bool


class _Made(msgspec.Struct):
    instance: str
    way: str
    reason: str
    app: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class BackfillWishes:
    """What the user asked for; time: the column of the event time; written: options that say how the files
    are written; seconds: how long to wait for the end of a run apart, None for not at all.
    """

    source: str
    device: str
    files: Sequence[Path]
    time: str
    written: dict[str, str]
    dry_run: bool
    seconds: float | None
    as_json: bool


def backfill_app(platform: Platform, app: str, wishes: BackfillWishes) -> None:
    """Bring the files into the app; raises `GeartrainError`."""
    names = [_name(path) for path in wishes.files]
    path = f"/apps/{segment(app)}/backfill"
    body: dict[str, Any] = {"source": wishes.source, "device": wishes.device, "files": names}
    body |= {"time": wishes.time, "called": [str(one) for one in wishes.files]}
    if wishes.written:
        body["set"] = wishes.written
    heads = _heads(wishes.files) if wishes.dry_run else []
    asked = platform.change("POST", path, {**body, "dry_run": True, "heads": heads}, LOOK_S)
    found = answer_as(_Made, asked)
    if not wishes.as_json:
        notices().print(printable(_way(found, wishes.device)), soft_wrap=True)
    if wishes.dry_run:
        if wishes.as_json:
            print_json(asked)
        else:
            results().print(printable(_looked(found, wishes.files, heads)), soft_wrap=True)
        return
    if found.is_new:
        for name, file in zip(names, wishes.files, strict=True):
            _send(platform, app, name, file)
        asked = platform.change("POST", path, body, WHOLE_S)
        made = answer_as(_Made, asked)
        if made.way != found.way:
            raise FailedError(f"it has become another way meanwhile: {_way(made, wishes.device)}")
    _finish(platform, found, asked, wishes)


def _finish(platform: Platform, found: _Made, answer: Any, wishes: BackfillWishes) -> None:
    """Wait for a run apart, and say what has become of it."""
    rows = None
    if found.way == "apart" and wishes.seconds is not None:
        about = answer_as(AppInfo, platform.get(f"/apps/{segment(found.app)}"))
        wait_until(platform, found.app, until_ended(about.instance), wishes.seconds)
        rows = _dead_letters(platform, found.app)
    if wishes.as_json:
        print_json({**answer, "dead_letters": rows})
        return
    if not found.is_new:
        results().print(printable(f"{found.app} has this history already; nothing was added"), soft_wrap=True)
    elif found.way == "before":
        results().print(
            printable(
                f"{wishes.device} begins with this history once it gets app {found.app}: add or label it, "
                "with gear device"
            ),
            soft_wrap=True,
        )
    if found.way == "apart":
        lost = "1 row was no record" if rows == 1 else f"{rows} rows were no records"
        letters = f"; {lost}: gear table {found.app} {_LETTERS}" if rows else ""
        see = f"gear table {found.app} TABLE"
        state = "is in" if wishes.seconds is not None else "goes into"
        results().print(
            printable(f"the history {state} the tables of {found.app}: {see}{letters}"), soft_wrap=True
        )


def _dead_letters(platform: Platform, app: str) -> int | None:
    """How many rows of a run were no records, None where that is not known."""
    tables = [answer_as(Table, one) for one in platform.items(f"/apps/{segment(app)}/tables")]
    return next((one.rows for one in tables if one.name == _LETTERS), None)


def _way(found: _Made, device: str) -> str:
    if found.way == "before":
        return f"the history comes before the live records of {device}, which has never had app {found.app}"
    return (
        f"the history goes into a run of its own, app {found.app}, and the tables of {found.instance} stay "
        f"as they are: {found.reason}"
    )


def _looked(found: _Made, files: Sequence[Path], heads: Sequence[str]) -> str:
    """What a dry run has come to."""
    if not found.is_new:
        return f"{found.app} has this history already; nothing would be added, and nothing was changed"
    unread = [str(path) for path, head in zip(files, heads, strict=True) if not head]
    if unread:
        return f"nothing was changed; not looked into: {', '.join(unread[:NAMED_MAX])}"
    return "the first lines of each file fit; nothing was changed"


def parse_written(settings: Sequence[str]) -> dict[str, str]:
    """Options of files by their names; raises `ConfigError` for another form or a doubled option.

    >>> parse_written(["delimiter=;", "null_values=NA,-"])
    {'delimiter': ';', 'null_values': 'NA,-'}
    """
    found: dict[str, str] = {}
    for setting in settings:
        option, equals, value = setting.partition("=")
        if not (equals and option) or "." in option:
            raise ConfigError(f"--set {setting}: write OPTION=VALUE, such as decimal=,")
        if option in found:
            raise ConfigError(f"--set {setting}: {option} is set twice; leave one out")
        found[option] = value
    return found


def _heads(files: Sequence[Path]) -> list[str]:
    """The first lines of each file as base64, "" for one whose lines are too long, and for Parquet; raises
    `ConfigError`.
    """
    return [_head(path, min(HEAD_BYTES, HEADS_BYTES // len(files))) for path in files]


def _head(path: Path, size: int) -> str:
    if path.name.endswith(".parquet"):
        return ""
    opened: Any = gzip.open if path.name.endswith(".gz") else open
    try:
        with opened(path, "rb") as file:
            found = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile, too
        why = "it is not whole, or not compressed by gzip: copy the file again, or take .gz off its name"
        why = error.strerror if isinstance(error, OSError) and error.strerror else why
        raise ConfigError(f"--file {path} cannot be read: {why}") from None
    whole = found if len(found) <= size else found[: found.rfind(b"\n") + 1]
    return b64encode(whole).decode()


def _name(path: Path) -> str:
    """The name of a file on the platform; raises `ConfigError`."""
    form = _FORM.search(path.name)
    if form is None:
        raise ConfigError(
            f"--file {path}: call it .csv, .tsv, .jsonl, .ndjson, .log, .txt or .parquet, as what it is; all "
            "but the last may be packed, with .gz behind the name"
        )
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except OSError as error:
        raise ConfigError(f"--file {path} cannot be read: {error.strerror or error}") from None
    if not size:
        raise ConfigError(f"--file {path} is empty")
    return f"{digest}.{form[1] or form[3]}{form[2] or ''}"


def _send(platform: Platform, app: str, name: str, path: Path) -> None:
    """Bring what the platform lacks of a file."""
    place = f"/apps/{segment(app)}/history/{segment(name)}"
    try:
        with path.open("rb") as file, ProgressLine(notices()) as line:
            size = path.stat().st_size
            standing = answer_as(_Standing, platform.get(place))
            while not standing.whole:
                line.show(partial(_progress, path, standing.bytes, size))
                standing = _send_piece(platform, place, file, standing.bytes, size)
    except OSError as error:
        raise ConfigError(f"--file {path} cannot be read: {error.strerror or error}") from None


def _send_piece(platform: Platform, place: str, file: BinaryIO, begin: int, size: int) -> _Standing:
    file.seek(begin)
    content = file.read(PIECE_BYTES)
    return answer_as(_Standing, platform.send(f"{place}?begin={begin}&size={size}", content, PIECE_S))


def _progress(path: Path, done: int, size: int) -> str:
    return f"sent {done:,} of {size:,} bytes of {path.name}"
