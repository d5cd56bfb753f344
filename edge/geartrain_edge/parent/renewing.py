"""The certificate of a joined device renews itself, once two thirds of its life are over.

Beside the control lane, by a short-lived process: the library for certificates stays out of the parent.
Guarantees: connections go on, and the next one shows the new certificate. A renewal that fails is said, and
tried again with growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time

from geartrain.errors import ConfigError
from geartrain.ports import Clock, Randomness
from geartrain_edge.identity import Identity
from geartrain_edge.parent.config import DeviceConfig

_LOG = logging.getLogger("geartrain.parent")

LOOK_S = 60.0
"""Between two looks at the wall clock, which may be set."""
PAUSE_S, PAUSE_S_MAX = 5.0, 3_600.0
GIVEN_S = 120.0
"""How long a renewal may take."""


class Renewal:
    """Of one device; `run` ends when it is cancelled."""

    def __init__(self, config: DeviceConfig, clock: Clock, randomness: Randomness) -> None:
        self._config, self._clock, self._randomness = config, clock, randomness
        self._identity = Identity(config.state)

    async def run(self) -> None:
        """Renew whenever it is due."""
        pause_s = PAUSE_S
        while True:
            await self._until_due()
            if await self._renew():
                pause_s = PAUSE_S
                continue
            await self._clock.sleep(pause_s * self._randomness.uniform(0.5, 1))
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _until_due(self) -> None:
        chance = self._randomness.uniform(0, 1)
        while True:
            try:
                left_s = self._identity.term().renewal_s(chance) - time.time()
            except ConfigError as error:  # a person is at it
                _LOG.warning("device %s: %s", self._config.device, error)
                left_s = LOOK_S
            if left_s <= 0:
                return
            await self._clock.sleep(min(left_s, LOOK_S))

    async def _renew(self) -> bool:
        """Have a process renew; whether it did."""
        command = ("-P", "-m", "geartrain_edge.agent.process", "renew", "--device", self._config.path)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(GIVEN_S):
                code = await process.wait()
        except TimeoutError:
            _LOG.warning("device %s: its renewal took longer than %g s", self._config.device, GIVEN_S)
            return False
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code == 0:
            _LOG.info("device %s: its certificate is renewed", self._config.device)
        return code == 0
