"""Whether Spark's files of a query's checkpoint are whole: asked before a session starts.

It stands beside the record's path. Spark does not sync what it writes, so a loss of power may leave its
newest files empty or short. A disk or a person may remove any of them.

Guarantees: a checkpoint is torn if Spark could not go on from it, or would silently begin anew. One sentence
names the file, and what is wrong with it. Nothing is changed.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

from geartrain_cloud.spark.checkpoint import Checkpoint
from geartrain_cloud.spark.errors import TornError

_VERSION = "v1"


def check_whole(checkpoint: Checkpoint, *, stages: int) -> None:
    """Raise `TornError` where the checkpoint is torn; stages: how many of its query keep state.

    One that was made and has never run is whole.
    """
    root = checkpoint.location
    if not root.exists():
        return
    offsets, commits = numbers(root / "offsets"), numbers(root / "commits")
    if not offsets and not commits and not (root / "metadata").exists():
        return
    _check_metadata(checkpoint, root / "metadata")
    for batch_id in (n for n in offsets if not commits or n >= commits[-1]):
        _check_lines(checkpoint, root / "offsets" / str(batch_id), 3)
    if not commits:
        if offsets and offsets != [0]:
            raise torn(checkpoint, root / "commits", "it is empty")
        return
    newest = commits[-1]
    _check_lines(checkpoint, root / "commits" / str(newest), 2)
    if newest not in offsets:
        raise torn(checkpoint, root / "offsets" / str(newest), "it is missing")
    if offsets[-1] > newest + 1:  # one micro-batch at the most was under way
        raise torn(checkpoint, root / "commits" / str(offsets[-1] - 1), "it is missing")
    if stages:
        parts = _parts(root / "offsets" / str(newest))
        _check_state(checkpoint, root / "state", newest + 1, parts, stages)


def torn(checkpoint: Checkpoint, path: Path, why: str) -> TornError:
    """What is said of a checkpoint that lacks something."""
    where = f"{path}: {why}"
    return TornError(f"{checkpoint.query}: its checkpoint is not whole, {where}", where)


def whole_batches(checkpoint: Checkpoint, *, stages: int) -> Iterator[int]:
    """The micro-batches from which Spark can go on, the newest first: those whose offsets, commit and state
    are whole. stages: as `check_whole` has it.
    """
    root = checkpoint.location
    offsets = set(numbers(root / "offsets"))
    for batch_id in reversed(numbers(root / "commits")):
        path = root / "offsets" / str(batch_id)
        try:
            if batch_id not in offsets:
                continue
            _check_lines(checkpoint, path, 3)
            _check_lines(checkpoint, root / "commits" / str(batch_id), 2)
            if stages:
                _check_state(checkpoint, root / "state", batch_id + 1, _parts(path), stages)
        except TornError:
            continue
        yield batch_id


def are_lines_whole(checkpoint: Checkpoint, batch_id: int) -> bool:
    """Whether the offsets of a micro-batch can be read."""
    try:
        _check_lines(checkpoint, checkpoint.location / "offsets" / str(batch_id), 3)
    except TornError:
        return False
    return True


def is_metadata_whole(checkpoint: Checkpoint) -> bool:
    """Whether the query's id can be read."""
    try:
        _check_metadata(checkpoint, checkpoint.location / "metadata")
    except TornError:
        return False
    return True


def numbers(folder: Path) -> list[int]:
    """The numbers of the files in a folder of Spark's, ascending; others are its drafts."""
    return (
        sorted(int(one.name) for one in folder.iterdir() if one.name.isdecimal()) if folder.is_dir() else []
    )


def _parts(offsets: Path) -> int:
    """Into how many parts Spark has dealt the state: a setting that it keeps with each micro-batch."""
    conf = json.loads(offsets.read_text(encoding="utf-8").splitlines()[1]).get("conf", {})
    return int(conf.get("spark.sql.shuffle.partitions", 1))


def _check_metadata(checkpoint: Checkpoint, path: Path) -> None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not isinstance(found.get("id"), str):
            raise ValueError("it has no id")
    except FileNotFoundError:
        raise torn(checkpoint, path, "it is missing") from None
    except (OSError, ValueError) as error:
        raise torn(checkpoint, path, str(error)) from None


def _check_lines(checkpoint: Checkpoint, path: Path, count: int) -> None:
    """A file of offsets or commits: its version, then lines of JSON objects."""
    try:
        version, *lines = path.read_text(encoding="utf-8").splitlines()
        if version != _VERSION or len(lines) + 1 != count:
            raise ValueError(f"it ends after {len(lines) + 1} lines of {count}")
        if not all(isinstance(json.loads(line), dict) for line in lines):
            raise ValueError("it is not of the known form")
    except (OSError, ValueError) as error:
        said = "it is empty" if path.exists() and not path.stat().st_size else str(error)
        raise torn(checkpoint, path, said) from None


def _check_state(checkpoint: Checkpoint, state: Path, version: int, parts: int, stages: int) -> None:
    """Each part of the state of all stages can be loaded as of `version`: a whole image, and all changes
    after it.
    """
    for operator in sorted({*numbers(state), *range(stages)}):
        folder = state / str(operator)
        said = [one for one in (folder / "_metadata").rglob("*") if one.is_file()]
        if not said:
            raise torn(checkpoint, folder / "_metadata", "it holds nothing")
        for path in (*said, *(folder / "_stateSchema").rglob("*")):
            if path.is_file() and not path.stat().st_size:
                raise torn(checkpoint, path, "it is empty")
        for part in range(parts):
            folder = state / str(operator) / str(part)
            if not folder.is_dir():
                raise torn(checkpoint, folder, "it is missing")
            for store in _stores(folder):
                _check_store(checkpoint, store, version)


def _stores(part: Path) -> list[Path]:
    """The folders with files of versions: the part itself, or one below it for each store of a join."""
    found = {path.parent for pattern in ("*.changelog", "*.zip") for path in part.rglob(pattern)}
    return sorted(found) or [part]


def _check_store(checkpoint: Checkpoint, folder: Path, version: int) -> None:
    for at in range(version, 0, -1):
        image, changes = folder / f"{at}.zip", folder / f"{at}.changelog"
        if image.is_file():
            _check_image(checkpoint, image)
            return
        if not changes.is_file():
            raise torn(checkpoint, changes, "it is missing")
        _check_changes(checkpoint, changes)


_BLOCK, _LENGTH = b"LZ4Block", 21
"""How a block of changes begins, and how long what stands before its bytes is: after the mark its kind, one
byte, then packed length, plain length and checksum, each four bytes, little-endian.
"""
_LENGTHS = struct.Struct("<II")


def _check_changes(checkpoint: Checkpoint, path: Path) -> None:
    """A file of changes: blocks, of which the last is empty. Other packings are for Spark to check."""
    size = path.stat().st_size
    if not size:
        raise torn(checkpoint, path, "it is empty")
    with path.open("rb") as changes:
        at, packed = 0, -1
        while at < size:
            changes.seek(at)
            head = changes.read(_LENGTH)
            if at == 0 and head[: len(_BLOCK)] != _BLOCK and any(head):
                return
            if len(head) < _LENGTH or not head.startswith(_BLOCK):
                raise torn(checkpoint, path, f"it is spoiled at byte {at:,}")
            packed, _ = _LENGTHS.unpack_from(head, len(_BLOCK) + 1)
            at += _LENGTH + packed
    if packed != 0 or at != size:
        raise torn(checkpoint, path, f"it ends at byte {size:,}, amid a block")


def _check_image(checkpoint: Checkpoint, path: Path) -> None:
    """A whole image of the state: a ZIP, which names the table files that it needs."""
    try:
        with zipfile.ZipFile(path) as image:
            _, _, listed = image.read("metadata").decode().partition("\n")
        named = {one["dfsSstFileName"]: int(one["sizeBytes"]) for one in json.loads(listed)["sstFiles"]}
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise torn(checkpoint, path, f"it cannot be read ({error})") from None
    for name, size in named.items():
        table = path.parent / "SSTs" / name
        if not table.is_file():
            raise torn(checkpoint, table, "it is missing")
        if table.stat().st_size != size:
            raise torn(checkpoint, table, f"it has {table.stat().st_size} bytes of {size}")
