"""History of a device for an app: before its live records where it has not begun, else in a run apart.

Between REST and the control store. Guarantees: history comes in as any record does, through an agent, its
spool, ingest and the log. Live tables of an app get history only from a device that never had the app before.
The same files for the same device are brought in once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from aiohttp import web
from msgspec.structs import replace

from geartrain.errors import GeartrainError
from geartrain.fleet.labels import check_device
from geartrain.fleet.selectors import CLOUD_DEVICE, IN_CLOUD
from geartrain.operators.source import ENABLED, HISTORY
from geartrain_cloud.control.checking import Question as Check
from geartrain_cloud.control.history_files import PIECE_BYTES_MAX, HistoryFiles
from geartrain_cloud.control.updating import Updates
from geartrain_cloud.control_store.errors import (
    ConflictError,
    FlowRefusedError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.model import Instance, Options, Outline, Submission, merged
from geartrain_cloud.control_store.names import APP_CHARS_MAX
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.requests import BackfillBody, PieceQuery, body_of, key_of, query_of
from geartrain_cloud.rest.routes import Bytes, route
from geartrain_cloud.short_process import run_short

BEFORE, APART = "before", "apart"
PARQUET_S = 600.0
"""How long a Parquet file may take to be read."""
_ANSWER_BYTES_MAX = 1 << 16
_DIGEST_CHARS = 8
_FORMS = {"tsv": "csv", "ndjson": "jsonl", "parquet": "jsonl", "txt": "log"}
"""The endings of files that are read as those with another ending."""
_PLACE = f"_history_{'0' * _DIGEST_CHARS}"


class Backfills:
    """Those of one platform."""

    def __init__(
        self,
        store: ControlStore,
        updates: Updates,
        files: HistoryFiles,
        changed: Callable[[], None],
        *,
        is_open: bool,
    ) -> None:
        """`changed`: called after each change; is_open: devices may be on other machines, where they cannot
        read the files.
        """
        self._store, self._updates, self._files = store, updates, files
        self._changed, self._is_open = changed, is_open

    @route("GET", "/apps/{name}/history/{file}", "viewer", answers.HistoryFile)
    async def standing(self, request: web.Request) -> Answer:
        """How much of a file of history has come; it is named by its SHA-256 and its form."""
        size, whole = await asyncio.to_thread(self._files.standing, request.match_info["file"])
        return 200, {"bytes": size, "whole": whole}

    @route(
        *("PUT", "/apps/{name}/history/{file}", "operator", answers.HistoryFile),
        body=Bytes,
        query=PieceQuery,
        kept=False,
    )
    async def put(self, request: web.Request) -> Answer:
        """Bring the piece of a file of history that begins at a byte; one that is there is passed over."""
        self._store.apps.newest(request.match_info["name"])
        asked, file, content = query_of(request, PieceQuery), request.match_info["file"], await request.read()
        if len(content) > PIECE_BYTES_MAX:
            raise InvalidError(f"a piece of a history has at most {PIECE_BYTES_MAX:,} bytes")
        size, whole = await asyncio.to_thread(self._files.append, file, asked.begin, content)
        if not whole and size >= asked.size:
            await asyncio.to_thread(self._files.finish, file)
            whole = True
        return 200, {"bytes": size, "whole": whole}

    @route(
        "POST",
        "/apps/{name}/backfill",
        "operator",
        answers.Backfilled,
        statuses=(200, 202),
        body=BackfillBody,
    )
    async def backfill(self, request: web.Request) -> Answer:
        """Bring history of a device into an app, or say in which way. That is `before` its live records where
        it has never had the app, else `apart`, in a run that is an app of its own.
        """
        body, asked = await body_of(request, BackfillBody)
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        instance = self._store.apps.newest(request.match_info["name"])
        _check(instance, body)
        reason = self._not_before(instance, body.device, body.source)
        if reason and self._store.devices.find(body.device) is None:
            reason = f"{reason}. There is no device {body.device} here, in whose name it would come"
        with self._to_read(body) as paths, self._as_called(body, paths):
            body = replace(body, files=list(dict.fromkeys(body.files)))  # what is named twice is read once
            asks = (
                self._apart(instance, body, paths, reason) if reason else self._before(instance, body, paths)
            )
            work = await asks
        if body.dry_run:
            return 200, work(False)
        answer = self._store.answers.once(key, asked, lambda: (202, work(True)))
        self._changed()
        return answer

    def _not_before(self, instance: Instance, device: str, source: str) -> str:
        """Why history cannot come before the live records of the device, "" where it can."""
        found, name = self._store.devices.find(device), instance.name
        if not instance.is_to_run:
            return f"app {name} takes nothing more"
        if self._store.desired.is_assigned(instance.instance, device):
            return f"device {device} has app {name} already"
        if self._is_open or (found is not None and not found.local):
            return (
                f"device {device} may be on another machine, which cannot read the files of the platform: to "
                "have them before its live records, name them in its device.toml before it gets the app, as "
                f"[apps.{name}.sources.{source}.history]"
            )
        if self._store.revisions.next_of(instance) is not None:
            raise ConflictError(f"app {name} goes over to another revision: wait until that is in force")
        return ""

    @contextmanager
    def _to_read(self, body: BackfillBody) -> Iterator[Sequence[str]]:
        """The paths of what is looked into before anything is changed: the files themselves, but in a dry run
        their heads, as files that go again.
        """
        if not body.dry_run:
            yield [str(self._files.path(one)) for one in dict.fromkeys(body.files)]
            return
        with TemporaryDirectory(prefix="geartrain-") as folder:
            named = {one: head for one, head in zip(body.files, body.heads, strict=False) if head}
            paths = [Path(folder) / self._files.path(one).name.removesuffix(".gz") for one in named]
            for path, head in zip(paths, named.values(), strict=True):
                path.write_bytes(head)
            yield [str(path) for path in paths]

    @contextmanager
    def _as_called(self, body: BackfillBody, paths: Sequence[str]) -> Iterator[None]:
        """Have refusals call the files as whoever asks does, not by the paths of the platform's copies."""
        try:
            yield
        except (ConflictError, FlowRefusedError) as error:
            sentence = str(error)
            for one, called in zip(body.files, body.called, strict=False):
                digest = one.partition(".")[0]
                mine = [path for path in paths if Path(path).name.startswith(digest)]
                mine += [str(self._files.path(one)), str(self._files.brought(one))]
                for path in (*mine, *(Path(path).name for path in mine)):
                    sentence = sentence.replace(path, called)
            raise type(error)(sentence) from None

    async def _before(
        self, instance: Instance, body: BackfillBody, to_read: Sequence[str]
    ) -> Callable[[bool], dict[str, Any]]:
        """Give the device the files as an option of its source, after a look into them."""
        held = instance.device_options.get(body.device, {}).get(body.source, {}).get(HISTORY, {})

        written, new = body.set, [str(self._files.path(one)) for one in body.files]
        files = list(dict.fromkeys((*held.get("files", ()), *new)))
        is_new = files != held.get("files", [])
        if is_new and held and held["time"] != body.time:
            raise ConflictError(f"the history of {body.device} that is there has its times in {held['time']}")
        if not body.dry_run:
            await self._whole(body)
        if to_read:
            outline = instance.outline
            code = self._updates.bundle_of(outline.document) if outline.bundled else ""
            looked = {body.source: {HISTORY: _history(list(to_read), body.time, written)}}
            asked = (instance.flow, instance.cut, instance.options, {body.device: looked})
            answer = await self._updates.load(Check(*asked, bundle=code, without=outline.without))
            found = answer.device_options[body.device][body.source][HISTORY]
            written = found.get("options", {})
            if is_new and held and held.get("options", {}) != written:
                raise ConflictError(
                    f"the history of {body.device} that is there has other options ({_shown(held)}) than "
                    f"these files ({_shown(found)}): files of one history are written alike"
                )
        own = {body.source: {HISTORY: _history(files, body.time, written)}}
        about = _said(instance, body, BEFORE, "", instance.name, is_new=is_new)

        def work(really: bool) -> dict[str, Any]:
            if really and is_new:
                self._store.apps.give_history(instance, body.device, own)
            return about

        return work

    async def _apart(
        self, instance: Instance, body: BackfillBody, to_read: Sequence[str], reason: str
    ) -> Callable[[bool], dict[str, Any]]:
        """Submit the flow of the app under another name, with the files as all that its sources give."""
        name = _name(instance, body)
        try:
            self._store.apps.newest(name)
        except NotFoundError:
            is_new = True
        else:
            is_new = False
        about = _said(instance, body, APART, reason, name, is_new=is_new)
        if not is_new or not to_read:
            return lambda _: about
        if not body.dry_run:
            await self._whole(body)
        outline, options = await self._run_of(instance, body, to_read)

        def work(really: bool) -> dict[str, Any]:
            asked = Submission(name, instance.flow, "cloud", "all", options, isolation=instance.isolation)
            if really:
                self._store.apps.submit(asked, outline)
            return about

        return work

    async def _run_of(
        self, instance: Instance, body: BackfillBody, files: Sequence[str]
    ) -> tuple[Outline, Options]:
        """The flow as it runs on these files alone; raises `ConflictError` or `FlowRefusedError`."""
        held = instance.outline
        own = instance.device_options.get(body.device, {})
        options = {step: {**values} for step, values in merged(instance.options, own).items()}
        for source in held.sources:
            given = {
                one: value
                for one, value in options.get(source.id, {}).items()
                if one not in (ENABLED, HISTORY)
            }
            mine = list(files) if source.id == body.source else []
            past = _history(mine, body.time, body.set if mine else {})
            options[source.id] = given | {HISTORY: past | {"device": body.device, "alone": True}}
        checked = await self._updates.load(Check(instance.flow, "cloud", options, without=held.without))
        outline = checked.outline
        if outline is None or outline.code != held.code:
            raise ConflictError(
                f"app {instance.name} runs code that is not installed on the platform's machine, where the "
                "files are read: install it there"
            )
        if outline.down:
            raise FlowRefusedError(f"app {instance.name} sends to devices, which a run of history must not")
        return outline, checked.options

    async def _whole(self, body: BackfillBody) -> None:
        """Have all files be there, as agents read them; raises `ConflictError`."""
        for one in body.files:
            found = await asyncio.to_thread(self._files.whole, one)
            brought, lines = self._files.brought(one), self._files.path(one)
            if found != lines:
                await _lines_of(found, lines)
            if brought != lines:
                brought.unlink(missing_ok=True)


async def _lines_of(parquet: Path, lines: Path) -> None:
    """Write the rows of a Parquet file as lines; raises `ConflictError` and `UnavailableError`."""
    question = msgspec.json.encode({"file": str(parquet), "lines": str(lines)})
    try:
        ended = await run_short(
            "geartrain_cloud.control.parquet_lines", question, PARQUET_S, _ANSWER_BYTES_MAX
        )
    except TimeoutError:
        raise UnavailableError(
            f"the Parquet file was not read within {PARQUET_S:g} s: bring it in as several smaller ones"
        ) from None
    except OSError as error:
        raise UnavailableError(f"no process can be started: {error.strerror or error}") from None
    if ended.code != 0 or not ended.answer:
        raise UnavailableError(f"what reads the Parquet file ended with {ended.code}{ended.last_line}")
    if "refused" in (said := msgspec.json.decode(ended.answer)):
        raise ConflictError(said["refused"])


def _check(instance: Instance, body: BackfillBody) -> None:
    """Raise `InvalidError` for a body that cannot be meant."""
    try:
        check_device(body.device)
    except GeartrainError as error:
        raise InvalidError(f"device: {error}") from None
    sources = {one.id: one for one in instance.outline.sources}
    if body.source not in sources:
        raise InvalidError(
            f"source: app {instance.name} has no source {body.source!r}; its sources: {', '.join(sources)}"
        )
    if sources[body.source].devices == IN_CLOUD or body.device == CLOUD_DEVICE:
        raise InvalidError(f"source: {body.source} is read in the cloud, and not on devices")
    endings = {one.partition(".")[2].removesuffix(".gz") for one in body.files}
    if len({_FORMS.get(ending, ending) for ending in endings}) > 1:
        raise InvalidError(
            "files: CSV, JSON and lines of text cannot be one history: bring them in one after the other"
        )
    if body.called and len(body.called) != len(body.files):
        raise InvalidError("called: name as many files as there are in files, or none")
    if body.heads and (not body.dry_run or len(body.heads) != len(body.files)):
        raise InvalidError("heads: a dry run takes the first lines of each file, as many as there are files")


def _history(files: list[str], time: str, written: dict[str, Any]) -> dict[str, Any]:
    """A history as data; written: the options that say how its files are written."""
    return {"files": files, "time": time} | ({"options": written} if written else {})


def _shown(history: dict[str, Any]) -> str:
    return ", ".join(f"{one} = {value!r}" for one, value in history.get("options", {}).items()) or "none"


def _name(instance: Instance, body: BackfillBody) -> str:
    """The name of the run: the same for the same files of the same device."""
    written = [msgspec.json.encode(body.set, order="sorted").decode()] if body.set else []
    said = "\n".join([instance.instance, body.source, body.device, body.time, *body.files, *written])
    digest = hashlib.sha256(said.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{instance.name[: APP_CHARS_MAX - len(_PLACE)]}_history_{digest}"


def _said(
    instance: Instance, body: BackfillBody, way: str, reason: str, app: str, *, is_new: bool
) -> dict[str, Any]:
    """What becomes of the history, as an answer."""
    return {
        "name": instance.name,
        "instance": instance.instance,
        "way": way,
        "reason": reason,
        "app": app,
        "device": body.device,
        "is_new": is_new,
    }
