"""Which code an app runs, and its exchange by other code of an equal flow.

Between REST, the bundles and the control store. Guarantees: only code whose flow has the same steps, types,
options and channels takes the place of an app's code. The app keeps its instance, its state, its log and its
tables. Anything else is refused in one sentence that names what differs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from msgspec.structs import replace

from geartrain.errors import GeartrainError
from geartrain.revision import Revision, differences, in_short
from geartrain_cloud.control.answering import Work
from geartrain_cloud.control.checking import Answer as Checked
from geartrain_cloud.control.checking import Question
from geartrain_cloud.control.errors import ConflictError, InvalidError
from geartrain_cloud.control.idempotency import Answer
from geartrain_cloud.control.model import Instance, Outline
from geartrain_cloud.control.requests import EmptyBody, UpdateBody, body_of, key_of
from geartrain_cloud.control.store import ControlStore
from geartrain_cloud.control.trust import Trust

HASH_CHARS = 64


class Updates:
    """Those of one platform."""

    def __init__(
        self,
        store: ControlStore,
        load: Callable[[Question], Awaitable[Checked]],
        trust: Trust,
        changed: Callable[[], None],
        has_joined: Callable[[str], bool] | None = None,
    ) -> None:
        """`load`: checks a flow in a process of its own; `changed`: called after each change; `has_joined`:
        whether a device runs signed bundles alone, None where none does.
        """
        self.load, self._store, self._trust, self._changed = load, store, trust, changed
        self._has_joined = has_joined

    def routes(self) -> list[tuple[str, str, Work]]:
        """Below the root of REST: method, path and what answers."""
        return [
            ("POST", "/apps/{name}/update", self.update),
            ("POST", "/apps/{name}/rollback", self.rollback),
        ]

    def bundle_of(self, revision: str) -> str:
        """The folder of the code that a revision names, "" where no author has signed it."""
        try:
            code = Revision.from_json(revision).code if revision else None
        except GeartrainError:
            return ""  # who loads the flow says what is wrong with it
        return self._trust.folder_of(code.hash) if code is not None and code.files else ""

    def check_reaches(self, flow: str, outline: Outline, devices: Iterable[str]) -> None:
        """Raise `ConflictError` where one of the devices could not get this code."""
        if outline.bundled or self._has_joined is None:
            return
        if missing := next((one for one in devices if self._has_joined(one)), None):
            raise ConflictError(
                f"device {missing} runs signed bundles alone, and the code of {flow} is not signed: make "
                "keys with gear key new, and submit it again"
            )

    async def update(self, request: web.Request) -> Answer:
        """`POST /apps/{name}/update`."""
        body, asked = await body_of(request, UpdateBody)
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        if len(body.code) != HASH_CHARS:
            raise InvalidError("code: give the hash of the flow's files")
        instance = self._store.apps.newest(request.match_info["name"])
        outline = await self._load(instance, body.flow, body.code)
        return self._exchange(instance, outline, key, asked)

    async def rollback(self, request: web.Request) -> Answer:
        """`POST /apps/{name}/rollback`."""
        _, asked = await body_of(request, EmptyBody)
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        instance = self._store.apps.newest(request.match_info["name"])
        former = instance.outline.former
        if former is None:
            raise ConflictError(f"app {instance.name} was not updated, so there is no code to go back to")
        outline = await self._load(instance, instance.flow, former.code)
        return self._exchange(instance, outline, key, asked)

    async def _load(self, instance: Instance, flow: str, code: str) -> Outline:
        """What the flow is with this code, and with the app's settings; raises `ControlError`."""
        if flow != instance.flow:
            raise ConflictError(
                f"app {instance.name} runs {instance.flow}, not {flow}: submit that under a name of its own"
            )
        if code == instance.outline.code:
            raise ConflictError(f"app {instance.name} runs this code already: {code[:12]}")
        bundle = self._trust.folder_of(code)
        checked = await self.load(
            Question(flow, instance.cut, instance.options, instance.device_options, bundle=bundle)
        )
        outline = checked.outline
        if outline is None or outline.code != code:
            raise ConflictError(
                f"code {code[:12]} of {flow} is neither signed nor installed on the platform's machine: make "
                "keys with gear key new, or install it there"
            )
        was, now = Revision.from_json(instance.outline.document), Revision.from_json(outline.document)
        if found := differences(replace(was, code=now.code), now):
            raise ConflictError(
                f"app {instance.name} cannot go on with this code, since more than code differs: "
                f"{in_short(found)}; kill it, and submit the flow"
            )
        self.check_reaches(flow, outline, self._store.desired.running(instance.instance))
        return outline

    def _exchange(self, instance: Instance, outline: Outline, key: str, asked: str) -> Answer:
        def work() -> Answer:
            made = self._store.apps.update(instance.name, instance.instance, outline)
            return 202, {
                "name": made.name,
                "instance": made.instance,
                "revision": outline.revision,
                "code": outline.code,
                "former": instance.outline.code,
                "devices": list(self._store.desired.assigned(made.instance)),
            }

        answer = self._store.answers.once(key, asked, work)
        self._changed()
        return answer
