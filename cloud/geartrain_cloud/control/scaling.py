"""Over how many slots the keys of an app are dealt in the data centre: what is asked for, and what it takes.

Between REST and the control store. Guarantees: the pause is told before the change, which is refused in one
sentence where it cannot be made. What is asked for holds for later runs and revisions of the instance as
well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from geartrain.revision import in_short
from geartrain_cloud.control.hosting import HostReport
from geartrain_cloud.control.resting import under_way
from geartrain_cloud.control_store.apps import in_the_way
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.model import Instance
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.requests import ScaleBody, body_of, key_of
from geartrain_cloud.rest.routes import route

MICRO_BATCHES = 2
"""In so many an app reads nothing new, or waits for its state, while its keys are dealt anew."""


class Scales:
    """Those of one platform."""

    def __init__(
        self, store: ControlStore, changed: Callable[[], None], host: Callable[[str], HostReport]
    ) -> None:
        """`changed`: called after each change; `host`: what the Spark host says of an instance."""
        self._store, self._changed, self._host = store, changed, host

    @route("POST", "/apps/{name}/scale", "operator", answers.Scaled, statuses=(200, 202), body=ScaleBody)
    async def scale(self, request: web.Request) -> Answer:
        """Deal the keys of an app over as many slots as are given, or say how long it would pause."""
        body, asked = await body_of(request, ScaleBody)
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        instance = self._store.apps.newest(request.match_info["name"])
        refusals, said = self._in_the_way(instance, body.slots), self._said(instance, body.slots)
        if body.dry_run:
            return 200, {**said, "refusals": refusals}
        if refusals:
            raise ConflictError(f"app {instance.name} keeps its slots: {in_short(refusals)}")

        def work() -> Answer:
            self._store.apps.scale(instance, body.slots)
            return 202, said

        answer = self._store.answers.once(key, asked, work)
        self._changed()
        return answer

    def _in_the_way(self, instance: Instance, slots: int) -> list[str]:
        """What keeps an app from other slots now, a sentence each."""
        host, name = self._host(instance.instance), instance.name
        if found := under_way(instance, host):
            return found
        if self._store.revisions.canary_of(instance) is not None:
            found.append(in_the_way(name))
        elif (following := self._store.revisions.next_of(instance)) is not None:
            found.append(
                f"it is to go over to revision {following.number}: wait until that is in force, or give it "
                "up with gear rollback"
            )
        if not host.stages:
            found.append("it has no step behind a key in the data centre, so nothing is dealt")
        elif slots == host.slots == instance.slots:
            found.append(f"its keys are dealt over {slots} slots already")
        return found

    def _said(self, instance: Instance, slots: int) -> dict[str, Any]:
        """What a change comes to, as an answer. pause_ms: of the app, as micro-batches take now; the move of
        its state comes on top.
        """
        host = self._host(instance.instance)
        return {
            "name": instance.name,
            "instance": instance.instance,
            "slots": slots,
            "former": host.slots,
            "micro_batches": MICRO_BATCHES,
            "state_bytes": host.state_bytes,
            "pause_ms": MICRO_BATCHES * round(host.micro_batch_ms or 0),
        }
