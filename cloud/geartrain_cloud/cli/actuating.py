"""The actuators of a flow that runs in one process (`gear run --actuate`).

Behind the fragment, in the place of an agent. Guarantees: the records of an actuator are handed over one
after the other, and one that it refuses becomes a dead letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from geartrain.adapters.system import SystemRandomness
from geartrain.declarations.device_sink import Actuator, Delivery
from geartrain.errors import USER_ERRORS, GeartrainError, StepError
from geartrain.graph.conform import describe, raw_form
from geartrain.ports import Clock
from geartrain.records.batch import DeadLetter
from geartrain.records.codes import Code
from geartrain.runtime.fragment import Output

_PAUSES_DOUBLED = 5


class Actuating:
    """Hands records to the actuators of a flow as an agent does: one by one, and again after a failure.

    One that has failed too often is a dead letter.
    """

    def __init__(
        self, actuators: Mapping[str, Actuator[Any]], clock: Clock, reject: Callable[[DeadLetter], None]
    ) -> None:
        """actuators: by step."""
        self._actuators, self._clock, self._reject = actuators, clock, reject
        self._life, self._seq, self._started = SystemRandomness().token(8).hex(), 0, False

    async def take(self, output: Output) -> None:
        """Act on the records of an output; raises `StepError` when an actuator cannot start."""
        if not self._started:
            self._started = True
            for step, actuator in self._actuators.items():
                await _called(f"actuator {step} cannot start", actuator.start("local"))
        for step, actuator in self._actuators.items():
            index = 0
            for batch in output.batches.get(step, ()):
                self._seq += 1
                for row, value in enumerate(batch.values):
                    at = Delivery(self._life, self._seq, index, batch.times[row])
                    reason = await self._act(actuator, value, at)
                    if reason:
                        origin, time = batch.origin(row), batch.times[row]
                        self._reject(
                            DeadLetter(step, origin, time, Code.NOT_DELIVERED, reason, raw_form(value))
                        )
                    index += 1

    async def _act(self, actuator: Actuator[Any], value: Any, at: Delivery) -> str:
        """Call it as often as it may fail; why it failed, or nothing."""
        for attempt in range(1, actuator.attempts + 1):
            try:
                async with asyncio.timeout(actuator.timeout_ms / 1_000):
                    await actuator.act(value, at)
            except USER_ERRORS as error:
                if attempt == actuator.attempts:
                    times = "once" if attempt == 1 else f"{attempt} times"
                    return f"the actuator failed {times}: {describe(error)}"
                doubled = min(attempt - 1, _PAUSES_DOUBLED)
                await self._clock.sleep(actuator.pause_ms * 2**doubled / 1_000)
            else:
                break
        return ""

    async def stop(self) -> None:
        """Let go of them; raises `StepError`."""
        for step, actuator in self._actuators.items() if self._started else ():
            await _called(f"actuator {step} cannot stop", actuator.stop())


async def _called(where: str, call: Any) -> None:
    try:
        await call
    except GeartrainError:
        raise
    except USER_ERRORS as error:
        raise StepError(f"{where}: {describe(error)}") from error
