"""`gear fetch`: the records of an app in a platform's log, as a folder that `gear run --fetched` reads.

Guarantees: the files have mode 0600. The folder is whole once `fetched.json` is in it, which is written last.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.files import make_private_folder, write_private
from geartrain.errors import ConfigError
from geartrain.printable import printable
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME, parse_time
from geartrain_client.rest.answers import answer_as
from geartrain_client.rest.platform import Platform, segment
from geartrain_client.terminal.screen import ProgressLine, notices, print_json, results

META_FILE, RECORDS_FILE = "fetched.json", "records.jsonl"
PAGE_S = 150.0
"""How long the platform may take for a page of the log."""


class FetchedMeta(msgspec.Struct, frozen=True):
    """What `fetched.json` says.

    cuts: those that devices have beside the app's own, `cut`; begin, end: the range of event times that was
    asked for, microseconds; before: whether the records before it are there as well, so that its state can be
    made again; clocks: of the flow's sources, where the log stood; removed: by channel, the entry up to which
    retention has removed records; types: by channel, the schemas of its records by their ids, several where
    an update has given it another type; given_up: by channel the layouts of those whose records are dead
    letters.
    """

    app: str
    instance: str
    flow: str
    cut: str | list[str]
    options: dict[str, dict[str, Any]]
    revision: str
    begin: int
    end: int
    before: bool
    records: int
    clocks: dict[str, int]
    removed: dict[str, int]
    types: dict[str, dict[str, str]]
    cuts: tuple[str, ...] = ()
    given_up: dict[str, tuple[str, ...]] = {}


class _Page(msgspec.Struct, frozen=True):
    app: str
    instance: str
    flow: str
    cut: str | list[str]
    options: dict[str, dict[str, Any]]
    revision: str
    records: list[dict[str, Any]]
    upto: dict[str, int]
    after: dict[str, int]
    done: bool
    clocks: dict[str, int]
    types: dict[str, dict[str, str]]
    removed: dict[str, int]
    cuts: tuple[str, ...] = ()
    given_up: dict[str, tuple[str, ...]] = {}


@dataclass(frozen=True, slots=True)
class FetchWishes:
    """What the user asked for; begin, end: texts of times, None for the log's."""

    output: Path
    begin: str | None = None
    end: str | None = None
    with_state: bool = False
    records_max: int = 1_000_000
    as_json: bool = False


def fetch(platform: Platform, app: str, wishes: FetchWishes) -> None:
    """Write the records of a range into a folder; raises `GeartrainError`."""
    begin, end = _time("--from", wishes.begin, START_OF_TIME), _time("--to", wishes.end, END_OF_TIME)
    if begin >= end:
        raise ConfigError("--from must be before --to")
    _make(wishes.output)
    records = wishes.output / RECORDS_FILE
    try:
        meta = _bring(platform, app, records, (begin, end), wishes)
    except BaseException:
        records.unlink(missing_ok=True)
        raise
    write_private(wishes.output / META_FILE, msgspec.json.format(msgspec.json.encode(meta), indent=1) + b"\n")
    _say(meta, wishes)


def _bring(
    platform: Platform, app: str, path: Path, span: tuple[int, int], wishes: FetchWishes
) -> FetchedMeta:
    """Write the records page by page."""
    begin, end = span
    first = START_OF_TIME if wishes.with_state else begin
    count, after, upto = 0, "", ""
    types: dict[str, dict[str, str]] = {}
    removed: dict[str, int] = {}
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file, ProgressLine(notices()) as line:
        while True:
            asked = {"from_us": first, "to_us": end, "after": after or None, "upto": upto or None}
            found = platform.get(f"/apps/{segment(app)}/records", timeout_s=PAGE_S, **asked)
            page = answer_as(_Page, found)
            for record in page.records:
                file.write(json.dumps(record, ensure_ascii=True) + "\n")
            count += len(page.records)
            for channel, schemas in page.types.items():
                types.setdefault(channel, {}).update(schemas)
            removed |= page.removed
            if count > wishes.records_max:
                raise ConfigError(
                    f"there are more than {wishes.records_max:,} records: name a shorter range, or --limit"
                )
            line.show(partial("fetched {:,} records".format, count))
            after, upto = _places(page.after), _places(page.upto)
            if page.done:
                break
    return FetchedMeta(
        page.app,
        page.instance,
        page.flow,
        page.cut,
        page.options,
        page.revision,
        begin,
        end,
        wishes.with_state,
        count,
        page.clocks,
        removed,
        types,
        page.cuts,
        given_up=page.given_up,
    )


def _make(folder: Path) -> None:
    """Make the folder; raises `ConfigError` where something is in it."""
    try:
        make_private_folder(folder)
        if any(folder.iterdir()):
            raise ConfigError(f"--output {folder} is not empty: name a new folder")
    except OSError as error:
        raise ConfigError(f"--output {folder} cannot be written: {error.strerror or error}") from None


def _time(option: str, text: str | None, otherwise: int) -> int:
    if text is None:
        return otherwise
    try:
        return parse_time(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def _places(positions: dict[str, int]) -> str:
    return ",".join(f"{key}:{position}" for key, position in positions.items())


def _say(meta: FetchedMeta, wishes: FetchWishes) -> None:
    if wishes.as_json:
        print_json(msgspec.to_builtins(meta))
        return
    out = results()
    for channel, number in meta.removed.items():
        out.print(
            printable(f"retention has removed records of {channel} up to entry {number:,}"), soft_wrap=True
        )
    for channel, schemas in meta.types.items():
        if len(schemas) > 1:
            says = f"records of {channel} are of {len(schemas)} types, and gear run upgrades the former ones"
            out.print(printable(says), soft_wrap=True)
    command = f"gear run {meta.flow} --fetched {wishes.output} --output DIR"
    out.print(printable(f"{meta.records:,} records of {meta.instance}; now: {command}"), soft_wrap=True)
