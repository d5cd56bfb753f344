"""`GET /apps/{name}/steps/{step}/state`: what a running app keeps of a key.

Between REST and those who hold the state: the Spark host is asked by files, devices over the broker.
Guarantees: an app is asked at most `ASKED_MAX` times a second, and a request waits for a bounded time. A
question is removed when its answer was read or nobody waits for it any more. Where devices have cuts of
their own, all who run the step are asked at once. A key is told as not found only when all have answered.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from aiohttp import web

from geartrain.control.questions import KEYS_MAX
from geartrain.errors import ConfigError, NetError
from geartrain.fleet.labels import shown
from geartrain.ports import Clock
from geartrain.records.event_time import START_OF_TIME, format_time
from geartrain.revision import Revision
from geartrain.revision.revision import StepForm
from geartrain_cloud.control.device_questions import DeviceQuestions, Heard
from geartrain_cloud.control.hosting import HostReport
from geartrain_cloud.control_store.errors import (
    ControlError,
    InvalidError,
    NotFoundError,
    TooManyError,
    UnansweredError,
    UnavailableError,
)
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.model import Instance, State
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.hosting.questions import OPEN_MAX, QuestionFolder
from geartrain_cloud.hosting.questions import Answer as Told
from geartrain_cloud.hosting.questions import Question as Asked
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.requests import WAIT_S_MAX, StateQuery, query_of
from geartrain_cloud.rest.routes import route

ASKED_MAX = 10
"""Questions to one app in a second."""
_LOOK_S = 0.02
DEVICES_MAX = 200
"""Devices that are asked at once, where nobody has said which."""
_APPS_MAX = 1_000
_NAMED_MAX = 5


class Questions:
    """Those to the apps of one platform."""

    def __init__(
        self,
        store: ControlStore,
        folder: QuestionFolder,
        clock: Clock,
        devices: DeviceQuestions,
        host: Callable[[str], HostReport],
    ) -> None:
        """`host`: what the Spark host says of an instance."""
        self._host = host
        self._store, self._folder, self._clock, self._devices = store, folder, clock, devices
        self._turns = Turns(clock.monotonic_s)

    @route("GET", "/apps/{name}/steps/{step}/state", "viewer", answers.KeyState, query=StateQuery)
    async def state(self, request: web.Request) -> Answer:
        """What a running app keeps of a key. An app is asked 10 times a second at the most."""
        asked = query_of(request, StateQuery)
        key, device, wait_s = asked.key, asked.device, asked.wait_s
        instance = self._store.apps.newest(request.match_info["name"])
        step = request.match_info["step"]
        self._check_state(instance)
        devices, is_in_cloud = self._holders(instance, step)
        if device is not None:
            self._check_device(instance, step, device, devices, is_in_cloud)
            devices, is_in_cloud = [device], False
        self._take_turn(instance)
        ways = []
        if devices or not is_in_cloud:
            ways.append(self._asked_of_devices(instance, step, key, devices, wait_s))
        if is_in_cloud:
            ways.append(self._asked_of_cloud(instance, step, key, wait_s))
        return 200, await _first_found(ways, key)

    async def _asked_of_cloud(
        self, instance: Instance, step: str, key: str | None, wait_s: int
    ) -> dict[str, Any]:
        asked = Asked(secrets.token_hex(16), instance.instance, step, key)
        try:
            self._folder.ask(asked)
            told = await self._told(asked.id, wait_s)
        except OSError as error:
            raise UnavailableError(f"the question cannot be written: {error.strerror or error}") from None
        finally:
            self._folder.forget(asked.id)
        if told is None:
            raise UnansweredError(self._unanswered(instance, wait_s))
        if told.refused:
            raise UnansweredError(told.refused)
        return self._form(instance, step, told)

    def _unanswered(self, instance: Instance, wait_s: int) -> str:
        """What a question has waited for, which no micro-batch has answered."""
        said = f"no micro-batch has answered within {wait_s} s"
        took_ms = self._host(instance.instance).micro_batch_ms
        if not took_ms:
            return f"{said}: see gear info {instance.name}, and ask again"
        took_s = max(1, round(took_ms / 1_000))
        longer = f"wait longer, with --timeout up to {WAIT_S_MAX}s" if wait_s < WAIT_S_MAX else "ask again"
        return (
            f"{said}: a question waits for the micro-batch under way and then for a short one, and the last "
            f"one took {took_s} s: {longer}, or see gear info {instance.name}"
        )

    async def _asked_of_devices(
        self, instance: Instance, step: str, key: str | None, asked: Sequence[str], wait_s: int
    ) -> dict[str, Any]:
        if not asked:
            raise UnansweredError(f"app {instance.name} runs on no device yet")
        if len(asked) > DEVICES_MAX:
            raise InvalidError(
                f"device: app {instance.name} runs on {len(asked):,} devices, and {DEVICES_MAX} are asked at "
                "a time at the most: name the one that has the key"
            )
        try:
            heard, silent = await self._devices.ask(
                instance.instance,
                asked,
                step,
                key,
                wait_s,
                lambda one: key is not None and one.answer.told.found,
            )
        except NetError as error:
            raise UnavailableError(f"devices cannot be asked: {error}") from None
        since = {one: self._store.devices.get(one).seen_us for one in sorted(silent)}
        known = [self._devices.last(instance.instance, one, step, key) for one in since]
        best = _best([*heard, *(one for one in known if one is not None)])
        if best is None:
            named = [f"{one} (heard last at {format_time(at)})" if at else one for one, at in since.items()]
            more = f" and {len(named) - _NAMED_MAX:,} more" if len(named) > _NAMED_MAX else ""
            raise UnansweredError(
                f"no device has answered within {wait_s} s, offline, busy or about to get another cut: "
                f"{', '.join(named[:_NAMED_MAX])}{more}"
            )
        told = best.answer.told
        if told.refused:
            raise UnansweredError(f"device {best.device}: {told.refused}")
        keys = [one for each in heard for one in each.answer.told.keys] if key is None else []
        place = Told("", run=1, key=told.key, found=told.found, told=told.told, keys=keys[:KEYS_MAX])
        return {
            **self._form(instance, step, place),
            "clock_us": best.answer.clock_us,
            "answered_us": best.at_us,
            "device": best.device,
            "epoch": best.answer.epoch.hex(),
            "seq": best.answer.seq,
            "silent": [{"device": one, "seen_us": at or None} for one, at in since.items()],
        }

    async def _told(self, name: str, wait_s: float) -> Told | None:
        until_s = self._clock.monotonic_s() + wait_s
        while (told := self._folder.answered(name)) is None and self._clock.monotonic_s() < until_s:
            await self._clock.sleep(_LOOK_S)
        return told

    def _form(self, instance: Instance, step: str, told: Told) -> dict[str, Any]:
        return {
            "app": instance.name,
            "instance": instance.instance,
            "run": told.run,
            "step": step,
            "key": told.key,
            "found": told.found,
            "state": told.told.get("state"),
            "windows": told.told.get("windows", []),
            "timers_us": told.told.get("timers", []),
            "forgets_us": told.told.get("forgets_us"),
            "keys": told.keys,
            "clock_us": told.clock_us if told.clock_us != START_OF_TIME else None,
            "clocks": {source: at for source, at in told.clocks.items() if at != START_OF_TIME},
            "positions": told.positions,
            "answered_us": self._clock.now_us(),
        }

    def _check_state(self, instance: Instance) -> None:
        """Raise `UnansweredError` where nothing holds the state that is asked for."""
        if instance.state is State.ENDED:
            raise UnansweredError(
                f"app {instance.name} has ended, and its state with it: gear table {instance.name} shows "
                "what it has made"
            )
        if instance.state is State.REPLAYING:
            raise UnansweredError(
                f"app {instance.name} has ended and is replayed: nothing is told of a run that catches up"
            )

    def _holders(self, instance: Instance, step: str) -> tuple[list[str], bool]:
        """The devices that run a step with state, and whether the data centre runs it too; refuses at once
        what nobody can answer, as far as the revision tells.
        """
        try:
            steps = {one.id: one for one in Revision.from_json(instance.outline.document).steps}
        except ConfigError:  # of an older release: the micro-batch says it
            return [], True
        keyed = {
            one.id for one in steps.values() if any(steps[source].key for source in map(_step_of, one.inputs))
        }
        found = steps.get(step)
        if found is None:
            there = [one.id for one in steps.values() if one.id in keyed]
            raise NotFoundError(
                f"app {instance.name} has no step {shown(step)}; those with a state: "
                f"{', '.join(there) or 'none'}"
            )
        if step not in keyed:
            return [], True
        is_on_devices, own = found.tier == "edge", self._store.desired.cuts(instance.instance)
        running = self._store.desired.running(instance.instance)
        devices = [
            one for one in running if (_is_above(steps, step, own[one]) if own.get(one) else is_on_devices)
        ]
        return devices, not is_on_devices or len(devices) < len(running)

    def _check_device(
        self, instance: Instance, step: str, device: str, holders: Sequence[str], is_in_cloud: bool
    ) -> None:
        """Raise `InvalidError` or `NotFoundError` for a device that does not run the step."""
        if device in holders:
            return
        is_running = device in self._store.desired.running(instance.instance)
        if is_in_cloud and (is_running or not holders):
            whose = f" of device {shown(device)}" if holders else ""
            raise InvalidError(
                f"device: step {shown(step)}{whose} runs in the data centre, and no device is asked"
            )
        raise NotFoundError(f"app {instance.name} does not run on device {shown(device)}: see gear info")

    def _take_turn(self, instance: Instance) -> None:
        """Raise `TooManyError` where too much is asked."""
        if not self._turns.take(instance.instance) or self._folder.count() >= OPEN_MAX:
            raise TooManyError(
                f"app {instance.name} is asked {ASKED_MAX} times a second at the most: ask later, or send "
                "what many want to know to a table"
            )


class Turns:
    """Who may ask now: each app is asked `ASKED_MAX` times in any second."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """now_s: monotonic seconds."""
        self._now_s = now_s
        self._lately: dict[str, deque[float]] = {}

    def __len__(self) -> int:
        """How many apps were asked lately."""
        return len(self._lately)

    def take(self, app: str) -> bool:
        """Whether an app may be asked now, which then counts."""
        now_s = self._now_s()
        if len(self._lately) >= _APPS_MAX:
            self._lately = {one: times for one, times in self._lately.items() if now_s - times[-1] < 1}
        times = self._lately.setdefault(app, deque(maxlen=ASKED_MAX))
        if len(times) == ASKED_MAX and now_s - times[0] < 1:
            return False
        times.append(now_s)
        return True


def _best(heard: list[Heard]) -> Heard | None:
    """The answer to hand on: one that found the key, else one that says something."""
    found = [one for one in heard if one.answer.told.found]
    return next(iter([*found, *(one for one in heard if not one.answer.told.refused), *heard]), None)


async def _first_found(
    ways: Sequence[Coroutine[Any, Any, dict[str, Any]]], key: str | None
) -> dict[str, Any]:
    """The answer of the first that has the key. Where none has it, or none is named (None), all answer, and
    one that cannot fails the question.
    """
    asked = [asyncio.ensure_future(way) for way in ways]
    answers: list[dict[str, Any]] = []
    failures: list[ControlError] = []
    try:
        for next_one in asyncio.as_completed(asked):
            try:
                answer = await next_one
            except ControlError as error:
                failures.append(error)
                continue
            if key is not None and answer["found"]:
                return answer
            answers.append(answer)
    finally:
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    if failures:
        raise failures[0]
    keys: list[Any] = []
    for one in (one for answer in answers for one in answer["keys"]):
        if one not in keys:
            keys.append(one)
    return answers[0] | {"keys": keys[:KEYS_MAX]}


def _is_above(steps: Mapping[str, StepForm], step: str, cut: str) -> bool:
    """Whether a cut, as the last steps on the device, has a step on the device."""
    below, seen = cut.split(","), set[str]()
    while below:
        one = below.pop()
        if one in steps and one not in seen:
            seen.add(one)
            below += map(_step_of, steps[one].inputs)
    return step in seen


def _step_of(source: str) -> str:
    """The step of an input, as a revision writes it with its grouping."""
    return source.partition(":")[0]
