"""Devices that the broker does not accept for a while, as one whose certificate is revoked and issued anew.

Beside the usual worlds, with the faults of the network. The broker ends a device's connection, denies it new
ones, and takes it back. Rules: meanwhile the device tries seldom, and its status says that it is refused.
Once it may, it comes back within the bound of its pauses. All else must hold as elsewhere.
"""

from __future__ import annotations

from random import Random

import msgspec

from geartrain_edge.agent.agent import Agent
from geartrain_edge.errors import AlarmCode
from geartrain_simulation.fleet.devices import Device
from geartrain_simulation.fleet.fleet import Fleet
from geartrain_simulation.fleet.lives import Programs
from geartrain_simulation.fleet.troubles import NET_RATES, draw_faults

FOR_S = 6.0
PAUSE_S = 1.0
"""The longest pause of a device that is denied."""
_REFUSED_S = 0.05
_TRIES_MAX = 60
"""In `FOR_S`: with pauses drawn from up to `PAUSE_S` they are twelve, and a few while these grow. With those
of a refusal they would be 240.
"""
_SLACK_S = 3.0
"""What a try itself may take, and the pause after the last of the cuts."""
_KINDS = frozenset({*NET_RATES, "cut", "silence", "forget", "buggify"})


class DeniedFleet(Fleet):
    """One run. Each device is denied once."""

    def __init__(self, seed: int) -> None:
        random, agents = Random(f"{seed}/denied"), dict[str, Agent]()
        devices = [Device(f"device-{number}", 40) for number in range(1, random.choice((1, 1, 2)) + 1)]

        class Watched(Agent):
            """Lets the world ask for its status."""

            async def run(self) -> bool:
                agents[self._settings.device] = self
                return await super().run()

        faults = [fault for fault in draw_faults(seed, devices) if fault.kind in _KINDS]
        super().__init__(seed, programs=Programs(agent=Watched), devices=devices, faults=faults)
        self._agents = agents
        self._begins = {device.name: random.uniform(2.5, 5.0) for device in devices}
        for name, settings in self._settings.items():
            uplink = msgspec.structs.replace(
                settings.uplink,
                backoff_ms=20,
                backoff_ms_max=500,
                refused_ms_max=int(_REFUSED_S * 1_000),
                denied_ms_max=int(PAUSE_S * 1_000),
            )
            self._settings[name] = msgspec.structs.replace(settings, uplink=uplink)

    def _arrange(self) -> None:
        super()._arrange()
        for name, at_s in self._begins.items():
            self.world.later(at_s, self.broker.deny, name, FOR_S)
            self.world.later(at_s + FOR_S, self._look, name)
            self.world.later(at_s + FOR_S + PAUSE_S + _SLACK_S, self._look_again, name, at_s + FOR_S)

    def _look(self, name: str) -> None:
        """The denial has just ended."""
        denied_s, agent = self.broker.denied_s.get(name, []), self._agents.get(name)
        if len(denied_s) > _TRIES_MAX:
            self.checkers.breach("seldom", f"{name} tried {len(denied_s)} times in {FOR_S:g} s of denial")
        is_last = bool(denied_s) and denied_s[-1] == self.broker.tried_s[name]  # no cut came behind it
        if is_last and agent is not None and agent.status().alarm_code != AlarmCode.DENIED:
            self.checkers.breach("said", f"{name} is denied, and its alarm is {agent.status().alarm!r}")

    def _look_again(self, name: str, since_s: float) -> None:
        if not self.world.nodes[name].finished.done() and self.broker.tried_s.get(name, 0.0) < since_s:
            self.checkers.breach("let in", f"{name} has not tried since it is accepted again")
